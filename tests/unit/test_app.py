import asyncio
import json
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from starlette.routing import Route

from daemon.app import ROUTERS, Daemon, access_policy, build, error_reply, identity
from daemon.errors import BadModel, Misconfigured
from daemon.middleware.access import PUBLIC_PATHS
from daemon.routes.services import Services
from daemon.settings import Address, Settings
from daemon.store.lock import StoreLocked
from daemon.store.models import Store
from tests.fakes.asgi import HOST, ask

Build = Callable[..., Daemon]


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary folders are made; its path is short, as the path of a socket has to be."""
    with tempfile.TemporaryDirectory(prefix="mgr-t-") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


@pytest.fixture
def settings(tmp_path: Path, temporary: Path) -> Settings:
    """Nothing of the machine's."""
    return Settings(models=tmp_path / "models", shortnames=tmp_path / "shortnames.toml")


@pytest.fixture
def make(settings: Settings) -> Iterator[Build]:
    made: list[Daemon] = []

    def make(**changes: object) -> Daemon:
        made.append(build(replace(settings, **changes), ""))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for daemon in made:
        daemon.release()


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text("# ours\nsecret\n")
    return path


# ---- who may call


@pytest.mark.parametrize("text", ["127.0.0.1:1", "localhost:1", "[::1]:1", "/run/mgr.sock"])
def test_no_key_is_needed_on_this_machine(settings: Settings, text: str) -> None:
    policy = access_policy(replace(settings, host=Address.parse(text)))
    assert policy.keys == {}
    assert not policy.any_ip
    assert policy.any_host == text.endswith(".sock")


@pytest.mark.parametrize("text", ["0.0.0.0:1", "[::]:1", "192.168.0.7:1"])
def test_an_address_beyond_loopback_needs_a_key(settings: Settings, keys: Path, text: str) -> None:
    """Must hold: a non-loopback address without a key is refused."""
    beyond = replace(settings, host=Address.parse(text))
    with pytest.raises(Misconfigured) as caught:
        access_policy(beyond)
    assert text in caught.value.message
    assert "MGR_API_KEYS_FILE" in caught.value.message
    policy = access_policy(replace(beyond, api_keys_file=keys))
    assert policy.any_ip
    assert len(policy.keys) == 1
    assert beyond.host.host in policy.hosts


def test_an_address_that_nobody_knows(settings: Settings, keys: Path) -> None:
    with pytest.raises(Misconfigured, match=r"names 'garbage\.invalid', which is no address"):
        access_policy(replace(settings, host=Address("garbage.invalid"), api_keys_file=keys))


def test_beyond_this_machine_it_answers_to_its_own_name(settings: Settings, keys: Path) -> None:
    beyond = replace(settings, host=Address("0.0.0.0"), api_keys_file=keys)
    assert socket.gethostname().lower() in access_policy(beyond).hosts
    assert socket.gethostname().lower() not in access_policy(settings).hosts


def test_an_engine_that_is_not_there(settings: Settings) -> None:
    with pytest.raises(Misconfigured, match="MGR_ENGINE is '/no/engine': no file is there; use auto, built"):
        build(replace(settings, engine="/no/engine"), "")


def test_the_key_that_the_command_line_sends_is_none_that_the_daemon_asks_for(settings: Settings) -> None:
    with pytest.raises(Misconfigured):
        access_policy(replace(settings, host=Address("0.0.0.0"), api_key="k"))


def test_keys_are_asked_for_on_this_machine_too(settings: Settings, keys: Path) -> None:
    assert len(access_policy(replace(settings, api_keys_file=keys)).keys) == 1


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it has no key in it"),
        (b"# nothing\n\n", "it has no key in it"),
        (b"\xff\xfe", "it is not UTF-8"),
        (b"good\nhunter 2\n", "line 2 is not a key; a key is ASCII without spaces"),
    ],
)
def test_a_bad_file_of_keys(settings: Settings, keys: Path, content: bytes, reason: str) -> None:
    keys.write_bytes(content)
    with pytest.raises(Misconfigured) as caught:
        access_policy(replace(settings, api_keys_file=keys))
    assert caught.value.message == f"MGR_API_KEYS_FILE is {keys}, which cannot be used: {reason}"


def test_a_file_of_keys_that_is_not_there(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=r"cannot be used: No such file or directory$"):
        access_policy(replace(settings, api_keys_file=tmp_path / "none"))


# ---- what is open, and what is left


def is_free(models: Path) -> bool:
    store = Store(models)
    try:
        store.open(lock=True)
    except StoreLocked:
        return False
    store.close()
    return True


def test_a_daemon_holds_its_store_and_its_run_directory_until_it_is_released(
    make: Build, settings: Settings
) -> None:
    daemon = make()
    [run_directory] = Path(tempfile.gettempdir()).iterdir()
    (run_directory / "left").touch()
    assert not is_free(settings.models)
    daemon.release()
    assert is_free(settings.models)
    assert not run_directory.exists()
    daemon.release()


