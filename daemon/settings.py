"""Every setting, once: name, type, default, meaning. The only reader of the process's environment.

Precedence: flag, then `MGR_<NAME>`, then `OLLAMA_<NAME>` where Ollama has the same setting, then the file
`mgr/config.toml` in the platform's configuration folder (keys in lower case), then the default.
"""

import ipaddress
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import platformdirs

from daemon.durations import parse_keep_alive
from daemon.errors import Misconfigured

DEFAULT_PORT = 11434

_HOST_PORT = re.compile(r"(?:\[([^\[\]]+)\]|([A-Za-z0-9._-]*))(?::([0-9]{1,5}))?")
_HOST_NAME = re.compile(r"[A-Za-z0-9._-]+")
# An origin has no path, and may have one `*`, as in OLLAMA_ORIGINS.
_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^/*\s]*\*?[^/*\s]*", re.IGNORECASE)
_WHOLE = re.compile(r"[0-9]{1,10}")


@dataclass(frozen=True, slots=True)
class Address:
    """Where the daemon listens: TCP `host` and `port`, or the path of a Unix `socket`. `host` "" is every address."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    socket: Path | None = None

    @classmethod
    def parse(cls, text: str) -> "Address":
        """`[http://]host[:port]`, `:port`, `[v6]:port`, or a path that ends in `.sock`.

        The rules are those of OLLAMA_HOST, except that https and a bad value are errors. Raises ValueError.
        """
        if text.endswith(".sock"):
            return cls(socket=Path(text.removeprefix("unix://")).expanduser().absolute())
        scheme, separator, rest = text.rpartition("://")
        if separator and scheme.lower() != "http":
            raise ValueError("mgr speaks plain HTTP; use http://, and put a proxy in front for https")
        host_port = rest.partition("/")[0]
        return cls(*_split_port(host_port, 80 if separator else DEFAULT_PORT)) if host_port else cls()

    @property
    def is_loopback(self) -> bool:
        if self.socket is not None or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def connect_host(self) -> str:
        """The host a client on this machine connects to."""
        return {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)

    @property
    def url(self) -> str:
        """Base URL for a client on this machine; for a Unix socket a placeholder host."""
        if self.socket is not None:
            return "http://localhost"
        host = f"[{self.connect_host}]" if ":" in self.connect_host else self.connect_host
        return f"http://{host}:{self.port}"

    def __str__(self) -> str:
        if self.socket is not None:
            return str(self.socket)
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _split_port(text: str, default: int) -> tuple[str, int]:
    if _is_ipv6(text):
        return text, default
    match = _HOST_PORT.fullmatch(text)
    port = default if match is None or match[3] is None else int(match[3])
    if match is None or (match[1] and not _is_ipv6(match[1])) or port > 65535:
        raise ValueError("write it like 127.0.0.1:11434, :11434, [::1]:11434 or /path/to/mgr.sock")
    return (match[1] or match[2]).lower(), port


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


# ---- reading one value; each takes text or a TOML value and raises ValueError with a sentence


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("must be text, not empty")
    return value.strip()


def _address(value: object) -> Address:
    return Address.parse(_text(value))


def _path(value: object) -> Path:
    return Path(_text(value)).expanduser().absolute()


def _count(value: object) -> int:
    if isinstance(value, str) and _WHOLE.fullmatch(value.strip()):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
        raise ValueError("must be a whole number, 0 or more")
    return value


def _keep_alive(value: object) -> float:
    """Seconds, also where text holds a bare number; a negative one is infinity."""
    if isinstance(value, str) and _WHOLE.fullmatch(value.strip().removeprefix("-")):
        value = int(value)
    try:
        seconds = parse_keep_alive(value)
    except ValueError:
        seconds = None
    if seconds is None:
        raise ValueError('must be a duration like "5m" or a number of seconds; a negative one means no limit')
    return seconds


def _limit(value: object) -> float:
    seconds = _keep_alive(value)
    if seconds == 0:
        raise ValueError('must be a duration like "5m", longer than zero; a negative one means no limit')
    return seconds


def _drain(value: object) -> float:
    seconds = _keep_alive(value)
    if seconds > 8:
        raise ValueError("must be between 0s and 8s, so that the whole stop ends within 10 s")
    return seconds


def _words(value: object) -> tuple[str, ...]:
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise ValueError("must be a list of words, separated by commas")
    return tuple(item.strip().lower() for item in items if item.strip())


def _origins(value: object) -> tuple[str, ...]:
    for origin in (origins := _words(value)):
        if not _ORIGIN.fullmatch(origin):
            raise ValueError(
                f"{origin!r} is not an origin; write it like https://chat.example or app://*, or *"
            )
    return origins


def _hosts(value: object) -> tuple[str, ...]:
    for host in (hosts := _words(value)):
        if not (_HOST_NAME.fullmatch(host) or _is_ipv6(host)):
            raise ValueError(f"{host!r} is not a host name; write it without scheme and port")
    return hosts


def _one_of(*choices: str) -> Callable[[object], str]:
    def read(value: object) -> str:
        text = _text(value).lower()
        if text not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return text

    return read


def _url(value: object) -> str:
    text = _text(value).rstrip("/")
    if not re.fullmatch(r"https?://[^/\s]+(/\S*)?", text):
        raise ValueError("must be an http:// or https:// URL")
    return text


def _setting(
    read: Callable[[object], Any],
    default: Any,
    meaning: str,
    *,
    ollama: bool = False,
    also: str = "",
    secret: bool = False,
) -> Any:
    """`ollama`: OLLAMA_<NAME> is read too; `also`: another variable that other tools use for the same; `secret`: the
    value is never shown."""
    metadata = {"read": read, "meaning": meaning, "ollama": ollama, "also": also}
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata, repr=not secret)


def _default_models() -> Path:
    return platformdirs.user_data_path("mgr") / "models"


def _default_engines() -> Path:
    return platformdirs.user_data_path("mgr") / "engines"


def _default_shortnames() -> Path:
    return platformdirs.user_config_path("mgr") / "shortnames.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the daemon and the command line are told from outside. Durations are seconds, infinity is no limit."""

    host: Address = _setting(_address, Address, "address, or a path that ends in .sock", ollama=True)
    models: Path = _setting(_path, _default_models, "root of the model store", ollama=True)
    max_queue: int = _setting(_count, 512, "requests that may wait for a load; more get 503", ollama=True)
    max_loaded_models: int = _setting(_count, 0, "engines at once; 0 is automatic", ollama=True)
    num_parallel: int = _setting(_count, 0, "slots of each model; 0 is automatic", ollama=True)
    context_length: int = _setting(_count, 0, "default window in tokens; 0 is automatic", ollama=True)
    keep_alive: float = _setting(_keep_alive, 300.0, "how long an idle model stays loaded", ollama=True)
    load_timeout: float = _setting(_limit, 300.0, "longest load without any progress", ollama=True)
    hang_timeout: float = _setting(_limit, 120.0, "longest silence of an engine that owes an answer")
    engine: str = _setting(_text, "auto", "auto, built, path, wheel, or the path of a llama-server")
    engines: Path = _setting(_path, _default_engines, "folder of the engines that were built, side by side")
    default_model: str = _setting(_text, "", "model for clients that ask for claude-*; empty is none")
    max_waiting: int = _setting(_count, 256, "requests that may wait for a slot of one loaded model")
    recycle_after: float = _setting(
        _limit, float("inf"), "service after which an idle engine is ended; -1 is never"
    )
    drain_timeout: float = _setting(_drain, 5.0, "how long a stop waits for answers that are running")
    wait_timeout: float = _setting(_limit, 600.0, "longest wait of one request before its load; then 503")
    patience: float = _setting(_limit, 10.0, "how long a busy model may keep others waiting for its place")
    origins: tuple[str, ...] = _setting(_origins, (), "web origins that may call, or *", ollama=True)
    hosts: tuple[str, ...] = _setting(_hosts, (), "more names that the Host header may carry")
    api_keys_file: Path | None = _setting(_path, None, "file with one API key a line; asked for when set")
    api_key: str | None = _setting(_text, None, "key that the command line sends", secret=True)
    run_dir: Path | None = _setting(_path, None, "private folder for engine sockets")
    hub_endpoint: str = _setting(_url, "https://huggingface.co", "Hugging Face hub", also="HF_ENDPOINT")
    shortnames: Path = _setting(_path, _default_shortnames, "your own short names, a TOML file")
    log_level: str = _setting(_one_of("debug", "info", "warning", "error"), "info", "what is logged")
    log_format: str = _setting(_one_of("text", "json"), "text", "text, or one JSON object a line")


def config_path(environ: Mapping[str, str] | None = None) -> Path:
    """The file of settings: MGR_CONFIG, else config.toml in the platform's configuration folder."""
    named = (os.environ if environ is None else environ).get("MGR_CONFIG", "")
    return Path(named).expanduser() if named else platformdirs.user_config_path("mgr") / "config.toml"


def load(environ: Mapping[str, str] | None = None, flags: Mapping[str, object] | None = None) -> Settings:
    """The settings in force. Raises Misconfigured with the name, the value and where it came from."""
    environ = os.environ if environ is None else environ
    flags = flags or {}
    path = config_path(environ)
    in_file = _read_file(path, must_exist=bool(environ.get("MGR_CONFIG")))
    values: dict[str, Any] = {}
    for item in fields(Settings):
        given = _find(item.name, item.metadata, environ, in_file, flags, path)
        if given is not None:
            value, source = given
            try:
                values[item.name] = item.metadata["read"](value)
            except ValueError as error:
                shown = f"{source} is {value!r}" if item.repr else source
                raise Misconfigured(f"{shown}: {error}") from None
    return Settings(**values)


def _find(
    name: str,
    metadata: Mapping[str, Any],
    environ: Mapping[str, str],
    in_file: Mapping[str, object],
    flags: Mapping[str, object],
    path: Path,
) -> tuple[object, str] | None:
    if flags.get(name) is not None:
        return flags[name], f"--{name.replace('_', '-')}"
    variables = [f"MGR_{name.upper()}"]
    if metadata["ollama"]:
        variables.append(f"OLLAMA_{name.upper()}")
    if metadata["also"]:
        variables.append(metadata["also"])
    for variable in variables:
        # Files of variables keep the quotes that a shell would have taken away.
        text = environ.get(variable, "").strip().strip("\"'")
        if text:
            return text, variable
    if name in in_file:
        return in_file[name], f"{name} in {path}"
    return None


def _read_file(path: Path, *, must_exist: bool) -> Mapping[str, object]:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not must_exist:
            return {}
        raise Misconfigured(f"the settings file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise Misconfigured(f"the settings file {path} is not UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise Misconfigured(f"the settings file {path} is not valid TOML: {error}") from None
    known = {item.name for item in fields(Settings)}
    for key in values:
        if key not in known:
            raise Misconfigured(f"the settings file {path} has the unknown key {key!r}")
    return values
