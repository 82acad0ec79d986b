"""Every metric keeps to the rules of naming, and a counter counts."""

import re

import pytest

from daemon import metrics
from daemon.metrics import Counter, Gauge

DECLARED = [value for value in vars(metrics).values() if isinstance(value, (Gauge, Counter))]


@pytest.mark.parametrize("metric", DECLARED, ids=lambda metric: metric.name)
def test_names_are_as_prometheus_wants_them(metric: Gauge | Counter) -> None:
    assert re.fullmatch(r"mgr(_[a-z]+)+", metric.name)
    assert metric.name.endswith("_total") == isinstance(metric, Counter)
    assert len({*metric.labels}) == len(metric.labels)
    assert metric.text.endswith(".")


def test_every_metric_has_a_name_of_its_own_and_every_counter_is_shown() -> None:
    names = [metric.name for metric in DECLARED]
    assert len(names) > 15
    assert len({*names}) == len(names)
    assert [*metrics.COUNTERS] == [metric for metric in DECLARED if isinstance(metric, Counter)]


def test_a_counter_counts_for_each_value_of_its_labels() -> None:
    counter = Counter("mgr_x_total", "X.", ("a", "b"), [("1", "2")])
    assert counter.counts == {("1", "2"): 0}
    counter.add("1", "2")
    counter.add("3", "4")
    counter.add("3", "4")
    assert counter.counts == {("1", "2"): 1, ("3", "4"): 2}


def test_a_counter_without_labels_is_zero_from_the_start() -> None:
    counter = Counter("mgr_x_total", "X.")
    assert counter.counts == {(): 0}
    counter.add()
    assert counter.counts == {(): 1}
