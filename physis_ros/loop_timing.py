"""Jitter and lost ticks of a fixed-rate loop, from the steady times at which it woke."""

from __future__ import annotations

import math

from physis_core.observe.percentiles import SlidingWindow
from physis_core.types import Percentiles


class LoopTiming:
    """Compares each wake-up with a grid of `period_s`.

    Jitter is how much later than its grid point a tick came. A timer is never early, so the
    earliest
    wake-up that was seen fixes the grid. A tick is lost when the loop woke so late that the next
    grid
    point had passed as well.
    """

    def __init__(self, *, period_s: float, window: int) -> None:
        self._period_s = period_s
        self._due_s = math.nan
        self._jitter_ms = SlidingWindow(window)
        self.lost = 0
        self.ticks = 0

    def tick(self, now_s: float) -> float:
        """Record a wake-up. Returns its lateness in seconds."""
        self.ticks += 1
        if math.isnan(self._due_s):
            self._due_s = now_s + self._period_s
            return 0.0
        late_s = now_s - self._due_s
        if late_s < 0.0:
            self._due_s, late_s = now_s, 0.0
        self._jitter_ms.add(late_s * 1e3)
        skipped = math.floor(late_s / self._period_s)
        self.lost += skipped
        self._due_s += (skipped + 1) * self._period_s
        return late_s

    def jitter_ms(self) -> Percentiles:
        return self._jitter_ms.percentiles()
