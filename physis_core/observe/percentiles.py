"""Percentiles over all samples of a window, never over averages."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from physis_core.types import Percentiles

Samples = npt.NDArray[np.float64]


def percentiles_of(samples: npt.ArrayLike) -> Percentiles:
    """p50, p99, p99.9 and max of all samples; NaN where there are none.

    Linear interpolation between order statistics (numpy's default, Hyndman and Fan type 7).
    """
    values = np.asarray(samples, dtype=np.float64).ravel()
    if values.size == 0:
        nan = float("nan")
        return Percentiles(p50=nan, p99=nan, p999=nan, max=nan, n=0)
    p50, p99, p999 = np.percentile(values, (50.0, 99.0, 99.9))
    return Percentiles(
        p50=float(p50), p99=float(p99), p999=float(p999), max=float(values.max()), n=values.size
    )


class SlidingWindow:
    """The newest `capacity` samples, in preallocated memory; older ones are overwritten."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity: {capacity!r}: must be at least 1")
        self._ring = np.zeros(capacity, dtype=np.float64)
        self._next = 0
        self._total = 0

    def add(self, value: float) -> None:
        self._ring[self._next] = value
        self._next = (self._next + 1) % self._ring.size
        self._total += 1

    def clear(self) -> None:
        self._next = 0
        self._total = 0

    def __len__(self) -> int:
        return min(self._total, self._ring.size)

    def values(self) -> Samples:
        """A copy, oldest first. [n]"""
        if self._total < self._ring.size:
            return self._ring[: self._next].copy()
        return np.concatenate((self._ring[self._next :], self._ring[: self._next]))

    def percentiles(self) -> Percentiles:
        return percentiles_of(self._ring[: len(self)])
