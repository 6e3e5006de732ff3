"""Jitter and lost ticks of a fixed-rate loop, from the steady times at which it woke."""

from __future__ import annotations

from physis_core.observe.percentiles import SlidingWindow
from physis_core.types import Percentiles


class LoopTiming:
    """Compares each wake-up with the grid point that it was due at.

    A tick is lost when the loop woke so late that the next grid point had passed as well: the loop
    does not make it up, it goes on with the first grid point that lies ahead.
    """

    def __init__(self, *, period_s: float, window: int) -> None:
        self.period_s = period_s
        self._jitter_ms = SlidingWindow(window)
        self.lost = 0
        self.ticks = 0

    def tick(self, now_s: float, due_s: float) -> float:
        """Record a wake-up at `now_s` that was due at `due_s`. Returns when the next one is due."""
        self.ticks += 1
        late_s = max(0.0, now_s - due_s)
        self._jitter_ms.add(late_s * 1e3)
        skipped = int(late_s / self.period_s)
        self.lost += skipped
        return due_s + (skipped + 1) * self.period_s

    def jitter_ms(self) -> Percentiles:
        return self._jitter_ms.percentiles()
