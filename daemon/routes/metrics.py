"""What the daemon does, in the text format of Prometheus: values of `daemon/metrics.py`."""

import asyncio
from collections.abc import Iterable, Iterator
from typing import TypeAlias

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Router

from daemon import metrics
from daemon.metrics import Counter, Gauge
from daemon.routes.services import Services
from daemon.runner.state import Stage
from daemon.scheduler.state import Phase
from daemon.scheduler.view import LineView, LoadedView, Snapshot

# Prometheus's text exposition format 0.0.4, which every version of it reads. Its newer ones are told by an Accept
# header, of which the library makes a crash where a version is no number.
MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_FILES_DIGITS = 12

# One value of one metric, with the values of its labels.
Sample: TypeAlias = tuple[Gauge | Counter, tuple[str, ...], float]


def router(services: Services) -> Router:
    routes = Router()

    async def shown(request: Request) -> Response:
        seen, troubles = services.scheduler.snapshot(), services.scheduler.troubles()
        version = str(services.identity["version"])
        samples = [(metrics.INFO, (version,), 1.0), *gauges(seen, not troubles), *counters()]
        # In a thread, because of the import and of files in /proc.
        return Response(await asyncio.to_thread(exposition, samples), media_type=MEDIA_TYPE)

    routes.add_route("/metrics", shown, methods=["GET", "HEAD"])
    return routes


def gauges(seen: Snapshot, ready: bool) -> Iterator[Sample]:
    """What is so now."""
    yield metrics.READY, (), ready
    yield metrics.LATE, (), seen.late
    for model in seen.loaded:
        yield from _model(model)
    yield from _lines(seen.lines)


def counters() -> Iterator[Sample]:
    """What has happened so far."""
    for counter in metrics.COUNTERS:
        for values, count in counter.counts.items():
            yield counter, values, count


def _model(model: LoadedView) -> Iterator[Sample]:
    weights = model.weights
    labels = (weights.name, str(weights.purpose), weights.model.removeprefix("sha256:")[:_FILES_DIGITS])
    for phase in Phase:
        yield metrics.PHASE, (*labels, str(phase)), phase is model.phase
    for stage in Stage:
        yield metrics.STAGE, (*labels, str(stage)), stage == model.stage
    yield metrics.SLOTS, labels, model.slots
    yield metrics.LEASES, labels, model.leases
    yield metrics.WINDOW, labels, model.window
    if model.silent is not None:
        yield metrics.SILENT, labels, model.silent
    if model.expires_in is not None:
        yield metrics.EXPIRES, labels, model.expires_in


def _lines(lines: Iterable[LineView]) -> Iterator[Sample]:
    """Lines of one model with different wishes are shown as one, or each wish would be a value of a label."""
    found: dict[tuple[str, str], list[LineView]] = {}
    for line in lines:
        found.setdefault((line.name, str(line.reason)), []).append(line)
    for labels, same in found.items():
        yield metrics.WAITING, labels, sum(line.requests for line in same)
        yield metrics.LONGEST_WAIT, labels, max(line.longest for line in same)
        expected = [line.expected for line in same if line.expected is not None]
        if expected:
            yield metrics.EXPECTED_WAIT, labels, max(expected)


def exposition(samples: Iterable[Sample]) -> bytes:
    """The samples as text, each metric once, and what the library tells of this process."""
    from prometheus_client import (  # noqa: PLC0415 - see `daemon/metrics.py`
        CollectorRegistry,
        Metric,
        ProcessCollector,
        generate_latest,
    )
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415

    families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
    for metric, values, value in samples:
        if metric.name not in families:
            make = CounterMetricFamily if isinstance(metric, Counter) else GaugeMetricFamily
            families[metric.name] = make(metric.name, metric.text, labels=metric.labels)
        families[metric.name].add_metric(values, value)

    class Collected:
        def collect(self) -> Iterable[Metric]:
            return families.values()

    registry = CollectorRegistry()
    registry.register(Collected())
    ProcessCollector(registry=registry)
    return generate_latest(registry)
