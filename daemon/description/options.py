"""Options that more than one API has."""

from typing import Any

from daemon.description.schema import (
    ANYTHING,
    BOOLEAN,
    INTEGER,
    NUMBER,
    SOME_STRING,
    STRING,
    Schema,
    array,
    either,
    obj,
    one_of,
    within,
)

# The bounds that the readers in middleware/ hold to; a test compares.
MAX_INT = 2**31 - 1
MAX_MESSAGES = 10_000
MAX_REPEAT = 2**20
MAX_STOPS = 16
MAX_WINDOW = 2**24

KEEP_ALIVE: Schema = {
    "description": 'how long the model stays loaded afterwards: seconds, or a duration like "5m"; negative is for ever',
    **either(NUMBER, STRING),
}

# chat.Sampling's own names, which every route takes; see middleware/request.py for the bounds.
SAMPLING: dict[str, Schema] = {
    "seed": within(INTEGER, -(2**63), 2**63 - 1),
    "temperature": within(NUMBER, 0, 2),
    "top_k": within(INTEGER, -1, MAX_INT),
    "top_p": within(NUMBER, 0, 1),
    "min_p": within(NUMBER, 0, 1),
    "typical_p": within(NUMBER, 0, 1),
    "repeat_last_n": within(INTEGER, -1, MAX_REPEAT),
    "repeat_penalty": within(NUMBER, 0.1, 10),
    "presence_penalty": within(NUMBER, -2, 2),
    "frequency_penalty": within(NUMBER, -2, 2),
    "num_keep": within(INTEGER, -1, MAX_WINDOW),
}

STOP: Schema = either(SOME_STRING, array(SOME_STRING, 0, MAX_STOPS))

COUNT: Schema = within(INTEGER, 1, MAX_INT)

# -1 is no limit.
LIMIT: Schema = either({"type": "integer", "enum": [-1]}, COUNT)

THINK: Schema = either(BOOLEAN, one_of("none", "minimal", "low", "medium", "high", "xhigh", "max", "ultra"))


def messages(message: Schema) -> Schema:
    return array(message, 0, MAX_MESSAGES)


JSON_SCHEMA: Schema = {"type": "object", "description": "a JSON Schema"}

FUNCTION: Schema = obj("name", name=STRING, description=STRING, parameters=JSON_SCHEMA)
TOOL: Schema = obj("function", type={"type": "string", "enum": ["function"]}, function=FUNCTION)

CALL: Schema = obj(
    "function",
    id=STRING,
    type={"type": "string", "enum": ["function"]},
    function=obj("name", name=STRING, arguments=either(STRING, {"type": "object"})),
)

TOOL_CHOICE: Schema = either(
    {"type": "string", "enum": ["none", "auto", "required"]},
    obj("type function", type={"type": "string", "enum": ["function"]}, function=obj("name", name=STRING)),
)

LOGPROB: Schema = obj(
    "token logprob bytes",
    token=STRING,
    logprob=NUMBER,
    bytes=either(array(INTEGER), {"type": "null"}),
    top_logprobs=array(ANYTHING),
)

EXTRAS: dict[str, Any] = {
    "truncated": {"type": "boolean", "description": "the prompt was cut to fit the window"},
    "warnings": {**array(STRING), "description": "what could not be kept to"},
}
