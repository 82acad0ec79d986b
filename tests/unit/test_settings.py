import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import platformdirs
import pytest

from daemon.errors import Misconfigured
from daemon.settings import Address, Settings, config_path, load


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.touch()
    return path


def loaded(config: Path, **environ: str) -> Settings:
    return load({"MGR_CONFIG": str(config), **environ})


def test_a_named_file_must_exist_and_the_platforms_own_need_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platformdirs.user_config_path", lambda name: tmp_path)
    assert load({}).max_queue == 512
    with pytest.raises(Misconfigured, match=r"none\.toml cannot be read: No such file"):
        load({"MGR_CONFIG": str(tmp_path / "none.toml")})


def refusal(config: Path, **environ: str) -> str:
    with pytest.raises(Misconfigured) as caught:
        loaded(config, **environ)
    assert "\n" not in caught.value.message
    return caught.value.message


# ---- what there is

DEFAULTS: dict[str, Any] = {
    "host": Address("127.0.0.1", 11434),
    "models": platformdirs.user_data_path("mgr") / "models",
    "max_queue": 512,
    "max_loaded_models": 0,
    "num_parallel": 0,
    "context_length": 0,
    "keep_alive": 300.0,
    "load_timeout": 300.0,
    "hang_timeout": 120.0,
    "engine": "auto",
    "engines": platformdirs.user_data_path("mgr") / "engines",
    "default_model": "",
    "max_waiting": 256,
    "recycle_after": float("inf"),
    "drain_timeout": 5.0,
    "wait_timeout": 600.0,
    "patience": 10.0,
    "origins": (),
    "hosts": (),
    "api_keys_file": None,
    "api_key": None,
    "run_dir": None,
    "hub_endpoint": "https://huggingface.co",
    "shortnames": platformdirs.user_config_path("mgr") / "shortnames.toml",
    "log_level": "info",
    "log_format": "text",
}

# Each setting: a text for its variable, and the value that it means.
GIVEN: dict[str, tuple[str, Any]] = {
    "host": ("[::1]:1", Address("::1", 1)),
    "models": ("/srv/models", Path("/srv/models")),
    "max_queue": ("0", 0),
    "max_loaded_models": ("2", 2),
    "num_parallel": (" 4 ", 4),
    "context_length": ("8192", 8192),
    "keep_alive": ("-1", math.inf),
    "load_timeout": ("90", 90.0),
    "hang_timeout": ("90", 90.0),
    "engine": ("/opt/llama-server", "/opt/llama-server"),
    "engines": ("/srv/engines", Path("/srv/engines")),
    "default_model": ("smollm2", "smollm2"),
    "max_waiting": ("7", 7),
    "recycle_after": ("1m30s", 90.0),
    "drain_timeout": ("500ms", 0.5),
    "wait_timeout": ("1m30s", 90.0),
    "patience": ("1m30s", 90.0),
    "origins": ("https://A.example, app://*,", ("https://a.example", "app://*")),
    "hosts": ("MGR.lan,fd00::7", ("mgr.lan", "fd00::7")),
    "api_keys_file": ("/etc/mgr/keys", Path("/etc/mgr/keys")),
    "api_key": ("k", "k"),
    "run_dir": ("/run/mgr", Path("/run/mgr")),
    "hub_endpoint": ("http://hub.example:8080/x/", "http://hub.example:8080/x"),
    "shortnames": ("/etc/mgr/names.toml", Path("/etc/mgr/names.toml")),
    "log_level": ("DEBUG", "debug"),
    "log_format": ("json", "json"),
}
OLLAMAS = (
    "host",
    "models",
    "max_queue",
    "max_loaded_models",
    "num_parallel",
    "context_length",
    "keep_alive",
    "load_timeout",
    "origins",
)


def test_the_tables_here_are_whole() -> None:
    assert [item.name for item in fields(Settings)] == [*DEFAULTS] == [*GIVEN]


@pytest.mark.parametrize("name", DEFAULTS)
def test_default(config: Path, name: str) -> None:
    assert getattr(loaded(config), name) == DEFAULTS[name]


