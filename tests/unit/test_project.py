"""Rules of the project that a reader could break without noticing."""

import re
import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from daemon.engines.cuda import PACKAGES, PACKAGES_VERSION
from daemon.settings import Settings

ROOT = Path(__file__).parents[2]
CODE = sorted([*ROOT.glob("daemon/**/*.py"), *ROOT.glob("cli/**/*.py")])
PYTHON = sorted([*CODE, *ROOT.glob("tests/**/*.py")])

# The edge, where settings are read once, and where the environment of a child is built.
READS_ENVIRONMENT = {
    "settings.py",
    "server.py",
    "runner.py",
    "engine.py",
    "package.py",
    "embedded.py",
    "autostart.py",
    "build.py",
    "quantize.py",
}


def test_imports_point_down() -> None:
    """Must hold: import-linter's contract passes; a contract of layers has no cycle."""
    # A process of its own, as it sets up logging.
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    told = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    assert told.returncode == 0, told.stdout


def test_no_file_is_long() -> None:
    """Must hold: no file over 600 lines."""
    assert {path.name: count for path in PYTHON if (count := len(path.read_text().splitlines())) > 600} == {}


@pytest.mark.parametrize(
    ("pattern", "allowed"),
    [
        (r"os\.environ|os\.getenv", READS_ENVIRONMENT),
        (r"BaseHTTPMiddleware|aiter_lines|preexec_fn|shell=True|trust_remote_code", set()),
        (r"except:|except BaseException:\s*pass", set()),
        (r"pypi\.org|pythonhosted|files\.python", set()),
        # wall-clock time is for display, and for the ages of files
        (r"time\.time\(", {"streaming.py", "inference.py", "blobs.py"}),
        (r"httpx\.(Async)?Client\(", {"transfer.py"}),
    ],
)
def test_what_must_not_spread(pattern: str, allowed: set[str]) -> None:
    found = {path.name for path in CODE if re.search(pattern, path.read_text())}
    assert found <= allowed


def test_the_state_of_an_engine_changes_in_one_place() -> None:
    runner = [path for path in CODE if path.parent.name == "runner"]
    writers = {path.name: path.read_text().count("self._state = ") for path in runner}
    assert {name: count for name, count in writers.items() if count} == {
        "runner.py": 2
    }  # `__init__`, `_move`


def test_the_readme_lists_every_setting() -> None:
    table = (ROOT / "README.md").read_text()
    rows = re.findall(r"^\| ([A-Z_, ]+?) (\* )?\|", table, re.MULTILINE)
    listed = {name.lower(): bool(star) for names, star in rows for name in names.split(", ")}
    assert listed == {field.name: field.metadata["ollama"] for field in fields(Settings)}


def test_the_extra_of_cuda_is_what_a_build_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {requirement.partition("; ")[0] for requirement in project["optional-dependencies"]["cuda"]}
    assert names == {f"{name}=={PACKAGES_VERSION}" for name in PACKAGES}


def test_the_engines_source_is_pinned() -> None:
    modules = (ROOT / ".gitmodules").read_text()
    assert "path = native/llama.cpp" in modules
    assert "https://github.com/ggml-org/llama.cpp.git" in modules
