"""What is shown of the scheduler, and that Prometheus's own parser reads it so."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from daemon import metrics
from daemon.metrics import Counter, Gauge
from daemon.routes.metrics import Sample, counters, exposition, gauges
from daemon.runner.state import Stage
from daemon.scheduler.state import Phase, Purpose, Weights
from daemon.scheduler.view import LineView, LoadedView, Reason, Snapshot

WEIGHTS = Weights("sha256:0123456789abcdef", Path("a"), "a:latest")
BUSY = LoadedView(WEIGHTS, Phase.READY, 4096, 2, 1, 300.0, None, 1, "b1", None, 1.5)
NOTHING = Snapshot((), (), 0.0, closing=False)
LABELS = ("a:latest", "generate", "0123456789ab")


def shown(seen: Snapshot, metric: Gauge) -> dict[tuple[str, ...], float]:
    found: dict[tuple[str, ...], float] = {}
    for each, values, value in gauges(seen, ready=True):
        assert len(values) == len(each.labels)
        if each is metric:
            assert values not in found
            found[values] = value
    return found


def read(samples: list[Sample]) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """As Prometheus does: a name, labels in their order, and a value."""
    text = exposition(samples).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.mark.parametrize("ready", [True, False])
def test_without_any_model(ready: bool) -> None:
    assert [*gauges(replace(NOTHING, late=0.25), ready)] == [
        (metrics.READY, (), ready),
        (metrics.LATE, (), 0.25),
    ]


def test_a_busy_model() -> None:
    seen = replace(NOTHING, loaded=(BUSY,))
    assert shown(seen, metrics.PHASE) == {
        (*LABELS, "loading"): 0,
        (*LABELS, "ready"): 1,
        (*LABELS, "failed"): 0,
        (*LABELS, "stopping"): 0,
    }
    assert set(shown(seen, metrics.STAGE).values()) == {0}
    assert shown(seen, metrics.SLOTS) == {LABELS: 2}
    assert shown(seen, metrics.LEASES) == {LABELS: 1}
    assert shown(seen, metrics.WINDOW) == {LABELS: 4096}
    assert shown(seen, metrics.SILENT) == {LABELS: 1.5}
    assert shown(seen, metrics.EXPIRES) == {}


def test_an_idle_model_and_one_that_goes() -> None:
    idle = replace(BUSY, leases=0, silent=None, expires_in=math.inf)
    assert shown(replace(NOTHING, loaded=(idle,)), metrics.SILENT) == {}
    assert shown(replace(NOTHING, loaded=(idle,)), metrics.EXPIRES) == {LABELS: math.inf}
    going = replace(BUSY, phase=Phase.STOPPING, stage=Stage.ASKED)
    stages = shown(replace(NOTHING, loaded=(going,)), metrics.STAGE)
    assert [values[-1] for values, value in stages.items() if value] == ["asked"]
    assert len(stages) == len(Stage)


def test_engines_of_one_name_are_told_apart() -> None:
    """A second purpose needs an engine of its own, and a name may have got new files while the old ones are in use."""
    embedding = replace(BUSY, weights=replace(WEIGHTS, purpose=Purpose.EMBED), slots=3)
    renewed = replace(BUSY, weights=replace(WEIGHTS, model="sha256:fedcba9876543210"), slots=4)
    assert shown(replace(NOTHING, loaded=(BUSY, embedding, renewed)), metrics.SLOTS) == {
        LABELS: 2,
        ("a:latest", "embed", "0123456789ab"): 3,
        ("a:latest", "generate", "fedcba987654"): 4,
    }


def test_lines_of_one_model_are_one_for_each_reason() -> None:
    seen = replace(
        NOTHING,
        lines=(
            LineView("a", Reason.SLOT, 2, 10.0, 4.0),
            LineView("a", Reason.SLOT, 3, 7.0, None),
            LineView("a", Reason.PLACE, 1, 5.0, None),
        ),
    )
    assert shown(seen, metrics.WAITING) == {("a", "slot"): 5, ("a", "place"): 1}
    assert shown(seen, metrics.LONGEST_WAIT) == {("a", "slot"): 10.0, ("a", "place"): 5.0}
    assert shown(seen, metrics.EXPECTED_WAIT) == {("a", "slot"): 4.0}


def test_every_counter_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = Counter("mgr_x_total", "X.", ("a",), [("never",)])
    counter.add("once")
    monkeypatch.setattr(metrics, "COUNTERS", (counter,))
    assert [*counters()] == [(counter, ("never",), 0), (counter, ("once",), 1)]


def test_the_text_is_what_a_parser_reads() -> None:
    """Each metric once with its kind, whatever the order of the samples; a label may be any text."""
    gauge, counter = Gauge("mgr_g", 'Of "g"\nand \\ more.', ("a",)), Counter("mgr_c_total", "C.")
    odd = 'a "b"\n\\ {c="d"}'
    samples: list[Sample] = [(gauge, (odd,), math.inf), (counter, (), 3), (gauge, ("x",), 0.5)]
    found = read(samples)
    assert found["mgr_g", (("a", odd),)] == math.inf
    assert found["mgr_g", (("a", "x"),)] == 0.5
    assert found["mgr_c_total", ()] == 3
    text = exposition(samples).decode()
    assert text.count("# TYPE mgr_g gauge\n") == text.count("# TYPE mgr_c_total counter\n") == 1


def test_this_process_is_shown_where_the_system_tells_of_it() -> None:
    found = read([])
    assert not Path("/proc/self/stat").exists() or found["process_resident_memory_bytes", ()] > 0
    assert not any(name.startswith("python_") for name, _ in found)
