"""Jitter and lost ticks of a fixed-rate loop, from the steady times at which it woke."""

from __future__ import annotations

import math

from physis_core.observe.percentiles import SlidingWindow
from physis_core.types import Percentiles


class LoopTiming:
    """Compares each wake-up with a grid of `period_s`.

    Jitter is how much later (or earlier) than one period after the grid point before it a tick
    came; a tick is lost when the loop woke so late that the next grid point had passed as well.
    After a loss the grid goes on from the present, so that one delay is counted once.
    """

    def __init__(self, *, period_s: float, window: int) -> None:
        self._period_s = period_s
        self._due_s = math.nan
        self._jitter_ms = SlidingWindow(window)
        self.lost = 0
        self.ticks = 0

    def tick(self, now_s: float) -> float:
        """Record a wake-up. Returns its lateness in seconds (negative: early)."""
        self.ticks += 1
        if math.isnan(self._due_s):
            self._due_s = now_s + self._period_s
            return 0.0
        late_s = now_s - self._due_s
        self._jitter_ms.add(abs(late_s) * 1e3)
        skipped = math.floor(late_s / self._period_s) if late_s > 0.0 else 0
        self.lost += skipped
        self._due_s += (skipped + 1) * self._period_s
        return late_s

    def jitter_ms(self) -> Percentiles:
        return self._jitter_ms.percentiles()
