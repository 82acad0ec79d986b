"""Where engines are looked for, and what is read from what they print. The search with processes is in
tests/integration."""

import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from daemon.errors import LoadFailed
from daemon.runner import embedded
from daemon.runner import engine as engines
from daemon.runner.engine import Engine, EngineFinder, devices_in, flags_in, version_in

HELP = """\
----- common params -----

-h,    --help, --usage                  print usage and exit
--version                               show version and build info
-m,    --model FNAME                    model path; not --path
-lm,   --load-mode MODE                 model loading mode (default: auto)
                                        - none: no special loading mode, as --no-mmap was
                                        use --list-devices to see a list
--spec-draft-type-k, -ctkd, --cache-type-k-draft TYPE
                                        KV cache data type
-ot,   --override-tensor <tensor name pattern>=<buffer type>,...
                                        override tensor buffer type
--ui,  --webui, --no-ui, --no-webui     whether to enable the Web UI
--cpu-strict <0|1>                      use strict CPU placement
--fim-qwen-1.5b-default                 use default Qwen
"""


CUDA = """\
ggml_cuda_init: found 2 CUDA devices:
  Device 0: NVIDIA H200, compute capability 9.0
Available devices:
  CUDA0: NVIDIA H200 (143167 MiB, 142000 MiB free)
  CUDA1: NVIDIA H200 (143167 MiB, 140000 MiB free)
"""


def test_flags_are_those_that_are_listed_not_those_that_are_mentioned() -> None:
    assert flags_in(HELP) == {
        "-h", "--help", "--usage", "--version", "-m", "--model", "-lm", "--load-mode",
        "--spec-draft-type-k", "-ctkd", "--cache-type-k-draft", "-ot", "--override-tensor",
        "--ui", "--webui", "--no-ui", "--no-webui", "--cpu-strict", "--fim-qwen-1.5b-default",
    }  # fmt: skip


def test_flags_of_the_wheels_own_help() -> None:
    options = {flag for action in embedded.parser()._actions for flag in action.option_strings}
    assert flags_in(embedded.parser().format_help()) == options
    assert {"--model", "--list-devices"} < options


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("version: 0.5.0-dev (build 11311, commit pypi)\nbuilt with GNU", "b11311 (pypi)"),
        ("warning: x\nversion: 11434 (0c1e570)\n", "b11434 (0c1e570)"),
        ("version: 2026.10.11549\n", "2026.10.11549"),
        ("version: b0-unknown", "b0-unknown"),
        ("", "unknown"),
    ],
)
def test_version(text: str, version: str) -> None:
    assert version_in(text) == version


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        ("Available devices:\n  (none)\n", ()),
        (
            CUDA,
            (
                "CUDA0: NVIDIA H200 (143167 MiB, 142000 MiB free)",
                "CUDA1: NVIDIA H200 (143167 MiB, 140000 MiB free)",
            ),
        ),
        ("", ()),
    ],
)
def test_devices(text: str, devices: tuple[str, ...]) -> None:
    assert devices_in(text) == devices


class _Kind:
    def __init__(self, name: str) -> None:
        self.name = f"GGML_BACKEND_DEVICE_TYPE_{name}"


def test_the_wheel_lists_its_devices_as_llama_server_does() -> None:
    device = {"description": "M4", "memory_total": 3 << 20, "memory_free": 2 << 20}
    cpu = {**device, "name": "CPU", "type": _Kind("CPU")}
    gpu = {**device, "name": "Metal", "type": _Kind("IGPU")}
    assert devices_in(embedded.devices([cpu])) == ()
    assert embedded.devices([cpu]) == "Available devices:\n  (none)"
    assert devices_in(embedded.devices([gpu, cpu])) == ("Metal: M4 (3 MiB, 2 MiB free)",)


@pytest.mark.parametrize(("devices", "cpu_only"), [((), True), (("CUDA0: x",), False), (None, False)])
def test_an_engine_has_only_the_cpu_where_it_lists_nothing_else(
    devices: tuple[str, ...] | None, cpu_only: bool
) -> None:
    assert Engine("built", ("/x",), "b1", frozenset(), devices).cpu_only is cpu_only


# ---- places

Find = Callable[..., list[tuple[str, str, str | None]]]


@pytest.fixture
def places(tmp_path: Path) -> Find:
    """What a finder would try: kind, name, and the program."""

    def places(choice: str, preferred: str = "") -> list[tuple[str, str, str | None]]:
        built = [
            ("the current build", tmp_path / "current/x"),
            ("the previous build", tmp_path / "previous/x"),
        ]
        finder = EngineFinder(choice, built, str(tmp_path / "bin"), tmp_path, lambda: preferred)
        return [
            (place.kind, place.shown, place.command[-1] if place.command else None)
            for place in finder.places()
        ]

    return places


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(0o755)
    return path


