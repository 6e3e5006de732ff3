"""How the fast closed loop executes chunks: from chunks that arrive to joint commands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from physis_core.types import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivedChunk:
    """`points` [K, J] rad, the first at `start_s`, one per `step_s`; in force from `exit_s` on."""

    exit_s: float
    start_s: float
    step_s: float
    points: Array
    captured_s: float = 0.0
    """Capture time of the oldest observation that the chunk used."""

    def at(self, t_s: float) -> Array:
        """Linear between points; the first and last point are held outside."""
        place = np.clip((t_s - self.start_s) / self.step_s, 0.0, len(self.points) - 1)
        low = min(int(place), len(self.points) - 2)
        share = place - low
        out: Array = (1.0 - share) * self.points[low] + share * self.points[low + 1]
        return out


class ChunkExecutor(Protocol):
    """Takes the chunks of one robot and gives its joint commands."""

    def offer(self, chunk: ArrivedChunk, now_s: float) -> None:
        """`chunk` has arrived. Called in order of arrival."""
        ...

    def command(self, t_s: float) -> Array:
        """Commanded joint positions [J] rad at `t_s`, which never decreases."""
        ...


class BlendExecutor:
    """Executes the newest chunk from its arrival on, blended with the one before over `blend_s`.

    Before the first chunk it commands `held` [J] rad.
    """

    def __init__(self, held: Array, blend_s: float) -> None:
        self._held = held.copy()
        self._blend_s = blend_s
        self._before: ArrivedChunk | None = None
        self._newest: ArrivedChunk | None = None

    def offer(self, chunk: ArrivedChunk, now_s: float) -> None:
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
