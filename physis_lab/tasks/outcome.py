"""What became of an episode: success, error and time, from recorded states. Pure.

The distance that counts is between what the task moves (the end effector, or an object) and where
that belongs at the same instant: `Task.goal`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from physis_core.types import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`error_m` is what the task's rule says; `time_s` is None where there was no success."""

    success: bool
    error_m: float
    time_s: float | None


class Rule(Protocol):
    """How a task is judged."""

    @property
    def says(self) -> str:
        """What a success is, in words."""
        ...

    def judge(self, t_s: Array, distance_m: Array, still_m: Array) -> Outcome:
        """t_s [n] s from the task's beginning, increasing; distance_m [n] of what moved; still_m
        [n] of what it would have been had nothing ever moved.

        Raises:
            ValueError: the record ends before it can be judged.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StaysNear:
    """The mean distance after `settle_s` is at most `share` of that of standing still.

    The error is that mean. The time is the first instant at which the distance is within `share` of
    standing still's mean.
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
    """Within `tolerance_m` for at least `hold_s` without a break, begun at `within_s` or before.

    With `to_the_end` that stretch has to last until the record ends. The error is the mean distance
    of the record's last `hold_s`; the time is when the stretch began.
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
            # Half a microsecond forgives the rounding of stamps that are sums of ticks.
            if t_s[end] - t_s[begin] >= self.hold_s - 5e-7 and t_s[begin] <= self.within_s:
                return float(t_s[begin])
        return None
