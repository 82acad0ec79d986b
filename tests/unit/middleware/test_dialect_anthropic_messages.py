import base64
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.chat import Image, Message, Part, Text, ToolCall
from daemon.errors import InvalidRequest, NotSupported
from daemon.middleware.anthropic_messages import messages
from daemon.middleware.fields import Fields

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(8)).decode()
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
HI = {"role": "user", "content": "hi"}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Rome"}}
CALLED = ToolCall("toolu_1", "weather", '{"city":"Rome"}')


def read(*turns: Any, **more: Any) -> tuple[Message, ...]:
    return messages(Fields({"messages": list(turns), **more}))


def block(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **more}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def result(content: Any = None, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "toolu_1", "content": content, **more}


def said(*parts: Part | str) -> Message:
    return Message("user", tuple(Text(part) if isinstance(part, str) else part for part in parts))


# ---- system


def test_system_and_blocks() -> None:
    system = Message("system", (Text("be\nbrief"),))
    blocks = [block("be"), block("brief", cache_control={"type": "ephemeral"})]
    assert read(HI, system="be\nbrief") == read(HI, system=blocks) == (system, said("hi"))
    assert read(HI, system="") == read(HI, system=[]) == read(HI, system=None) == (said("hi"),)


@pytest.mark.parametrize(
    "header",
    [
        "x-anthropic-billing-header: cc_version=2.1.101.e51; cc_entrypoint=cli; cch=a5145;",
        "x-anthropic-billing-header: cc_version=2.1.101.e51; cc_entrypoint=cli; cch=bbbbb;\n",
        "x-anthropic-billing-header: ...; cch=AAAAA",
    ],
)
def test_the_billing_header_is_not_for_the_model(header: str) -> None:
    system = [block(header), block("You are a coder; be brief.")]
    assert read(HI, system=system)[0].text == "You are a coder; be brief."


def test_a_billing_header_in_front_of_the_text() -> None:
    system = "x-anthropic-billing-header: cc_version=2.1; cch=a5145;You are a coder; be brief."
    assert read(HI, system=system)[0].text == "You are a coder; be brief."
    later = "Never write x-anthropic-billing-header: cch=1; to a file."
    assert read(HI, system=later)[0].text == later


def test_a_system_turn_stays_in_its_place() -> None:
    note = {"role": "system", "content": [block("<reminder>")]}
    more = {"role": "user", "content": "more"}
    assert read(HI, note, more) == (said("hi"), Message("system", (Text("<reminder>"),)), said("more"))


# ---- parts


def test_text_blocks_are_the_lines_of_one_text() -> None:
    assert read(user(block("a"), block(""), block("b", citations=None))) == (said("a\nb"),)
    assert read(user()) == read({"role": "user", "content": ""}) == (said(""),)


def test_an_image_keeps_its_place_among_the_texts() -> None:
    assert read(user(block("a"), IMAGE, block("b"))) == (said("a", Image(PNG, "image/png"), "b"),)


def test_documents_are_their_text() -> None:
    plain = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "It rains."}}
    assert read(user(plain, block("Why?"))) == (said("It rains.\n\nWhy?"),)
    titled = {**plain, "title": "Diary", "context": "of May", "citations": {"enabled": True}}
    assert read(user(titled)) == (said("Diary\nof May\nIt rains.\n\n"),)
    nested = {"type": "document", "source": {"type": "content", "content": [block("a"), IMAGE]}}
    assert read(user(nested)) == (said("a", Image(PNG, "image/png"), "\n\n"),)
    nested = {"type": "document", "source": {"type": "content", "content": "a"}}
    assert read(user(nested)) == (said("a\n\n"),)


def test_search_results_are_their_text() -> None:
    found = {
        "type": "search_result",
        "title": "Diary",
        "source": "diary.txt",
        "content": [block("It rains.")],
    }
    assert read(user(found)) == (said("Diary\ndiary.txt\nIt rains.\n\n"),)


# ---- turns


