"""What the cells of the matrix ask, and of which models."""

from typing import Any

from tests.engine.matrix.asks import Ask, Tool, assistant, user
from tests.engine.matrix.cells import Cell

# Models that the matrix makes of SmolLM2: one whose template carries tools, one with a small window.
TOOLS_MODEL, SMALL_MODEL = "smollm2-tools", "smollm2-small"
SMALL_WINDOW = 256

# What is asked is what SmolLM2 is sure of: with two tokens as likely, a greedy answer depends on what is cached.
QUESTION = "List the months of the year."
BEGUN = "2, 4, 6, 8, 10,"
CONVERSATION = (
    user("My cat is called Tom."),
    assistant("Tom is a nice name."),
    user("What is my cat called?"),
)
# Its answer ends before the limit.
ENDING = Ask(turns=CONVERSATION)
# Greedy, SmolLM2 goes on for thousands of tokens.
ENDLESS = Ask(turns=(user("Write a very long story."),), limit=4000)

SCHEMA = {
    "type": "object",
    "properties": {
        "color": {"enum": ["red", "blue"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["color", "count"],
    "additionalProperties": False,
}
# In the words and the order that Ollama's client for Python knows; it leaves out all others.
WEATHER = Tool(
    "get_weather",
    "Tells the weather of a city",
    {
        "type": "object",
        "required": ["city", "days"],
        "properties": {
            "city": {"type": "string", "enum": ["Paris", "Rome"]},
            "days": {"type": "integer", "enum": [1, 2, 3]},
        },
    },
)
ADD = Tool(
    "add",
    "Adds two digits",
    {
        "type": "object",
        "required": ["a", "b"],
        "properties": {name: {"type": "integer", "enum": [1, 2, 3, 4, 5]} for name in ("a", "b")},
    },
)
TOOLS = (WEATHER, ADD)
TOOL_ASK = Ask(model=TOOLS_MODEL, turns=(user("What is the weather in Rome?"),), tools=TOOLS)
TEXTS = (
    BEGUN,
    "The months of the year are January, February,",
    "The planets of the solar system are Mercury, Venus,",
)


def question(cell: Cell, **more: Any) -> Ask:
    """One that any API can ask; where there are no turns it is a text to go on with."""
    return Ask(turns=(user(BEGUN if cell.api == "completions" else QUESTION),), **more)
