"""Every metric of the daemon, declared in one place. `GET /metrics` shows them all (`routes/metrics.py`).

What is so at a moment is a gauge: it is read from the scheduler when somebody asks, and costs nothing before. What
happens is counted where it happens, on the event loop, for one operation on a dictionary; prometheus-client only writes
the answer, as importing it takes 20 ms that a start need not wait for.

Names begin with `mgr_`, units are base units, counters end in `_total` (Prometheus, "Metric and label naming"). Labels
have few values: models that are loaded or waited for, routes of the API, reasons; never what a client made up.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gauge:
    """A value that is read when somebody asks. `text` says what it is."""

    name: str
    text: str
    labels: tuple[str, ...] = ()


class Counter:
    """How often something has happened since the daemon started."""

    def __init__(
        self, name: str, text: str, labels: tuple[str, ...] = (), known: Iterable[tuple[str, ...]] = ()
    ) -> None:
        """`known` are values of the labels that are shown before it has happened: a series that begins with its first
        event has no rate then."""
        self.name = name
        self.text = text
        self.labels = labels
        self.counts: dict[tuple[str, ...], int] = dict.fromkeys(known if labels else [()], 0)

    def add(self, *values: str) -> None:
        """It has happened once more. `values` are those of the labels, in their order."""
        self.counts[values] = self.counts.get(values, 0) + 1


# ---- the daemon

INFO = Gauge("mgr_info", "Always 1; the version of mgr.", ("version",))
READY = Gauge("mgr_ready", "1 when more work may be sent here, else 0: what /health/ready says.")
LATE = Gauge("mgr_scheduler_late_seconds", "By how much the scheduler's next decision is overdue.")

# ---- each loaded model. `files` is the beginning of what tells its files apart: a name may get new ones.

_MODEL = ("model", "purpose", "files")

PHASE = Gauge("mgr_model_phase", "1 for the phase that the model is in, 0 for others.", (*_MODEL, "phase"))
STAGE = Gauge("mgr_model_stage", "1 for how far the end of its engine has come.", (*_MODEL, "stage"))
SLOTS = Gauge("mgr_model_slots", "Requests that the model can answer at once.", _MODEL)
LEASES = Gauge("mgr_model_leases", "Requests that the model answers now.", _MODEL)
WINDOW = Gauge("mgr_model_window_tokens", "The context window of each request.", _MODEL)
SILENT = Gauge("mgr_model_silent_seconds", "Since when its engine, busy now, has made no progress.", _MODEL)
EXPIRES = Gauge("mgr_model_expires_seconds", "Until it is unloaded, if nobody asks; only while idle.", _MODEL)

# ---- those who wait, by what they wait for

_LINE = ("model", "reason")

WAITING = Gauge("mgr_waiting_requests", "Requests that wait for this model.", _LINE)
LONGEST_WAIT = Gauge("mgr_waiting_longest_seconds", "How long the first of them has waited.", _LINE)
EXPECTED_WAIT = Gauge(
    "mgr_waiting_expected_seconds", "Until the last of them is served, where it is known.", _LINE
)

# ---- what has happened

REQUESTS = Counter(
    "mgr_requests_total",
    'Requests that have ended; "none": there is no such route or it was not asked, or the client left before a status.',
    ("route", "status"),
)
REFUSED = Counter(
    "mgr_requests_refused_total",
    "Requests that got no model, by reason.",
    ("reason",),
    [
        ("queue_full",),  # too many wait for loads
        ("model_full",),  # too many wait for a loaded model
        ("timed_out",),  # they waited for too long
        ("back_off",),  # the last starts of the model failed
        ("closing",),  # the daemon is shutting down
        ("load_failed",),
        ("poison",),  # engines crashed on the request
    ],
)
LOADS_STARTED = Counter("mgr_loads_started_total", "Engines that were started.")
LOADS_FAILED = Counter("mgr_loads_failed_total", "Engines that did not become ready.")
ENGINE_DEATHS = Counter(
    "mgr_engine_deaths_total",
    "Engines that were ready and ended by themselves, were killed by somebody, or hung.",
    ("cause",),
    [("died",), ("hung",)],
)
UNLOADS = Counter("mgr_unloads_total", "Engines that mgr ended, by reason.", ("reason",))

COUNTERS = (REQUESTS, REFUSED, LOADS_STARTED, LOADS_FAILED, ENGINE_DEATHS, UNLOADS)