def test_thinking_is_kept_and_what_cannot_be_read_is_skipped() -> None:
    turn = assistant(
        {"type": "thinking", "thinking": "h", "signature": "s"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "thinking", "thinking": "m", "signature": ""},
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
        {"type": "novel"},
        block("b"),
    )
    assert read(HI, turn, HI)[1] == Message("assistant", (Text("b"),), thinking="hm")


def test_calls_and_results() -> None:
    turns = read(HI, assistant(block("Let me look."), CALL), user(result("Sunny."), block("And now?")))
    assert turns == (
        said("hi"),
        Message("assistant", (Text("Let me look."),), tool_calls=(CALLED,)),
        Message("tool", (Text("Sunny."),), tool_call_id="toolu_1", name="weather"),
        said("And now?"),
    )


def test_results_come_right_behind_the_calls() -> None:
    second = {**result("12 o'clock"), "tool_use_id": "toolu_2"}
    turns = read(HI, assistant(CALL), user(block("So?"), result("Sunny."), second))
    assert [(turn.role, turn.text) for turn in turns[2:]] == [
        ("tool", "Sunny."),
        ("tool", "12 o'clock"),
        ("user", "So?"),
    ]
    assert turns[3] == Message("tool", (Text("12 o'clock"),), tool_call_id="toolu_2", name=None)


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (None, ()),
        ("", ()),
        ([], ()),
        ("Sunny.", (Text("Sunny."),)),
        ([block("Sunny."), block("Warm."), IMAGE], (Text("Sunny.\nWarm."), Image(PNG, "image/png"))),
        ([{"type": "tool_reference", "tool_name": "time"}], (Text("time"),)),
        ([{"type": "novel"}], ()),
    ],
)
def test_content_of_results(content: Any, parts: tuple[Part, ...]) -> None:
    (tool,) = read(HI, assistant(CALL), user(result(content)))[2:]
    assert tool == Message("tool", parts, tool_call_id="toolu_1", name="weather")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("no such city", "Error: no such city"),
        ("Error: no such city", "Error: no such city"),
        (None, "Error: "),
    ],
)
def test_a_result_that_is_an_error_says_so(content: Any, text: str) -> None:
    assert read(HI, assistant(CALL), user(result(content, is_error=True)))[2].text == text


def test_a_call_without_input_has_no_arguments() -> None:
    call = {key: value for key, value in CALL.items() if key != "input"}
    assert read(HI, assistant(call), user(result("x")))[1].tool_calls == (
        ToolCall("toolu_1", "weather", "{}"),
    )


def test_turns_of_one_role_in_a_row_are_one_turn() -> None:
    other = {**CALL, "id": "toolu_2"}
    turns = read(
        HI,
        user(block("there")),
        assistant(block("a"), CALL),
        assistant(other),
        user(result("x"), block("b")),
        user({**result("y"), "tool_use_id": "toolu_2"}),
        user(block("c")),
    )
    assert [(turn.role, turn.text) for turn in turns] == [
        ("user", "hi\n\nthere"),
        ("assistant", "a"),
        ("tool", "x"),
        ("tool", "y"),
        ("user", "b\n\nc"),
    ]
    assert [call.id for call in turns[1].tool_calls] == ["toolu_1", "toolu_2"]


def test_the_start_of_an_answer() -> None:
    start = Message("assistant", (Text("The answer is ("),))
    assert read(HI, {"role": "assistant", "content": "The answer is ("}) == (said("hi"), start)
    assert read(HI, {"role": "assistant", "content": ""}) == read(HI, assistant()) == (said("hi"),)


# ---- errors