@pytest.mark.parametrize("name", GIVEN)
def test_its_variable(config: Path, name: str) -> None:
    text, value = GIVEN[name]
    settings = loaded(config, **{f"MGR_{name.upper()}": text})
    assert getattr(settings, name) == value
    others = {other: getattr(settings, other) for other in DEFAULTS if other != name}
    assert others == {other: DEFAULTS[other] for other in DEFAULTS if other != name}


@pytest.mark.parametrize("name", GIVEN)
def test_ollamas_variable_where_it_has_the_setting(config: Path, name: str) -> None:
    text, value = GIVEN[name]
    settings = loaded(config, **{f"OLLAMA_{name.upper()}": text})
    assert getattr(settings, name) == (value if name in OLLAMAS else DEFAULTS[name])


@pytest.mark.parametrize("name", GIVEN)
def test_its_key_in_the_file(config: Path, name: str) -> None:
    text, value = GIVEN[name]
    config.write_text(f"{name} = '{text}'\n")
    assert getattr(loaded(config), name) == value


def test_what_the_file_can_say_without_quotes(config: Path) -> None:
    config.write_text(
        "max_queue = 3\nkeep_alive = -1\nload_timeout = 2.5\ndrain_timeout = 0\n"
        'origins = ["https://a.example", "app://*"]\nhosts = []\n'
    )
    settings = loaded(config)
    assert (settings.max_queue, settings.keep_alive, settings.load_timeout) == (3, math.inf, 2.5)
    assert (settings.drain_timeout, settings.hosts) == (0, ())
    assert settings.origins == ("https://a.example", "app://*")


# ---- which one counts


def test_precedence(config: Path) -> None:
    """Flag, then MGR_, then OLLAMA_, then the file, then the default."""
    config.write_text("max_queue = 1\n")
    assert loaded(config).max_queue == 1
    assert loaded(config, OLLAMA_MAX_QUEUE="2").max_queue == 2
    assert loaded(config, OLLAMA_MAX_QUEUE="2", MGR_MAX_QUEUE="3").max_queue == 3
    environ = {"MGR_CONFIG": str(config), "OLLAMA_MAX_QUEUE": "2", "MGR_MAX_QUEUE": "3"}
    assert load(environ, {"max_queue": "4"}).max_queue == 4
    assert load(environ, {"max_queue": None}).max_queue == 3


def test_a_worse_source_is_not_even_read(config: Path) -> None:
    assert loaded(config, OLLAMA_MAX_QUEUE="rubbish", MGR_MAX_QUEUE="3").max_queue == 3


def test_the_hubs_own_variable_comes_after_ours(config: Path) -> None:
    environ = {"HF_ENDPOINT": "https://b.example"}
    assert loaded(config, **environ).hub_endpoint == "https://b.example"
    assert loaded(config, MGR_HUB_ENDPOINT="https://a.example", **environ).hub_endpoint == "https://a.example"


def test_an_empty_variable_is_not_set(config: Path) -> None:
    settings = loaded(config, MGR_HOST=" ", OLLAMA_HOST="localhost:1", MGR_MODELS='""')
    assert settings.host == Address("localhost", 1)
    assert settings.models == DEFAULTS["models"]


def test_quotes_around_a_variable_do_not_count(config: Path) -> None:
    settings = loaded(config, OLLAMA_HOST='"localhost:1"', OLLAMA_KEEP_ALIVE="'10m'")
    assert (settings.host, settings.keep_alive) == (Address("localhost", 1), 600)


