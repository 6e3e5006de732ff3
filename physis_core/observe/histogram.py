"""Histograms with fixed buckets: counts since the start, cheap enough for every sample."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from physis_core.observe.percentiles import SlidingWindow

TIME_BUCKETS_S = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5),
    *(0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0),
)
"""From a servo tick to a cold start; closest where chunks of robots lie."""
JITTER_BUCKETS_S = (*(1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1),)
BATCH_BUCKETS = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramCounts:
    """`upper`: the largest value of each bucket; `counts` has one more, for what is above."""

    upper: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


class Histogram:
    """One thread adds. Any thread may copy, without a lock: a copy may lack the newest sample."""

    __slots__ = ("_counts", "_total", "_upper")

    def __init__(self, upper: tuple[float, ...]) -> None:
        self._upper = upper
        self._counts = [0] * (len(upper) + 1)
        self._total = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._upper, value)] += 1
        self._total += value

    def copy(self) -> HistogramCounts:
        return HistogramCounts(upper=self._upper, counts=tuple(self._counts), total=self._total)


class CountedWindow(SlidingWindow):
    """A sliding window of milliseconds, and a histogram in seconds of all samples ever added."""

    def __init__(self, capacity: int, buckets_s: tuple[float, ...] = TIME_BUCKETS_S) -> None:
        super().__init__(capacity)
        self.histogram = Histogram(buckets_s)

    def add(self, value: float) -> None:
        super().add(value)
        self.histogram.add(value * 1e-3)