@pytest.mark.parametrize(
    ("turn", "message"),
    [
        (
            {"role": "robot", "content": "x"},
            'messages[0].role must be one of user, assistant, system, not "robot"',
        ),
        ({"role": "tool", "content": "x"}, "messages[0].role must be one of"),
        ({"content": "x"}, "messages[0].role is required"),
        ({"role": "user"}, "messages[0].content is required"),
        ({"role": "user", "content": 5}, "messages[0].content must be a string, not 5"),
        (user({}), "messages[0].content[0].type is required"),
        (user({"type": "text"}), "messages[0].content[0].text is required"),
        (user({"type": "image"}), "messages[0].content[0].source.type is required"),
        (
            user({"type": "image", "source": {"type": "base64", "data": "?"}}),
            "messages[0].content[0].source.data is not base64",
        ),
        (user(result(5)), "messages[0].content[0].content must be a string, not 5"),
        (user({"type": "tool_result"}), "messages[0].content[0].tool_use_id is required"),
        (
            user(CALL),
            'messages[0].content[0].type is "tool_use", which only a turn of the assistant can have',
        ),
        (
            assistant(result("x")),
            'messages[0].content[0].type is "tool_result", which only a turn of the user can have',
        ),
        (assistant({**CALL, "id": None}), "messages[0].content[0].id is required"),
        (assistant({**CALL, "name": ""}), "messages[0].content[0].name must have 1 to 256 characters, not 0"),
        (assistant(CALL), "messages[0] ends the conversation with a tool_use"),
        (assistant(), "messages must hold at least one message"),
    ],
)
def test_wrong_turns(turn: Any, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(turn)
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize("more", [{"system": 5}, {"system": ["x"]}])
def test_wrong_system(more: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"system must be a string, not 5|system\[0\] must be an object"):
        read(HI, **more)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            {"type": "image", "source": {"type": "url", "url": "https://x.test/a.png"}},
            'source.type "url" is not',
        ),
        (
            {"type": "image", "source": {"type": "file", "file_id": "f"}},
            'source.type "file" is not supported',
        ),
        (
            {
                "type": "document",
                "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="},
            },
            'source.type "base64" is not supported: mgr reads no files',
        ),
        ({"type": "document", "source": {"type": "url", "url": "x"}}, 'source.type "url" is not supported'),
        ({"type": "novel"}, 'type "novel" is not supported'),
        ({"type": "container_upload", "file_id": "f"}, 'type "container_upload" is not supported'),
    ],
)
def test_what_is_not_supported_is_said(content: Any, message: str) -> None:
    with pytest.raises(NotSupported) as caught:
        read(user(content))
    assert caught.value.message.startswith(f"messages[0].content[0].{message}")


def test_a_long_header_is_read_in_linear_time() -> None:
    words = "a" * 200_000 + " b" * 100_000
    assert read(HI, system=f"x-anthropic-billing-header: {words}; c")[0].text == f"{words}; c"


KINDS = [
    "text",
    "image",
    "document",
    "search_result",
    "tool_reference",
    "thinking",
    "tool_use",
    "tool_result",
    "x",
]
VALUES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=3)
    | st.sampled_from(["text", "content", "base64"])
)
BLOCKS = st.recursive(
    st.dictionaries(st.sampled_from(["text", "thinking", "id", "name", "tool_name", "tool_use_id"]), VALUES),
    lambda inner: st.fixed_dictionaries(
        {"type": st.sampled_from(KINDS)},
        optional={
            "content": VALUES | st.lists(inner, max_size=3),
            "source": VALUES | inner,
            "input": VALUES | inner,
            "data": VALUES,
            "text": VALUES,
            "thinking": VALUES,
            "id": VALUES,
            "name": VALUES,
            "tool_use_id": VALUES,
            "is_error": VALUES,
        },
    ),
    max_leaves=6,
)
TURNS = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system"])},
    optional={"content": VALUES | st.lists(BLOCKS | VALUES, max_size=4)},
)


@given(turns=st.lists(TURNS, max_size=4), system=VALUES | st.lists(BLOCKS, max_size=2))
def test_whatever_the_blocks_there_are_messages_or_an_error(turns: list[Any], system: Any) -> None:
    try:
        found = read(*turns, system=system)
    except (InvalidRequest, NotSupported):
        return
    assert found
    assert all(before.role != after.role or before.role == "tool" for before, after in pairwise(found[1:]))