def test_a_store_that_another_holds(make: Build, settings: Settings) -> None:
    make()
    [_] = Path(tempfile.gettempdir()).iterdir()
    with pytest.raises(StoreLocked, match=rf"another daemon \(pid {os.getpid()}\)"):
        make()
    assert len([*Path(tempfile.gettempdir()).iterdir()]) == 1


def test_a_build_that_fails_late_leaves_nothing(make: Build, settings: Settings) -> None:
    settings.shortnames.write_text("[broken")
    with pytest.raises(Misconfigured, match=r"shortnames\.toml"):
        make()
    assert [*Path(tempfile.gettempdir()).iterdir()] == []
    assert is_free(settings.models)


def test_a_build_that_fails_early_touches_nothing(make: Build, settings: Settings) -> None:
    with pytest.raises(Misconfigured):
        make(host=Address("0.0.0.0"))
    assert [*Path(tempfile.gettempdir()).iterdir()] == []
    assert not settings.models.exists()


def test_a_store_that_cannot_be_used(make: Build, settings: Settings) -> None:
    settings.models.write_text("a file")
    with pytest.raises(Misconfigured, match="set MGR_MODELS"):
        make()
    assert [*Path(tempfile.gettempdir()).iterdir()] == []


async def test_a_close_that_was_cut_short_can_be_made_again(make: Build) -> None:
    daemon = make()
    closing = asyncio.create_task(daemon.close())
    closing.cancel()
    await asyncio.wait({closing})
    await daemon.close(drain=False)


# ---- the routes


def all_routes(services: Services) -> list[tuple[str, str]]:
    """Every method and path that the application answers, from what the application is made of."""
    return [
        (method, route.path.replace("{model:path}", "x"))
        for make_router in ROUTERS
        for route in make_router(services).routes
        if isinstance(route, Route)
        for method in sorted(route.methods or ())
    ]


async def test_every_route_but_two_needs_a_key(make: Build, keys: Path) -> None:
    """Must hold: default deny; exactly `/` and `/health/live` answer without a key."""
    daemon = make(api_keys_file=keys)
    everything = all_routes(daemon.services)
    assert {("POST", "/api/pull"), ("DELETE", "/api/delete"), ("GET", "/v1/models/x")} < {*everything}
    for method, path in everything:
        answer = await ask(daemon.app, method, path)
        assert (answer.status, answer.reads) == (200 if path in PUBLIC_PATHS else 401, 0), path


@pytest.mark.parametrize(
    "path", ["//", "//api/tags", "/API/tags", "/api/./tags", "/v1/../api/tags", "/api/tags/"]
)
async def test_paths_that_are_nearly_right_lead_nowhere(make: Build, keys: Path, path: str) -> None:
    daemon = make(api_keys_file=keys)
    assert (await ask(daemon.app, "GET", path)).status == 401
    answer = await ask(daemon.app, "GET", path, [HOST, ("x-api-key", "secret")])
    assert answer.status == 404
    assert "location" not in answer.headers


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/x", {"error": "404 page not found"}),
        ("/x", {"error": "404 page not found"}),
        (
            "/v1/x",
            {
                "error": {
                    "message": "404 page not found",
                    "type": "not_found_error",
                    "param": None,
                    "code": None,
                }
            },
        ),
    ],
)
async def test_an_unknown_path(make: Build, path: str, body: object) -> None:
    answer = await ask(make().app, "GET", path)
    assert (answer.status, json.loads(answer.body)) == (404, body)


async def test_another_method(make: Build) -> None:
    answer = await ask(make().app, "POST", "/api/tags")
    assert (answer.status, json.loads(answer.body)) == (405, {"error": "405 method not allowed"})
    assert {*answer.headers["allow"].split(", ")} == {"GET", "HEAD"}


def test_errors_are_in_the_words_of_their_path() -> None:
    error = BadModel("broken")
    assert json.loads(error_reply("/api/chat", error).body) == {"error": "broken"}
    assert json.loads(error_reply("/v1/chat/completions", error).body)["error"]["message"] == "broken"
    assert json.loads(error_reply("/v1/messages", error).body)["type"] == "error"


# ---- who it is


def test_identity() -> None:
    told = identity()
    assert told["pid"] == os.getpid()
    assert told["version"]
    assert len(told["boot_id"]) in (0, 36)


async def test_the_start_is_told_as_the_clock_stands_now(
    make: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make().app
    real = psutil.Process().create_time()
    for step in (0.0, 86400.0, -86400.0):
        monkeypatch.setattr(psutil.Process, "create_time", lambda _, step=step: real + step)
        told = json.loads((await ask(app, "GET", "/api/version")).body)["mgr"]
        assert told["started"] == real + step
        assert told["pid"] == os.getpid()
