"""Is work arriving faster than it is served, and where? From queue lengths in, plain advice out.

A queue that keeps growing against its downstream neighbour marks the stage that cannot keep up. A
larger buffer would only hide it, so the advice is to stop admitting and to shrink low-priority
batches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from physis_core.types import UserError

Level = Literal["ok", "rising", "overloaded"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OverloadConfig:
    """Thresholds on the smoothed difference of queue lengths between neighbours, in tasks.

    `smoothing_s`: time constant. `hold_s`: how long a level must be exceeded before it is declared;
    `clear_s`: how long the difference must stay below half of `rising_tasks` before all is well
    again.
    """

    rising_tasks: float = 2.0
    overloaded_tasks: float = 6.0
    smoothing_s: float = 0.5
    hold_s: float = 1.0
    clear_s: float = 5.0

    def __post_init__(self) -> None:
        if not 0.0 < self.rising_tasks <= self.overloaded_tasks:
            raise UserError(
                "rising_tasks", self.rising_tasks, "must be positive and <= overloaded_tasks"
            )
        for name in ("smoothing_s", "hold_s", "clear_s"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise UserError(name, getattr(self, name), "must be finite and not negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class OverloadState:
    """`where` is the index of the queue that grows against its downstream neighbour; -1 while
    ok.
    """

    level: Level
    where: int
    difference_tasks: float
    since_s: float

    @property
    def admit(self) -> bool:
        """False: refuse new streams."""
        return self.level == "ok"

    @property
    def low_priority_max_batch(self) -> int | None:
        """Largest batch of less important tasks (see `dispatch.decide`); None: no limit."""
        return 1 if self.level == "overloaded" else None


class OverloadDetector:
    """Smooths queue differences and applies hysteresis. Not thread-safe: one owner."""

    def __init__(self, config: OverloadConfig | None = None) -> None:
        self._config = config if config is not None else OverloadConfig()
        self._smooth: list[float] = []
        self._last_s: float | None = None
        self._above_rising_s: float | None = None
        self._above_overloaded_s: float | None = None
        self._below_s: float | None = None
        self._state = OverloadState(level="ok", where=-1, difference_tasks=0.0, since_s=0.0)

    @property
    def state(self) -> OverloadState:
        return self._state

    def observe(
        self, now_s: float, queues: Sequence[int], dropped_for_credit: int = 0
    ) -> OverloadState:
        """Take in the queue lengths in pipeline order, upstream first, at `now_s`.

        `dropped_for_credit`: chunks since the last call that could not enter for want of credits.
        Credit flow control bounds every queue inside, so beyond it the growth shows only there:
        they count as queued at the entry.
        """
        config = self._config
        if not queues:
            raise UserError("queues", list(queues), "needs at least one queue")
        differences = [float(a - b) for a, b in zip(queues, [*queues[1:], 0], strict=True)]
        differences[0] += dropped_for_credit
        if len(differences) != len(self._smooth) or self._last_s is None:
            self._smooth = [0.0] * len(differences)
            weight = 0.0 if self._last_s is None else 1.0
        else:
            dt_s = max(0.0, now_s - self._last_s)
            weight = (
                1.0 if config.smoothing_s == 0.0 else 1.0 - math.exp(-dt_s / config.smoothing_s)
            )
        self._last_s = now_s
        self._smooth = [
            s + weight * (d - s) for s, d in zip(self._smooth, differences, strict=True)
        ]
        worst = max(range(len(self._smooth)), key=self._smooth.__getitem__)
        value = self._smooth[worst]
        self._above_rising_s = _since(self._above_rising_s, value >= config.rising_tasks, now_s)
        self._above_overloaded_s = _since(
            self._above_overloaded_s, value >= config.overloaded_tasks, now_s
        )
        self._below_s = _since(self._below_s, value < config.rising_tasks / 2.0, now_s)
        level = self._level(now_s)
        changed = level != self._state.level
        self._state = OverloadState(
            level=level,
            where=-1 if level == "ok" else worst,
            difference_tasks=value,
            since_s=now_s if changed else self._state.since_s,
        )
        return self._state

    def _level(self, now_s: float) -> Level:
        config = self._config
        if _lasted(self._above_overloaded_s, now_s, config.hold_s):
            return "overloaded"
        if self._state.level == "ok":
            return "rising" if _lasted(self._above_rising_s, now_s, config.hold_s) else "ok"
        if _lasted(self._below_s, now_s, config.clear_s):
            return "ok"
        return self._state.level


def _since(start_s: float | None, holds: bool, now_s: float) -> float | None:
    if not holds:
        return None
    return now_s if start_s is None else start_s


def _lasted(start_s: float | None, now_s: float, duration_s: float) -> bool:
    return start_s is not None and now_s - start_s >= duration_s
