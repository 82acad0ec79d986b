"""What is remembered of answers, and for how long."""

from typing import Any

from daemon.chat import Image, Message, Text, ToolCall
from daemon.middleware.responses_history import History


def response(name: str) -> dict[str, Any]:
    return {"id": f"resp_{name}", "output": [{"id": f"msg_{name}", "type": "message", "content": []}]}


def said(text: str) -> tuple[Message, ...]:
    return (Message("user", (Text(text),)),)


def saved(history: History, *names: str, text: str = "hi") -> None:
    for name in names:
        history.save(response(name), said(text))


def kept(history: History, *names: str) -> str:
    return "".join(name for name in names if history.find(f"resp_{name}"))


def test_what_was_saved_is_found() -> None:
    history = History()
    saved(history, "a")
    stored = history.find("resp_a")
    assert stored is not None
    assert stored.messages == said("hi")
    assert stored.body == b'{"id":"resp_a","output":[{"id":"msg_a","type":"message","content":[]}]}'
    assert history.find("resp_b") is None


def test_items_are_found_by_their_own_ids() -> None:
    history = History()
    saved(history, "a", "b")
    assert history.item("msg_b") == {"id": "msg_b", "type": "message", "content": []}
    assert history.item("msg_c") is None


def test_what_is_removed_is_gone_with_its_items() -> None:
    history = History()
    saved(history, "a")
    assert history.remove("resp_a")
    assert history.find("resp_a") is None
    assert history.item("msg_a") is None
    assert not history.remove("resp_a")


def test_what_was_not_used_for_longest_goes_first() -> None:
    history = History(max_entries=3)
    saved(history, "a", "b", "c")
    history.find("resp_a")
    history.item("msg_b")
    saved(history, "d")
    assert kept(history, "a", "b", "c", "d") == "abd"
    assert history.item("msg_c") is None


def test_all_together_are_bounded_in_bytes() -> None:
    history = History(max_bytes=30_000)
    saved(history, "a", "b", "c", text="x" * 9_000)
    assert kept(history, "a", "b", "c") == "abc"
    saved(history, "d", text="x" * 15_000)
    assert kept(history, "a", "b", "c", "d") == "cd"


def test_removing_makes_room() -> None:
    history = History(max_bytes=30_000)
    saved(history, "a", "b", text="x" * 13_000)
    history.remove("resp_a")
    saved(history, "c", text="x" * 13_000)
    assert kept(history, "a", "b", "c") == "bc"


def test_a_response_larger_than_all_the_room_is_not_kept() -> None:
    history = History(max_bytes=30_000)
    saved(history, "a")
    saved(history, "b", text="x" * 40_000)
    assert kept(history, "a", "b") == ""
    saved(history, "c")
    assert kept(history, "c") == "c"


def test_images_thoughts_and_arguments_count() -> None:
    text = "x" * 9_000
    message = Message("assistant", (Image(text, "image/png"),), text, (ToolCall("c", "f", text),))
    history = History(max_bytes=27_000)
    history.save(response("a"), (message,))
    assert kept(history, "a") == ""
