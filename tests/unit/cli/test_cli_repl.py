import io
import sys
from collections.abc import Callable
from typing import Any

import pytest

from cli import repl
from cli.client import Client, Json
from cli.errors import ApiError, CliError
from cli.session import Session
from daemon.errors import PromptTooLong
from daemon.settings import Address


def reader(*answers: str) -> Callable[[str], str]:
    left = iter(answers)

    def read(_: str) -> str:
        for answer in left:
            return answer
        raise EOFError

    return read


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["hello"], "hello"),
        (['"""one"""'], "one"),
        (['"""one', "two", 'three"""'], "one\ntwo\nthree"),
        (['/set system """be', 'brief"""'], "/set system be\nbrief"),
        (['  """one', 'two"""'], "  one\ntwo"),
        (['say """ three times'], 'say """ three times'),
        (['"""pasted\nat once"""'], "pasted\nat once"),
    ],
)
def test_a_message_is_a_line_or_what_triple_quotes_hold(typed: list[str], message: str) -> None:
    assert repl.read_message(reader(*typed)) == message


def test_continued_lines_have_their_own_prompt() -> None:
    prompts: list[str] = []
    typed = reader('"""a', 'b"""')

    def read(prompt: str) -> str:
        prompts.append(prompt)
        return typed(prompt)

    repl.read_message(read)
    assert prompts == [">>> ", "... "]


@pytest.mark.parametrize(
    ("name", "words", "value"),
    [
        ("num_ctx", ["4096"], 4096),
        ("seed", ["-1"], -1),
        ("temperature", ["0.5"], 0.5),
        ("stop", ["</s>", "User:"], ["</s>", "User:"]),
    ],
)
def test_parameters_have_the_apis_types(name: str, words: list[str], value: object) -> None:
    assert repl.parameter_value(name, words) == value


@pytest.mark.parametrize(
    ("name", "words", "sentence"),
    [
        ("num_ctx", ["big"], "num_ctx must be a whole number, not 'big'"),
        ("num_ctx", ["1.5"], "num_ctx must be a whole number, not '1.5'"),
        ("top_p", [], "top_p must be a number, not ''"),
        ("temprature", ["1"], "there is no parameter 'temprature'"),
        ("stop", [], "stop needs at least one word"),
    ],
)
def test_wrong_parameters_are_refused(name: str, words: list[str], sentence: str) -> None:
    with pytest.raises(CliError, match=sentence):
        repl.parameter_value(name, words)


def client() -> Client:
    return Client(Address())


def test_set_and_clear_change_the_session() -> None:
    session = Session("m", messages=[{"role": "user", "content": "x"}])
    repl.respond(client(), session, "/set parameter num_ctx 512")
    repl.respond(client(), session, "/set system be brief")
    repl.respond(client(), session, "/clear")
    assert (session.options, session.system, session.messages) == ({"num_ctx": 512}, "be brief", [])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("/frobnicate", "there is no command /frobnicate"),
        ("/frobnicate\nand more", "there is no command /frobnicate;"),
        ("/set colour red", "write /set parameter"),
        ("/set system", "or /set system <text>"),
        ("/set system  ", "or /set system <text>"),
        ("/show weights", "there is no part 'weights'"),
    ],
)
def test_unknown_commands_are_refused(text: str, sentence: str) -> None:
    with pytest.raises(CliError, match=sentence):
        repl.respond(client(), Session("m"), text)


def test_blanks_before_a_command_do_not_make_it_a_message() -> None:
    session = Session("m")
    repl.respond(client(), session, "  /set system be brief")
    assert session.system == "be brief"


class Showing(Client):
    def __init__(self) -> None:
        super().__init__(Address())

    def call(self, method: str, path: str, body: Json | None = None, **_: Any) -> Json:
        assert (method, path, body) == ("POST", "/api/show", {"model": "m"})
        stops = [f'{"stop":<30} "{word}"' for word in ("b", "a")]
        return {"system": "the model's", "parameters": "\n".join([f"{'num_ctx':<30} 2048", *stops])}


def test_show_tells_what_the_session_has_set(capsys: pytest.CaptureFixture[str]) -> None:
    session = Session("m")
    repl.respond(Showing(), session, "/show system")
    session.system = "be brief"
    repl.respond(Showing(), session, "/show system")
    assert capsys.readouterr().out == "the model's\nbe brief\n"
    session.options = {"num_ctx": 512, "temperature": 0.5}
    repl.respond(Showing(), session, "/show parameters")
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["num_ctx", "512"],
        ["stop", '"b"'],
        ["stop", '"a"'],
        ["temperature", "0.5"],
    ]
    session.options = {"stop": ["x", "y"]}
    repl.respond(Showing(), session, "/show parameters")
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == ["2048", '"x"', '"y"']


def test_a_full_window_names_the_two_ways_on(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    class Full(Session):
        def ask(self, client: Client, text: str) -> None:
            raise ApiError(400, PromptTooLong(270, 256).message if text == "long" else "busy")

    for text, told in (("long", True), ("short", False)):
        monkeypatch.setattr(sys, "stderr", errors := Terminal())
        repl.converse(client(), Full("m"), reader(text))
        shown = errors.getvalue()
        assert "Error: " in shown
        assert ("/clear" in shown, "/set parameter num_ctx N" in shown) == (told, told)


def test_a_blank_message_asks_nothing() -> None:
    repl.respond(client(), Session("m"), "   ")


def test_the_conversation_goes_on_after_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    session = Session("m")
    repl.converse(client(), session, reader("/nonsense", "/set system kept"))
    assert session.system == "kept"
    assert "Error: there is no command /nonsense" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["/bye", "/exit", "/quit", " /bye "])
def test_leaving(word: str) -> None:
    session = Session("m")
    repl.converse(client(), session, reader(word, "/set system never"))
    assert session.system is None


def test_ctrl_c_at_the_prompt_does_not_leave() -> None:
    session = Session("m")
    typed = reader("/set system kept")
    interrupts = iter([KeyboardInterrupt()])

    def read(prompt: str) -> str:
        for interrupt in interrupts:
            raise interrupt
        return typed(prompt)

    repl.converse(client(), session, read)
    assert session.system == "kept"
