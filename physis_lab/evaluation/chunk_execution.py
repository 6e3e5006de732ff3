"""How chunks become commands in the fast closed loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from physis_core.types import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """`points` [K, J] rad, the first at `start_s`, one per `step_s`; in force from `exit_s` on."""

    exit_s: float
    start_s: float
    step_s: float
    points: Array
    captured_s: float = 0.0
    """Of the oldest observation that touched it."""

    def at(self, t_s: float) -> Array:
        """Linear between points, held before the first and after the last."""
        place = np.clip((t_s - self.start_s) / self.step_s, 0.0, len(self.points) - 1)
        low = min(int(place), len(self.points) - 2)
        share = place - low
        out: Array = (1.0 - share) * self.points[low] + share * self.points[low + 1]
        return out


class Player(Protocol):
    """Takes one robot's chunks and says where its joints are commanded to be."""

    def offer(self, chunk: Chunk, now_s: float) -> None:
        """`chunk` has arrived; called in the order of arrival."""
        ...

    def command(self, t_s: float) -> Array:
        """Joint positions [J] rad at `t_s`, which never goes back."""
        ...


class BlendPlayer:
    """The newest chunk counts from its arrival on, faded in from the one before within `blend_s`.

    `held` [J] rad is commanded before the first.
    """

    def __init__(self, held: Array, blend_s: float) -> None:
        self._held = held.copy()
        self._blend_s = blend_s
        self._before: Chunk | None = None
        self._newest: Chunk | None = None

    def offer(self, chunk: Chunk, now_s: float) -> None:
        self._before, self._newest = self._newest, chunk

    def command(self, t_s: float) -> Array:
        if self._newest is None:
            return self._held
        newest = self._newest.at(t_s)
        age_s = t_s - self._newest.exit_s
        if self._before is None or age_s >= self._blend_s:
            return newest
        share = max(0.0, age_s / self._blend_s)
        out: Array = (1.0 - share) * self._before.at(t_s) + share * newest
        return out
