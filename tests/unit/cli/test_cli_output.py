import io
import json
import sys

import pytest

from cli import output


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_columns_are_four_spaces_apart_without_trailing_space() -> None:
    rows = [("NAME", "SIZE"), ("smollm2:135m", "98 MB"), ("b", "")]
    assert output.aligned(rows) == "NAME            SIZE\nsmollm2:135m    98 MB\nb"


def test_a_cell_cannot_break_the_table_or_steer_the_terminal() -> None:
    assert output.aligned([("a\nb\x1b[2J", "c")]) == "a b\ufffd[2J    c"


def test_printable_keeps_text_and_replaces_controls() -> None:
    assert output.printable("é\t世界\r\n") == "é\t世界\n"
    assert output.printable("\x1b]52;c;aGk=\x07\x9b2J\x7f") == "\ufffd]52;c;aGk=\ufffd\ufffd2J\ufffd"


def test_text_goes_to_a_pipe_as_it_is_and_to_a_terminal_without_controls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipe, terminal = io.StringIO(), Terminal()
    for stream in (pipe, terminal):
        monkeypatch.setattr(sys, "stdout", stream)
        output.write("a\x1b[31mb")
    assert pipe.getvalue() == "a\x1b[31mb"
    assert terminal.getvalue() == "a\ufffd[31mb"


def test_notes_are_for_terminals_and_announcements_for_everyone(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe, terminal = io.StringIO(), Terminal()
    for stream in (pipe, terminal):
        monkeypatch.setattr(sys, "stderr", stream)
        output.note("a note")
        output.announce("started")
    assert pipe.getvalue() == "started\n"
    assert terminal.getvalue() == "a note\nstarted\n"


def test_json_is_readable_utf8(capsys: pytest.CaptureFixture[str]) -> None:
    output.dump([{"name": "é"}])
    written = capsys.readouterr().out
    assert json.loads(written) == [{"name": "é"}]
    assert "é" in written
    assert written.endswith("]\n")
