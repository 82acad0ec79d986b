import io
import sys
from collections.abc import Generator
from typing import Any

import pytest

from cli.client import Client, Json
from cli.errors import ApiError
from cli.session import CUT, Session
from daemon.settings import Address


class Scripted(Client):
    """Answers each chat with the next script: lines, or an error between them."""

    def __init__(self, *scripts: list[Any]) -> None:
        super().__init__(Address())
        self._scripts = list(scripts)
        self.bodies: list[Json] = []

    def stream(self, path: str, body: Json) -> Generator[Json, None, None]:
        assert path == "/api/chat"
        self.bodies.append(body)
        for item in self._scripts.pop(0):
            if isinstance(item, BaseException):
                raise item
            yield item


def said(text: str) -> Json:
    return {"message": {"content": text}}


DONE: Json = {"done": True}


def test_a_conversation_is_sent_whole_with_the_system_prompt_first() -> None:
    client = Scripted([said("one"), DONE], [said("two"), DONE])
    session = Session("m", system="be brief", options={"seed": 1}, keep_alive="1m")
    session.ask(client, "first")
    session.ask(client, "second")
    assert client.bodies[1] == {
        "model": "m",
        "options": {"seed": 1},
        "keep_alive": "1m",
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "first"},
            {"role": "assistant", "content": "one"},
            {"role": "user", "content": "second"},
        ],
    }


def test_nothing_is_sent_that_was_not_said() -> None:
    client = Scripted([DONE])
    Session("m").ask(client, "hi")
    assert client.bodies == [{"model": "m", "messages": [{"role": "user", "content": "hi"}]}]


def test_a_stopped_answer_is_remembered_as_far_as_it_came() -> None:
    session = Session("m")
    with pytest.raises(KeyboardInterrupt):
        session.ask(Scripted([said("half"), KeyboardInterrupt()]), "long?")
    assert [message["content"] for message in session.messages] == ["long?", "half"]


def test_a_refused_question_is_forgotten() -> None:
    session = Session("m")
    with pytest.raises(ApiError):
        session.ask(Scripted([ApiError(503, "busy")]), "hi")
    assert session.messages == []


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("reason", "errors", "noted"),
    [
        ("length", Terminal(), f"{CUT}\n"),
        ("length", io.StringIO(), ""),
        ("stop", Terminal(), ""),
    ],
)
def test_a_person_is_told_of_an_answer_that_was_cut(
    monkeypatch: pytest.MonkeyPatch, reason: str, errors: io.StringIO, noted: str
) -> None:
    monkeypatch.setattr(sys, "stderr", errors)
    Session("m").ask(Scripted([said("half"), {"done": True, "done_reason": reason}]), "hi")
    assert errors.getvalue() == noted
