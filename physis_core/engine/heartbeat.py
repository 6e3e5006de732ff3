"""Which workers were not heard of for too long: pure decisions over a stream of `heard`.

The engine pings each worker, and a worker's receiving thread answers at once, whatever its loop
computes. Silence therefore means a stopped process or a cut network, not a long block. A loop that
hangs is found by its overdue chunks.

The engine may have been stopped itself. Time in which its loop did not turn is nobody's silence.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

PERIOD_S = 0.2
"""Between two pings of a worker."""
SLOW_LIMIT_S = 5.0
"""Silence of a worker whose process runs, as this host shows: a busy machine is no loss."""
_LOOK_S = 0.05
"""Between two looks at what was heard."""
_OWN_PAUSE_S = 0.15
"""A longer pause between two looks is the engine's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Silent:
    """A worker that counts as lost."""

    worker: int
    silent_s: float


class Heartbeat:
    """Args:
    limit_s: silence after which a worker counts as lost.
    runs: whether this host shows that the worker's process runs; None where it cannot know.
    """

    def __init__(self, limit_s: float, runs: Callable[[int], bool | None]) -> None:
        self._limit_s = limit_s
        self._runs = runs
        self._heard_s: dict[int, float] = {}
        self._ping_s = -math.inf
        self._looked_s = -math.inf

    def watch(self, worker: int, now_s: float) -> None:
        """It is ready: from now on it is to be heard."""
        self._heard_s[worker] = now_s

    def forget(self, worker: int) -> None:
        """It is lost, or stopped: nobody waits for it."""
        self._heard_s.pop(worker, None)

    def heard(self, worker: int, now_s: float) -> None:
        if worker in self._heard_s:
            self._heard_s[worker] = now_s

    def turn(self, now_s: float) -> tuple[tuple[int, ...], tuple[Silent, ...]]:
        """Whom to ping now, and who counts as lost; each loss is said once."""
        pause_s = now_s - self._looked_s
        if pause_s < _LOOK_S:
            return (), ()
        self._looked_s = now_s
        if pause_s > _OWN_PAUSE_S:
            self._heard_s = {w: min(s + pause_s, now_s) for w, s in self._heard_s.items()}
        lost = []
        for worker, heard_s in list(self._heard_s.items()):
            silent_s = now_s - heard_s
            if silent_s < self._limit_s:
                continue
            if silent_s < max(self._limit_s, SLOW_LIMIT_S) and self._runs(worker):
                continue
            self.forget(worker)
            lost.append(Silent(worker=worker, silent_s=silent_s))
        if now_s < self._ping_s + PERIOD_S:
            return (), tuple(lost)
        self._ping_s = now_s
        return tuple(self._heard_s), tuple(lost)

    def next_s(self) -> float:
        """When `turn` has something to say, if nothing else happens."""
        return self._ping_s + PERIOD_S if self._heard_s else math.inf
