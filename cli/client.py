"""Requests to the daemon, in the native API's words: JSON in, JSON or NDJSON out.

The standard library's client, because importing a larger one takes longer than most commands; it reads no proxy
variables, so that a prompt never leaves for a proxy. Every error of the transport becomes a CliError here.
"""

import http.client
import json
import socket
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from cli.errors import ApiError, CliError, NotRunning
from daemon.framing import FramingError, NdjsonDecoder, to_json
from daemon.settings import Address, Settings, load

Json = dict[str, Any]

CONNECT_TIMEOUT = 10.0
ANSWER_TIMEOUT = 60.0  # for what needs no model: lists, details, removal
_CHUNK = 64 * 1024


class Client:
    """One server. Durations are seconds. Every method raises NotRunning, ApiError, or CliError."""

    def __init__(self, address: Address, api_key: str | None = None) -> None:
        self.address = address
        self._headers = {"Content-Type": "application/json", "User-Agent": "mgr"}
        if api_key is not None:
            if not (api_key.isascii() and api_key.isprintable()):
                raise CliError("the API key holds characters that no header can carry; check MGR_API_KEY")
            self._headers["Authorization"] = f"Bearer {api_key}"

    def call(
        self, method: str, path: str, body: Json | None = None, *, timeout: float | None = ANSWER_TIMEOUT
    ) -> Json:
        """The JSON object that answers; {} for an empty answer. `timeout` None waits as long as it takes."""
        with self._translated(), closing(self._connection()) as connection:
            data = self._send(connection, method, path, body, timeout).read()
            value = json.loads(data) if data.strip() else {}
        if not isinstance(value, dict):
            raise CliError(f"the server on {self.address} does not speak this API: {path} is not an object")
        return value

    def stream(self, path: str, body: Json) -> Generator[Json, None, None]:
        """The lines that answer, as they come. An error line is raised as ApiError; close it to cancel."""
        decoder = NdjsonDecoder()
        with self._translated(), closing(self._connection()) as connection:
            response = self._send(connection, "POST", path, {**body, "stream": True}, None)
            while chunk := response.read1(_CHUNK):
                for line in decoder.feed(chunk):
                    yield _checked(line, response.status)
            for line in decoder.flush():
                yield _checked(line, response.status)

    def version(self) -> Json:
        """`{"version": ...}`, with an object "mgr" where the server is mgr."""
        return self.call("GET", "/api/version", timeout=CONNECT_TIMEOUT)

    def _connection(self) -> http.client.HTTPConnection:
        address = self.address
        if address.socket is not None:
            return _SocketConnection(address.socket)
        return http.client.HTTPConnection(address.connect_host, address.port, timeout=CONNECT_TIMEOUT)

    def _send(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: Json | None,
        timeout: float | None,
    ) -> http.client.HTTPResponse:
        connection.connect()
        connection.sock.settimeout(timeout)
        connection.request(method, path, _encoded(body), self._headers)
        response = connection.getresponse()
        if response.status == 401:
            raise ApiError(401, f"the server on {self.address} wants a valid API key; set MGR_API_KEY to it")
        if response.status >= 400:
            raise ApiError(response.status, _reason(response))
        return response

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (ConnectionRefusedError, FileNotFoundError):
            raise NotRunning(self.address) from None
        except TimeoutError:
            raise CliError(f"the server on {self.address} does not answer") from None
        except (FramingError, ValueError):
            raise CliError(f"the server on {self.address} does not speak this API: no JSON came") from None
        except (http.client.HTTPException, ConnectionError):
            raise CliError(f"the server on {self.address} ended the connection before its answer") from None
        except OSError as error:
            raise CliError(f"cannot reach {self.address}: {error.strerror or error}") from None


class _SocketConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=CONNECT_TIMEOUT)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _encoded(body: Json | None) -> bytes | None:
    try:
        return None if body is None else to_json(body)
    except ValueError:
        raise CliError("the text is not UTF-8, so it cannot be sent") from None


def _checked(line: object, status: int) -> Json:
    if not isinstance(line, dict):
        raise FramingError("a line is not an object")
    if "error" in line:
        raise ApiError(status, _sentence(line["error"]) or "the server failed without a reason")
    return line


def _reason(response: http.client.HTTPResponse) -> str:
    try:
        said = _sentence(json.loads(response.read())["error"])
    except (ValueError, TypeError, KeyError):
        said = ""
    return said or f"the server answered {response.status} {response.reason}".rstrip()


def _sentence(error: object) -> str:
    """Ollama's errors are a string, those of the other families an object with a message."""
    if isinstance(error, dict):
        error = error.get("message")
    return error.strip() if isinstance(error, str) else ""


def connect(settings: Settings | None = None) -> Client:
    """The server that the settings name; nothing is sent yet. Raises Misconfigured."""
    settings = settings or load()
    return Client(settings.host, settings.api_key)