def test_the_order(places: Find) -> None:
    kinds = [kind for kind, _, _ in places("auto")]
    assert kinds == ["built", "built", "path", "wheel"]
    assert [kind for kind, _, _ in places("auto", "wheel")] == ["wheel", "built", "built", "path"]
    assert [kind for kind, _, _ in places("auto", "path")] == ["path", "built", "built", "wheel"]
    assert [kind for kind, _, _ in places("built", "wheel")] == ["built", "built"]
    assert [kind for kind, _, _ in places("path")] == ["path"]


def test_a_link_is_followed_when_it_is_looked_for(tmp_path: Path, places: Find) -> None:
    """A switch counts at the next search, and not for a command that was found before."""
    for name in ("a", "b"):
        program(tmp_path / name / "x")
    (tmp_path / "current").symlink_to("a")
    first = places("built")
    (tmp_path / "current").unlink()
    (tmp_path / "current").symlink_to("b")
    assert first[0] == ("built", "the current build", str(tmp_path.resolve() / "a/x"))
    assert places("built")[0][2] == str(tmp_path.resolve() / "b/x")
    assert places("built")[1] == ("built", "the previous build", None)


def test_the_other_places(tmp_path: Path, places: Find) -> None:
    there = program(tmp_path / "bin/llama-server")
    assert places("path") == [("path", "llama-server on PATH", str(there))]
    assert places(str(there)) == [("configured", "the configured path", str(there))]
    assert places("/no/such") == [("configured", "the configured path", None)]
    assert places("wheel") == [("wheel", "the xllamacpp wheel", embedded.__file__)]


def test_the_wheel_runs_on_this_python(tmp_path: Path) -> None:
    [place] = EngineFinder("wheel", (), "", tmp_path).places()
    assert place.command == (sys.executable, "-I", embedded.__file__)


# ---- what an engine is asked


class _Asked:
    """Stands for the process of an engine: `status` and `lines` for the help, the devices as the driver has them."""

    def __init__(self) -> None:
        self.flags: list[str] = []
        self.status = 0
        self.lines = ["--model FNAME", "--list-devices"]
        self.devices = "(none)"

    async def __call__(self, command: Sequence[str], *_: object) -> tuple[int, list[str]]:
        self.flags.append(command[-1])
        if command[-1] == "--list-devices":
            return 0, ["Available devices:", f"  {self.devices}"]
        return self.status, self.lines if command[-1] == "--help" else ["version: 7 (abc)"]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> _Asked:
    asked = _Asked()
    monkeypatch.setattr(engines, "output_of", asked)
    monkeypatch.setattr(engines, "DEVICE_FILES", tmp_path / "dev")
    return asked


async def test_an_engine_that_fails_is_told_with_its_last_line_and_no_path(
    asked: _Asked, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It reaches clients, also where a folder has a space in its name."""
    there = program(tmp_path / "jo smith/bin/llama-server")
    loader = "error while loading shared libraries: libmtmd.so.0: cannot open shared object file"
    asked.status, asked.lines = 127, ["noise", f"{there}: {loader}", "  "]
    with caplog.at_level(logging.WARNING, "mgr.engine"), pytest.raises(LoadFailed) as caught:
        await EngineFinder(str(there), (), "", tmp_path).find()
    said = f"its --help ended with status 127: llama-server: {loader}"
    assert caught.value.message == f"no engine was found; tried the configured path: {said}"
    assert caplog.messages == [f"no engine: the configured path ({there}): {said}"]


async def test_an_engine_that_fails_without_a_word(asked: _Asked, tmp_path: Path) -> None:
    there = program(tmp_path / "llama-server")
    asked.status, asked.lines = -4, []
    [finding] = await EngineFinder(str(there), (), "", tmp_path).survey()
    assert finding.reason == "its --help ended with status -4"


async def test_a_place_without_an_engine_is_logged_without_a_path(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "mgr.engine"), pytest.raises(LoadFailed):
        await EngineFinder("/no/such", (), "", tmp_path).find()
    assert caplog.messages == ["no engine: the configured path: not there"]


async def test_an_engine_that_saw_no_gpu_is_asked_again_when_a_driver_has_come(
    asked: _Asked, tmp_path: Path
) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/null").touch()
    finder = EngineFinder(str(program(tmp_path / "llama-server")), (), "", tmp_path)
    assert (await finder.find()).cpu_only
    (tmp_path / "dev/sda").touch()
    assert (await finder.find()).cpu_only
    assert len(asked.flags) == 3
    asked.devices = "CUDA0: H200"
    (tmp_path / "dev/nvidia0").touch()
    assert (await finder.find()).devices == ("CUDA0: H200",)
    assert len(asked.flags) == 6
    (tmp_path / "dev/nvidia-uvm").touch()  # which asking can bring about itself
    assert (await finder.find()).devices == ("CUDA0: H200",)
    assert len(asked.flags) == 6
