"""`GET /metrics` of a daemon with the scripted engine: what is so, and that what has happened adds up."""

import asyncio
import os
import signal
import subprocess
import sys

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.fakes.daemon import GUARD_SECONDS, ScriptedDaemon, eventually
from tests.fakes.dialects import WAYS
from tests.integration.conftest import MakeDaemon

CHAT = WAYS[1]  # /api/chat, whole


class Shown:
    """One look at the metrics."""

    def __init__(self, daemon: ScriptedDaemon) -> None:
        url = f"{daemon.url}/metrics"
        reply = httpx.get(url, headers=daemon.headers, trust_env=False, timeout=GUARD_SECONDS)
        assert reply.status_code == 200
        assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        families = text_string_to_metric_families(reply.text)
        self._samples = [sample for family in families for sample in family.samples]
        assert len({(name, tuple(sorted(labels.items()))) for name, labels, *_ in self._samples}) == len(
            self._samples
        )

    def __call__(self, name: str, **labels: str) -> float | None:
        """The sum of the samples with these labels; None without any."""
        found = [s.value for s in self._samples if s.name == name and labels.items() <= s.labels.items()]
        return sum(found) if found else None

    def labels(self, name: str, label: str) -> set[str]:
        """The values of a label of which there is more than nothing."""
        return {s.labels[label] for s in self._samples if s.name == name and s.value}


async def ask(client: httpx.AsyncClient, model: str = "a") -> httpx.Response:
    return await client.post(CHAT.path, json=CHAT.body(model))


async def test_who_is_served_who_waits_and_who_is_refused(make_daemon: MakeDaemon) -> None:
    """Position, reason and wait are in the metrics, and after it all the counters add up."""
    daemon = make_daemon(NUM_PARALLEL=1, MAX_WAITING=1)
    daemon.model("a")
    hold = daemon.hold("tokens")
    daemon.script({"hold_tokens": str(hold)})
    daemon.start()
    assert Shown(daemon)("mgr_model_slots") is None
    async with daemon.client() as client:
        first = asyncio.create_task(ask(client))
        await daemon.until("held")
        second = asyncio.create_task(ask(client))
        await eventually(lambda: Shown(daemon)("mgr_waiting_requests"), "the second waits")
        assert (await ask(client)).status_code == 503
        busy = Shown(daemon)
        hold.release()
        assert [(await task).status_code for task in (first, second)] == [200, 200]
    assert busy.labels("mgr_model_phase", "phase") == {"ready"}
    assert busy("mgr_model_slots", model="a:latest", purpose="generate") == 1
    assert busy("mgr_model_leases") == 1
    assert busy("mgr_model_window_tokens") == 4096
    assert busy("mgr_model_silent_seconds") is not None
    assert busy("mgr_model_expires_seconds") is None
    assert busy("mgr_waiting_requests", model="a:latest", reason="slot") == 1
    longest = busy("mgr_waiting_longest_seconds", reason="slot")
    assert longest is not None
    assert 0 < longest < GUARD_SECONDS
    assert (busy("mgr_ready"), busy("mgr_requests_refused_total", reason="model_full")) == (1, 1)
    idle = Shown(daemon)
    assert (idle("mgr_model_leases"), idle("mgr_waiting_requests")) == (0, None)
    assert idle("mgr_model_silent_seconds") is None
    expires = idle("mgr_model_expires_seconds")
    assert expires is not None
    assert 0 < expires <= 300
    assert idle("mgr_requests_total", route="/api/chat", status="200") == 2
    assert idle("mgr_requests_total", route="/api/chat", status="503") == 1
    assert idle("mgr_requests_refused_total") == 1
    assert (idle("mgr_loads_started_total"), idle("mgr_loads_failed_total")) == (1, 0)


async def test_what_becomes_of_engines_is_counted(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    daemon.model("a", "b")
    daemon.script(b={"exit_code": 1})
    daemon.start()
    async with daemon.client() as client:
        assert (await ask(client)).status_code == 200
        [loaded] = daemon.loaded()
        os.kill(loaded["pid"], signal.SIGKILL)
        await eventually(lambda: daemon.loaded() == [], "it is gone")
        assert (await ask(client)).status_code == 200
        assert (await ask(client, "b")).status_code >= 500
        assert (await client.post("/api/generate", json={"model": "a", "keep_alive": 0})).status_code == 200
        await eventually(lambda: daemon.loaded() == [], "it is unloaded")
    seen = Shown(daemon)
    assert seen("mgr_loads_started_total") == len(daemon.events("start")) == 3
    assert seen("mgr_loads_failed_total") == 1
    assert seen("mgr_requests_refused_total", reason="load_failed") == 1
    assert (seen("mgr_engine_deaths_total", cause="died"), seen("mgr_engine_deaths_total")) == (1, 1)
    assert seen("mgr_unloads_total") == 1


async def test_no_label_is_what_a_client_made_up(daemon: ScriptedDaemon) -> None:
    async with daemon.client() as client:
        for made_up in ("made-up", "/made-up", "v1/models/made-up", "api/made-up"):
            assert (await client.get(made_up)).status_code == 404
        assert (await ask(client, "made-up")).status_code == 404
        # Versions that the library for this format fails on, or takes for its own.
        for accept in ("application/openmetrics-text; version=made-up", "text/plain;version=x"):
            shown = await client.get("/metrics", headers={"accept": accept})
            assert shown.status_code == 200
            assert "made-up" not in shown.text
    seen = Shown(daemon)
    assert seen("mgr_requests_total", route="none", status="404") == 3
    assert seen("mgr_requests_total", route="/v1/models/{model}", status="404") == 1


async def test_a_key_is_needed_where_there_are_any(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    (daemon.folder / "keys").write_text("key\n")
    daemon.settings["API_KEYS_FILE"] = daemon.folder / "keys"
    daemon.headers = {"Authorization": "Bearer key"}
    daemon.start()
    without = httpx.get(f"{daemon.url}/metrics", trust_env=False, timeout=GUARD_SECONDS)
    assert without.status_code == 401
    assert "mgr_" not in without.text
    assert Shown(daemon)("mgr_requests_total", route="none", status="401") == 1


@pytest.mark.parametrize("module", ["cli.main", "daemon.server"])
def test_no_start_waits_for_the_library(module: str) -> None:
    code = f"import sys, {module}; sys.exit('prometheus_client' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=False, timeout=GUARD_SECONDS)
    assert done.returncode == 0
