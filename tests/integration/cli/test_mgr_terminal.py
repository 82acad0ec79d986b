"""The command line with a person at a terminal."""

import os
import pty
import readline
import signal
import subprocess
import threading

import pytest

from tests.fakes.api_server import ApiServer, Reply, chat_lines
from tests.integration.cli.command import GUARD, MGR


def at_terminal(
    environment: dict[str, str], arguments: list[str], typed: list[tuple[bytes, bytes]]
) -> tuple[int, bytes]:
    """Runs mgr with a terminal for all three streams. `typed`: what to wait for, and what to type then.

    Returns the exit code and everything that the terminal showed.
    """
    keyboard, terminal = pty.openpty()
    with subprocess.Popen(
        [*MGR, *arguments],
        env=environment,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    ) as process:
        os.close(terminal)
        guard = threading.Timer(GUARD, process.kill)
        guard.start()
        shown, seen_to = b"", 0
        left = list(typed)
        while True:
            try:
                chunk = os.read(keyboard, 4096)
            except OSError:  # Linux says so when the last holder of a terminal has gone
                break
            if not chunk:
                break
            shown += chunk
            while left and left[0][0] in shown[seen_to:]:
                awaited, text = left.pop(0)
                seen_to = shown.index(awaited, seen_to) + len(awaited)
                if text == b"\x03":
                    process.send_signal(signal.SIGINT)
                else:
                    os.write(keyboard, text)
        guard.cancel()
        os.close(keyboard)
        return process.wait(GUARD), shown


def test_a_pull_draws_its_progress_at_a_terminal(api: ApiServer, environment: dict[str, str]) -> None:
    code, shown = at_terminal(environment, ["pull", "smollm2"], [])
    assert code == 0
    assert b"pulling manifest" in shown
    assert b"pulling aabbcc" in shown
    assert b"100/100 bytes" in shown
    assert shown.rstrip().endswith(b"stored:135m")


def test_an_escape_sequence_of_a_model_does_not_reach_the_terminal(
    api: ApiServer, environment: dict[str, str]
) -> None:
    api.routes["POST /api/chat"] = Reply(lines=chat_lines("a\x1b]0;title\x07b"))
    code, shown = at_terminal(environment, ["run", "m", "hi"], [])
    assert (code, shown) == (0, "a\ufffd]0;title\ufffdb\r\n".encode())


def test_a_conversation(api: ApiServer, environment: dict[str, str]) -> None:
    typed = [
        (b">>> ", b"first\r"),
        (b"Hi there", b""),
        (b">>> ", b"/set system brief\r"),
        (b">>> ", b'"""second\r'),
        (b"... ", b'line"""\r'),
        (b"Hi there", b""),
        (b">>> ", b"\x04"),
    ]
    code, shown = at_terminal(environment, ["run", "m"], typed)
    assert code == 0, shown.decode()
    assert api.bodies("/api/chat")[1]["messages"] == [
        {"role": "system", "content": "brief"},
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "Hi there\n"},
        {"role": "user", "content": "second\nline"},
    ]


@pytest.mark.skipif("libedit" in (readline.__doc__ or ""), reason="only GNU readline knows of pastes")
def test_lines_that_are_pasted_together_are_one_message(api: ApiServer, environment: dict[str, str]) -> None:
    typed = [
        (b">>> ", b"\x1b[200~first\nsecond\n/bye\x1b[201~\r"),
        (b"Hi there", b""),
        (b">>> ", b"\x04"),
    ]
    code, shown = at_terminal(environment, ["run", "m"], typed)
    assert code == 0, shown.decode()
    assert b"\x1b[?2004h" in shown  # what makes a terminal mark where a paste begins and ends
    messages = [body["messages"] for body in api.bodies("/api/chat")]
    assert messages == [[{"role": "user", "content": "first\nsecond\n/bye"}]]


def test_stop_tells_a_person_whether_the_model_was_loaded(
    api: ApiServer, environment: dict[str, str]
) -> None:
    assert at_terminal(environment, ["stop", "a"], []) == (0, b"stopped 'a'\r\n")
    assert at_terminal(environment, ["stop", "m"], []) == (0, b"'m' was not loaded\r\n")


def test_ctrl_c_stops_the_answer_and_not_the_conversation(
    api: ApiServer, environment: dict[str, str]
) -> None:
    api.routes["POST /api/chat"] = Reply(lines=chat_lines("first", "second"), hold_after=1)
    typed = [(b">>> ", b"go\r"), (b"first", b"\x03"), (b">>> ", b"/bye\r")]
    code, shown = at_terminal(environment, ["run", "m"], typed)
    assert code == 0, shown.decode()
    assert b"second" not in shown