def test_paths_are_made_absolute(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/somebody")
    settings = loaded(config, MGR_MODELS="models", MGR_RUN_DIR="~/run", MGR_HOST="mgr.sock")
    assert settings.models == tmp_path / "models"
    assert settings.run_dir == Path("/home/somebody/run")
    assert settings.host == Address(socket=tmp_path / "mgr.sock")


def test_where_the_file_lies() -> None:
    assert config_path({}) == platformdirs.user_config_path("mgr") / "config.toml"
    assert config_path({"MGR_CONFIG": "/etc/mgr.toml"}) == Path("/etc/mgr.toml")


# ---- what is refused: one sentence, with the name and the value


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        (
            "host",
            "https://localhost",
            "mgr speaks plain HTTP; use http://, and put a proxy in front for https",
        ),
        ("host", "localhost:99999", "write it like"),
        ("max_queue", "-1", "must be a whole number, 0 or more"),
        ("max_queue", "1.5", "must be a whole number"),
        ("max_queue", "\u00b2", "must be a whole number"),
        ("max_queue", "9" * 5000, "must be a whole number"),
        ("max_loaded_models", "many", "must be a whole number"),
        ("num_parallel", "2147483648", "must be a whole number"),
        ("context_length", "8k", "must be a whole number"),
        ("max_waiting", "+1", "must be a whole number"),
        ("keep_alive", "5 minutes", 'must be a duration like "5m"'),
        ("keep_alive", "\u0665", "must be a duration"),
        ("load_timeout", "0", "longer than zero"),
        ("load_timeout", "0s", "longer than zero"),
        ("wait_timeout", "soon", "must be a duration"),
        ("drain_timeout", "9s", "must be between 0s and 8s"),
        ("drain_timeout", "-1s", "must be between 0s and 8s"),
        ("drain_timeout", "x", "must be a duration"),
        ("origins", "chat.example", "'chat.example' is not an origin"),
        ("origins", "app://*, https://chat.example/", "'https://chat.example/' is not an origin"),
        ("origins", "https://*.*.example", "is not an origin"),
        ("hosts", "mgr.lan:80", "'mgr.lan:80' is not a host name; write it without scheme and port"),
        ("hosts", "http://mgr.lan", "is not a host name"),
        ("hosts", "*", "is not a host name"),
        ("hub_endpoint", "hub.example", "must be an http:// or https:// URL"),
        ("hub_endpoint", "https://", "must be an http:// or https:// URL"),
        ("hub_endpoint", "file:///etc", "must be an http:// or https:// URL"),
        ("log_level", "loud", "must be one of debug, info, warning, error"),
        ("log_format", "xml", "must be one of text, json"),
    ],
)
def test_a_bad_value(config: Path, name: str, text: str, reason: str) -> None:
    variable = f"MGR_{name.upper()}"
    message = refusal(config, **{variable: text})
    assert message.startswith(f"{variable} is {text!r}: ")
    assert reason in message
    config.write_text(f'{name} = "{text}"\n')
    message = refusal(config)
    assert message.startswith(f"{name} in {config} is ")
    assert reason in message


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("host = 11434", "must be text"),
        ("models = true", "must be text"),
        ("models = ''", "must be text, not empty"),
        ("engine = ' '", "must be text, not empty"),
        ("log_level = 1", "must be text"),
        ("max_queue = true", "must be a whole number"),
        ("max_queue = 1.0", "must be a whole number"),
        ("keep_alive = true", "must be a duration"),
        ("keep_alive = nan", "must be a duration"),
        ("load_timeout = [1]", "must be a duration"),
        ("origins = 1", "must be a list of words"),
        ("hosts = ['a', 1]", "must be a list of words"),
        ("hub_endpoint = {}", "must be text"),
    ],
)
def test_a_bad_type(config: Path, line: str, reason: str) -> None:
    config.write_text(line)
    message = refusal(config)
    assert message.startswith(f"{line.split(maxsplit=1)[0]} in {config} is ")
    assert reason in message


def test_a_bad_flag_is_named_as_it_was_typed(config: Path) -> None:
    with pytest.raises(Misconfigured, match=r"^--max-queue is 'x': must be a whole number"):
        load({"MGR_CONFIG": str(config)}, {"max_queue": "x"})


def test_ollamas_variable_is_named_where_it_was_read(config: Path) -> None:
    assert refusal(config, OLLAMA_HOST="a b").startswith("OLLAMA_HOST is 'a b': write it like")


