"""Histograms count each sample once, in the bucket whose upper bound is not below it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from physis_core.observe.histogram import TIME_BUCKETS_S, CountedWindow, Histogram


def test_a_bound_belongs_to_its_bucket() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 9.0):
        histogram.add(value)
    counts = histogram.copy()
    assert counts.counts == (2, 2, 1)
    assert counts.total == 14.0


def test_a_window_forgets_and_its_histogram_does_not() -> None:
    window = CountedWindow(2)
    for value_ms in (10.0, 20.0, 30.0):
        window.add(value_ms)
    assert window.percentiles().n == 2
    assert sum(window.histogram.copy().counts) == 3
    assert abs(window.histogram.copy().total - 0.06) < 1e-12


@given(st.lists(st.floats(min_value=-1.0, max_value=100.0)))
def test_no_sample_is_lost(values: list[float]) -> None:
    histogram = Histogram(TIME_BUCKETS_S)
    for value in values:
        histogram.add(value)
    found = histogram.copy()
    for number, upper in enumerate(found.upper):
        assert sum(found.counts[: number + 1]) == sum(value <= upper for value in values)
    assert sum(found.counts) == len(values)
