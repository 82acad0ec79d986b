"""The official clients of Python, and those of Node in one process: the same calls, answered in plain JSON."""

import inspect
import json
import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, Protocol, Self, TypeAlias

import anthropic
import httpx
import ollama
import openai
from pydantic import BaseModel

from tests.fakes.daemon import GUARD_SECONDS

Mode: TypeAlias = Literal["whole", "items", "stream", "helper", "abort-whole", "abort-stream"]
Reply: TypeAlias = dict[str, Any]

NODE = Path(__file__).with_name("node")
_ABORT_AFTER_SECONDS = 0.4
_FINAL = ("get_final_completion", "get_final_response", "get_final_message")


class Clients(Protocol):
    """`method` is a dotted name; the reply has `whole`, `pieces`, `error` or `aborted`, as the mode asks."""

    def call(self, client: str, method: str, mode: Mode, *args: Any, **params: Any) -> Reply: ...


class PythonClients:
    def __init__(self, url: str) -> None:
        self._clients = _make(url, None)
        self._impatient = _make(url, _ABORT_AFTER_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for client in [*self._clients.values(), *self._impatient.values()]:
            client.close()

    def call(self, client: str, method: str, mode: Mode, *args: Any, **params: Any) -> Reply:
        clients = self._impatient if mode == "abort-whole" else self._clients
        function = clients[client]
        for name in method.split("."):
            function = getattr(function, name)
        try:
            return _MODES[mode](lambda: function(*args, **_known(function, params)))
        except (ollama.ResponseError, openai.APIStatusError, anthropic.APIStatusError) as error:
            body = error.error if isinstance(error, ollama.ResponseError) else error.body
            return {"error": {"name": type(error).__name__, "status": error.status_code, "body": body}}


def _make(url: str, timeout: float | None) -> dict[str, Any]:
    common: dict[str, Any] = {"api_key": "none", "max_retries": 0, "timeout": timeout or GUARD_SECONDS}
    return {
        "ollama": ollama.Client(url, timeout=timeout),
        "openai": openai.OpenAI(base_url=f"{url}/v1", **common),
        "anthropic": anthropic.Anthropic(base_url=url, **common),
    }


def _known(function: Callable[..., Any], params: dict[str, Any]) -> dict[str, Any]:
    """Fields of an API that a client's method has no name for go the way it offers for those."""
    names = inspect.signature(function).parameters
    if "extra_body" not in names:
        return params
    other = {name: value for name, value in params.items() if name not in names}
    return {**{name: value for name, value in params.items() if name in names}, "extra_body": other}


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_unset=True, warnings=False, by_alias=True)
    return value


def _pieces(stream: Iterable[Any]) -> list[Any]:
    return [_plain(piece) for piece in stream]


def _helped(call: Callable[[], Any]) -> Reply:
    with call() as stream:
        pieces = _pieces(stream)
        [final] = [name for name in _FINAL if hasattr(stream, name)]
        return {"pieces": pieces, "whole": _plain(getattr(stream, final)())}


def _aborted_whole(call: Callable[[], Any]) -> Reply:
    try:
        return {"whole": _plain(call())}
    except (httpx.TimeoutException, openai.APITimeoutError, anthropic.APITimeoutError):
        return {"aborted": True}


def _aborted_stream(call: Callable[[], Any]) -> Reply:
    stream = call()
    next(iter(stream))
    stream.close()
    return {"aborted": True}


_MODES: dict[Mode, Callable[[Callable[[], Any]], Reply]] = {
    "whole": lambda call: {"whole": _plain(call())},
    "items": lambda call: {"whole": _pieces(call())},
    "stream": lambda call: {"pieces": _pieces(call())},
    "helper": _helped,
    "abort-whole": _aborted_whole,
    "abort-stream": _aborted_stream,
}


class NodeClients:
    """One process for all calls."""

    def __init__(self, url: str) -> None:
        node = shutil.which("node")
        assert node is not None
        self._process = subprocess.Popen(
            [node, NODE / "driver.mjs", url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._process as process:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(GUARD_SECONDS)

    def call(self, client: str, method: str, mode: Mode, *args: Any, **params: Any) -> Reply:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        arguments = [*args, params] if params else [*args]
        line = json.dumps({"client": client, "method": method, "mode": mode, "args": arguments})
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the process of the Node clients has ended"
        reply = json.loads(answer)
        assert isinstance(reply, dict)
        return reply


def why_no_node() -> str | None:
    """Why the clients of Node cannot be driven here, or None."""
    if shutil.which("node") is None:
        return "there is no node on PATH"
    if not (NODE / "node_modules").is_dir():
        return "its packages are not installed: npm ci --prefix tests/engine/matrix/node"
    return None