def test_a_key_is_never_shown(config: Path) -> None:
    config.write_text("api_key = 271828")
    assert refusal(config) == f"api_key in {config}: must be text, not empty"
    assert "271828" not in repr(loaded(config, MGR_API_KEY="271828"))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"max_que = 1", "has the unknown key 'max_que'"),
        (b"config = 'x'", "has the unknown key 'config'"),
        (b"max_queue = ", "is not valid TOML"),
        (b"[server]\n", "has the unknown key 'server'"),
        (b"# \xff", "is not UTF-8"),
    ],
)
def test_a_bad_file(config: Path, content: bytes, reason: str) -> None:
    config.write_bytes(content)
    assert refusal(config).startswith(f"the settings file {config} {reason}")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    assert refusal(tmp_path) == f"the settings file {tmp_path} cannot be read: Is a directory"


# ---- addresses


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("", "127.0.0.1", 11434),
        ("1.2.3.4", "1.2.3.4", 11434),
        ("1.2.3.4:5", "1.2.3.4", 5),
        (":1234", "", 1234),
        (":0", "", 0),
        ("127.0.0.1:0", "127.0.0.1", 0),
        ("127.0.0.1:65535", "127.0.0.1", 65535),
        ("example.com", "example.com", 11434),
        ("example.com:1234", "example.com", 1234),
        ("LocalHost", "localhost", 11434),
        ("my_box-1", "my_box-1", 11434),
        ("[::]", "::", 11434),
        ("[::1]", "::1", 11434),
        ("[::1]:1337", "::1", 1337),
        ("::1", "::1", 11434),
        ("::", "::", 11434),
        ("fe80::1%eth0", "fe80::1%eth0", 11434),
        ("[fe80::1%eth0]:1", "fe80::1%eth0", 1),
        ("http://1.2.3.4", "1.2.3.4", 80),
        ("HTTP://1.2.3.4:5", "1.2.3.4", 5),
        ("http://example.com/ollama", "example.com", 80),
        ("http://[::1]/", "::1", 80),
        ("http://", "127.0.0.1", 11434),
        ("example.com:1234/", "example.com", 1234),
    ],
)
def test_address(text: str, host: str, port: int) -> None:
    address = Address.parse(text)
    assert (address.host, address.port, address.socket) == (host, port, None)
    assert Address.parse(str(address)) == address or not host


@pytest.mark.parametrize(
    "text",
    [
        "https://example.com",
        "https://example.com:443",
        "ftp://example.com",
        "unix:///run/mgr",
        "example.com:x",
        "example.com:",
        "example.com:-1",
        "example.com:65536",
        "example.com:\u00b2",
        "1.2.3.4:99999999999",
        "[::1",
        "::1]",
        "[::1]x:1",
        "[example.com]:1",
        "[]:1",
        "a b",
        "user@example.com",
        "1:2:3",
        ":",
    ],
)
def test_no_address(text: str) -> None:
    with pytest.raises(ValueError):
        Address.parse(text)


@pytest.mark.parametrize("text", ["/run/mgr.sock", "unix:///run/mgr.sock"])
def test_a_socket(text: str) -> None:
    address = Address.parse(text)
    assert address == Address(socket=Path("/run/mgr.sock"))
    assert (str(address), address.url) == ("/run/mgr.sock", "http://localhost")


@pytest.mark.parametrize(
    "text", ["127.0.0.1", "127.9.9.9:1", "localhost", "LOCALHOST", "[::1]:1", "http://127.0.0.1", "x.sock"]
)
def test_loopback(text: str) -> None:
    assert Address.parse(text).is_loopback


@pytest.mark.parametrize(
    "text",
    [
        "0.0.0.0",
        ":11434",
        "[::]",
        "192.168.0.7",
        "localhost.example",
        "127.0.0.1.example",
        "127.1",
        "0",
        "2130706433",
    ],
)
def test_what_is_not_known_to_be_loopback(text: str) -> None:
    """Must hold: no spelling of an address gets past the question for a key."""
    assert not Address.parse(text).is_loopback


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("127.0.0.1:1", "http://127.0.0.1:1"),
        ("0.0.0.0:1", "http://127.0.0.1:1"),
        (":1", "http://127.0.0.1:1"),
        ("[::]:1", "http://[::1]:1"),
        ("[::1]:1", "http://[::1]:1"),
        ("mgr.lan:1", "http://mgr.lan:1"),
    ],
)
def test_where_a_client_on_this_machine_connects(text: str, url: str) -> None:
    assert Address.parse(text).url == url
