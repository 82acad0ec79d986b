"""The command line as its users run it: a process, its exit code, and what it writes where."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.fakes.api_server import ApiServer, Reply, chat_lines, serving
from tests.integration.cli.command import GUARD, MGR, Mgr, free_port, outcome

# ---- one answer


def test_piped_output_is_the_models_text_and_one_line_feed(api: ApiServer, mgr: Mgr) -> None:
    assert outcome(mgr("run", "m", "repeat", stdin=b"hi\n")) == (0, "Hi there\n", "")
    assert api.bodies("/api/chat")[0]["messages"] == [{"role": "user", "content": "hi\n repeat"}]


def test_nothing_to_ask_is_an_error(api: ApiServer, mgr: Mgr) -> None:
    code, out, err = outcome(mgr("run", "m"))
    assert (code, out) == (1, "")
    assert err == "Error: there is no prompt; give one as an argument or on standard input\n"
    assert api.requests == []


def test_standard_input_without_end_is_refused(api: ApiServer, mgr: Mgr) -> None:
    most = 16 * 2**20
    sentence = "Error: standard input holds more than 16 MiB; give a shorter prompt\n"
    assert outcome(mgr("run", "m", stdin=b"y" * (most + 1))) == (1, "", sentence)
    assert api.requests == []
    assert mgr("run", "m", stdin=b"y" * most).returncode == 0


def test_options_reach_the_request(api: ApiServer, mgr: Mgr) -> None:
    sampling = ("--seed", "7", "--temperature", "0", "--num-ctx", "512", "--max-tokens", "9")
    done = mgr("run", "m", *sampling, "--keepalive", "1m", "--system", "brief", "--verbose", "hi")
    assert done.stdout == b"Hi there\n"
    assert done.stderr.decode().splitlines() == [
        "eval count:           2 token(s)",
        "eval duration:        1.00s",
        "eval rate:            2.00 tokens/s",
    ]
    body = api.bodies("/api/chat")[0]
    assert body["options"] == {"seed": 7, "temperature": 0.0, "num_ctx": 512, "num_predict": 9}
    assert body["keep_alive"] == "1m"
    assert body["messages"][0] == {"role": "system", "content": "brief"}


def test_an_empty_prompt_loads_the_model(api: ApiServer, mgr: Mgr) -> None:
    assert outcome(mgr("run", "m", "", "--keepalive", "-1")) == (0, "", "")
    assert api.bodies("/api/generate") == [{"model": "m", "keep_alive": -1, "stream": False}]


def test_a_missing_model_is_pulled_and_then_asked(api: ApiServer, mgr: Mgr) -> None:
    assert outcome(mgr("run", "smollm2", "hi")) == (0, "Hi there\n", "pulling 'smollm2'\n")
    assert api.bodies("/api/pull") == [{"model": "smollm2", "stream": True}]
    assert api.bodies("/api/chat")[0]["model"] == "stored:135m"


def test_an_error_line_in_the_stream_fails_after_the_text(api: ApiServer, mgr: Mgr) -> None:
    lines = [*chat_lines("Hi")[:1], {"error": "the engine stopped"}]
    api.routes["POST /api/chat"] = Reply(lines=lines)
    assert outcome(mgr("run", "m", "hi")) == (1, "Hi\n", "Error: the engine stopped\n")


@pytest.mark.parametrize("cut", [True, False])
def test_a_stream_that_stops_in_the_middle_fails(api: ApiServer, mgr: Mgr, cut: bool) -> None:
    api.routes["POST /api/chat"] = Reply(lines=chat_lines("Hi")[:1], cut=cut)
    code, out, err = outcome(mgr("run", "m", "hi"))
    assert (code, out) == (1, "Hi\n")
    assert re.fullmatch(r"Error: .* (ended early|before its answer)\n", err)


def test_text_with_line_separators_and_escapes_is_piped_unchanged(api: ApiServer, mgr: Mgr) -> None:
    text = "a\u2028b\u0085c\x1b[1m\U0001f600"
    api.routes["POST /api/chat"] = Reply(lines=chat_lines(text))
    assert outcome(mgr("run", "m", "hi")) == (0, f"{text}\n", "")


def test_a_reader_that_goes_away_ends_the_command_quietly(
    api: ApiServer, environment: dict[str, str]
) -> None:
    api.routes["POST /api/chat"] = Reply(lines=chat_lines("first", "second"), hold_after=1)
    with subprocess.Popen(
        [*MGR, "run", "m", "hi"],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert os.read(process.stdout.fileno(), 100) == b"first"
        process.stdout.close()
        api.release()
        assert process.stderr.read() == b""
        assert process.wait(GUARD) == 141


def test_ctrl_c_ends_with_130(api: ApiServer, environment: dict[str, str]) -> None:
    api.routes["POST /api/chat"] = Reply(lines=chat_lines("first", "second"), hold_after=1)
    with subprocess.Popen(
        [*MGR, "run", "m", "hi"],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert os.read(process.stdout.fileno(), 100) == b"first"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=GUARD)
    assert (process.returncode, out, err) == (130, b"\n", b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize(
    ("argument", "sentence"),
    [
        ("list", b"Error: cannot write the output: No space left on device\n"),
        ("--version", b"Error: cannot write the output: No space left on device\n"),
        ("--help", b"Error: No space left on device\n"),
    ],
)
def test_a_full_disk_is_one_sentence(
    api: ApiServer, environment: dict[str, str], argument: str, sentence: bytes
) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*MGR, argument], env=environment, stdout=full, stderr=subprocess.PIPE, timeout=GUARD, check=False
        )
    assert (done.returncode, done.stderr) == (1, sentence)


# ---- the other commands


def test_list_in_a_table_and_as_json(api: ApiServer, mgr: Mgr) -> None:
    assert outcome(mgr("list")) == (
        0,
        "NAME        ID              SIZE    MODIFIED\nm:latest    abcdef012345    2 KB    -\n",
        "",
    )
    assert json.loads(mgr("ls", "--json").stdout)[0]["name"] == "m:latest"


def test_ps_has_an_engine_column_only_where_there_is_one(api: ApiServer, mgr: Mgr) -> None:
    assert b"ENGINE" not in mgr("ps").stdout
    api.routes["GET /api/ps"] = Reply({"models": [{"name": "a", "engine": "wheel"}]})
    header, row = mgr("ps").stdout.decode().splitlines()
    assert header.endswith("ENGINE")
    assert row.endswith("wheel")


def test_show_and_its_parts(api: ApiServer, mgr: Mgr) -> None:
    assert outcome(mgr("show", "m")) == (0, "  Model\n    architecture    llama\n", "")
    assert outcome(mgr("show", "m", "--modelfile")) == (0, "FROM x\n", "")
    assert json.loads(mgr("show", "m", "--json").stdout)["details"] == {"family": "llama"}


def test_pull_prints_the_stored_name(api: ApiServer, mgr: Mgr) -> None:
    assert outcome(mgr("pull", "smollm2", "--name", "mine", "--force")) == (0, "stored:135m\n", "")
    assert api.bodies("/api/pull") == [{"model": "smollm2", "as": "mine", "replace": True, "stream": True}]


def test_pull_of_a_file_sends_its_absolute_url(api: ApiServer, mgr: Mgr, tmp_path: Path) -> None:
    (tmp_path / "a b.gguf").touch()
    mgr("pull", "./a b.gguf")
    assert api.bodies("/api/pull")[0]["model"] == f"{tmp_path.as_uri()}/a%20b.gguf"


@pytest.mark.parametrize("command", [["pull"], ["run"]])
def test_a_file_that_is_not_there_is_not_asked_for(api: ApiServer, mgr: Mgr, command: list[str]) -> None:
    sentence = "Error: cannot pull './nope.gguf': no such file\n"
    assert outcome(mgr(*command, "./nope.gguf", stdin=b"hi")) == (1, "", sentence)
    assert api.requests == []


def test_a_pull_that_ends_without_success_fails(api: ApiServer, mgr: Mgr) -> None:
    api.routes["POST /api/pull"] = Reply(lines=[{"status": "pulling manifest"}])
    code, out, err = outcome(mgr("pull", "x"))
    assert (code, out) == (1, "")
    assert "the pull of 'x' ended early" in err


def test_stop_unloads_one_or_all(api: ApiServer, mgr: Mgr) -> None:
    assert outcome(mgr("stop", "m")) == (0, "", "")
    assert outcome(mgr("stop", "--all")) == (0, "", "")
    bodies = api.bodies("/api/generate")
    assert [body["model"] for body in bodies] == ["m", "a", "b"]
    assert all(body["keep_alive"] == 0 and body["prompt"] == "" for body in bodies)


def test_rm_stops_at_the_first_error_and_says_what_is_gone(api: ApiServer, mgr: Mgr) -> None:
    sentence = "Error: model 'unknown' not found"
    assert outcome(mgr("rm", "unknown", "m")) == (1, "", f"{sentence}\n")
    gone = "(deleted before it: m, stored:135m)"
    assert outcome(mgr("rm", "m", "stored:135m", "unknown", "m")) == (1, "", f"{sentence} {gone}\n")
    deleted = [body["model"] for body in api.bodies("/api/delete")]
    assert deleted == ["unknown", "m", "stored:135m", "unknown"]


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["show", "unknown"], 1, "Error: model 'unknown' not found\n"),
        (["stop", "unknown"], 1, 'Error: couldn\'t find model "unknown" to stop\n'),
        (["stop", "--daemon"], 1, "is not mgr; stop it in its own way\n"),
        (["stop"], 2, "Error: say what to stop: a model, --all or --daemon\n"),
        (["stop", "m", "--all"], 2, "Error: say what to stop: a model, --all or --daemon\n"),
        (["show", "m", "--system", "--license"], 2, "Error: only one part can be shown at a time\n"),
        (["run", "m", "hi", "--keepalive", "soon"], 2, 'Error: --keepalive: "soon" is not a duration'),
        (["run"], 2, "Error: Missing argument"),
        (["pull", "smollm2", "--name", ""], 2, "Error: --name is empty"),
        (["list", "--nonsense"], 2, "No such option"),
        (["frobnicate"], 2, "No such command"),
    ],
)
def test_exit_codes(api: ApiServer, mgr: Mgr, arguments: list[str], code: int, sentence: str) -> None:
    returned, out, err = outcome(mgr(*arguments, stdin=b"x"))
    assert (returned, out) == (code, "")
    assert sentence in err
    assert "Traceback" not in err


def test_a_wrong_setting_ends_with_78(mgr: Mgr) -> None:
    code, out, err = outcome(mgr("serve", "--log-level", "loud"))
    assert (code, out) == (78, "")
    assert err.startswith("Error: --log-level is 'loud': must be one of")
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", [["list"], ["ps"], ["show", "m"], ["stop", "m"], ["rm", "m"]])
def test_without_a_daemon_there_is_nothing_to_look_at(mgr: Mgr, command: list[str]) -> None:
    address = f"127.0.0.1:{free_port()}"
    sentence = f"Error: mgr is not running on {address}; start it with `mgr serve`\n"
    assert outcome(mgr(*command, MGR_HOST=address)) == (1, "", sentence)


def test_a_refusal_is_shown_in_the_servers_words(api: ApiServer, mgr: Mgr) -> None:
    api.routes["GET /api/tags"] = Reply({"error": {"message": "not from there", "type": "x"}}, 403)
    assert outcome(mgr("list")) == (1, "", "Error: not from there\n")


def test_the_key_is_sent_and_its_setting_is_named_when_it_is_refused(api: ApiServer, mgr: Mgr) -> None:
    api.routes["GET /api/tags"] = Reply({"error": "send `Authorization: Bearer KEY`"}, 401)
    sentence = f"Error: the server on {api.address} wants a valid API key; set MGR_API_KEY to it\n"
    assert outcome(mgr("list", MGR_API_KEY="k-1")) == (1, "", sentence)
    assert api.requests[0].headers["Authorization"] == "Bearer k-1"


def test_a_server_that_is_something_else(api: ApiServer, mgr: Mgr) -> None:
    api.routes["GET /api/tags"] = Reply(lines=["text"])
    assert "does not speak this API" in mgr("list").stderr.decode()
    del api.routes["GET /api/tags"]
    assert outcome(mgr("list")) == (1, "", "Error: 404 page not found\n")


def test_a_unix_socket(mgr: Mgr, tmp_path: Path) -> None:
    path = tmp_path / "mgr.sock"
    with serving({"GET /api/tags": Reply({"models": []})}, path) as server:
        assert outcome(mgr("list", "--json", MGR_HOST=str(path))) == (0, "[]\n", "")
    assert server.requests[0].headers["Host"] == "localhost"


# ---- stop --daemon


def test_without_a_daemon_there_is_none_to_stop(mgr: Mgr) -> None:
    address = f"127.0.0.1:{free_port()}"
    assert outcome(mgr("stop", "--daemon", MGR_HOST=address)) == (
        1,
        "",
        f"Error: no daemon runs on {address}\n",
    )


def test_a_process_that_is_not_the_daemon_is_never_stopped(api: ApiServer, mgr: Mgr) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as bystander:
        told = facts(bystander.pid)
        for wrong in ({"started": told["started"] - 60}, {"boot_id": "another"}, {"pid": os.getpid()}):
            api.routes["GET /api/version"] = Reply({"version": "0.12.0", "mgr": {**told, **wrong}})
            done = mgr("stop", "--daemon")
            assert done.returncode == 1
            assert done.stderr.startswith(b"Error: the mgr on")
        assert bystander.poll() is None
        bystander.communicate(b"\n", timeout=GUARD)
        assert bystander.returncode == 0


def test_the_daemon_is_asked_to_end_and_waited_for(api: ApiServer, mgr: Mgr) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as daemon:
        api.routes["GET /api/version"] = Reply({"version": "0.12.0", "mgr": facts(daemon.pid)})
        assert outcome(mgr("stop", "--daemon")) == (0, "", "")
        assert daemon.wait(GUARD) == -signal.SIGTERM


def facts(pid: int) -> dict[str, Any]:
    boot = Path("/proc/sys/kernel/random/boot_id")
    started = psutil.Process(pid).create_time()
    return {"pid": pid, "started": started, "boot_id": boot.read_text().strip() if boot.exists() else None}
