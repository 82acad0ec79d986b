from collections.abc import Callable

import pytest

from cli import repl
from cli.client import Client
from cli.errors import CliError
from cli.session import Session
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
        (['say """ three times'], 'say """ three times'),
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
        ("/set colour red", "write /set parameter"),
        ("/show weights", "there is no part 'weights'"),
    ],
)
def test_unknown_commands_are_refused(text: str, sentence: str) -> None:
    with pytest.raises(CliError, match=sentence):
        repl.respond(client(), Session("m"), text)


def test_a_blank_message_asks_nothing() -> None:
    repl.respond(client(), Session("m"), "   ")


def test_the_conversation_goes_on_after_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    session = Session("m")
    repl.converse(client(), session, reader("/nonsense", "/set system kept"))
    assert session.system == "kept"
    assert "Error: there is no command /nonsense" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["/bye", "/exit", " /bye "])
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
