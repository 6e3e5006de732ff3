"""Success, error and time of an episode, from recorded states. Pure.

The distance is between the end effector (or the task's object) and its goal at the same instant,
`Task.goal`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from physis_core.types import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`error_m` as defined by the task's rule; `time_s` is None without success."""

    success: bool
    error_m: float
    time_s: float | None


class Rule(Protocol):
    """A success rule."""

    @property
    def says(self) -> str:
        """The criterion in words."""
        ...

    def judge(self, t_s: Array, distance_m: Array, still_m: Array) -> Outcome:
        """Judge an episode: t_s [n] s of task time, increasing; distance_m [n]; still_m [n], the
        distance if nothing had moved.

        Raises:
            ValueError: the record is too short.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StaysNear:
    """The mean distance after `settle_s` is at most `share` of that of standing still.

    The error is that mean. The time is the first instant with a distance within `share` of the mean
    of standing still.
    """

    share: float = 1.0 / 6.0
    settle_s: float = 2.0

    @property
    def says(self) -> str:
        return f"mean error at most {self.share:.3f} of standing still"

    def judge(self, t_s: Array, distance_m: Array, still_m: Array) -> Outcome:
        counted = t_s > self.settle_s
        if not counted.any():
            raise ValueError(f"the record ends before {self.settle_s} s")
        error_m, allowed_m = distance_m[counted].mean(), self.share * still_m[counted].mean()
        success = bool(error_m <= allowed_m)
        near = np.flatnonzero(distance_m <= allowed_m)
        return Outcome(
            success=success,
            error_m=float(error_m),
            time_s=float(t_s[near[0]]) if success else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrives:
    """Within `tolerance_m` for at least `hold_s` without interruption, starting by `within_s`.

    With `to_the_end` this must last until the record ends. The error is the mean distance over the
    record's last `hold_s`; the time is the start of that interval.
    """

    tolerance_m: float
    within_s: float
    hold_s: float = 0.5
    to_the_end: bool = False

    @property
    def says(self) -> str:
        lasts = "until the end" if self.to_the_end else f"for {self.hold_s:g} s"
        return f"within {1e3 * self.tolerance_m:g} mm by {self.within_s:g} s, {lasts}"

    def judge(self, t_s: Array, distance_m: Array, still_m: Array) -> Outcome:
        if not len(t_s) or t_s[-1] - t_s[0] < self.hold_s:
            raise ValueError(f"the record is shorter than {self.hold_s} s")
        begun_s = self._begun_s(t_s, distance_m)
        return Outcome(
            success=begun_s is not None,
            error_m=float(distance_m[t_s > t_s[-1] - self.hold_s].mean()),
            time_s=begun_s,
        )

    def _begun_s(self, t_s: Array, distance_m: Array) -> float | None:
        inside = np.concatenate(([False], distance_m <= self.tolerance_m, [False]))
        begins = np.flatnonzero(~inside[:-1] & inside[1:])
        ends = np.flatnonzero(inside[:-1] & ~inside[1:]) - 1
        for begin, end in zip(begins, ends, strict=True):
            if self.to_the_end and end != len(t_s) - 1:
                continue
            # Half a microsecond allows for rounding in stamps that are sums of ticks.
            if t_s[end] - t_s[begin] >= self.hold_s - 5e-7 and t_s[begin] <= self.within_s:
                return float(t_s[begin])
        return None
