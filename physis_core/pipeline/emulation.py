"""Emulated devices: they take the time that a profile says instead of computing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from physis_core.types import UserError

_TABLE = 1 << 14
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulation:
    """`noise` is the relative standard deviation of one task's duration, drawn anew per (chunk,
    stage).
    """

    costs: Mapping[int, Mapping[int, float]]
    noise: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.noise < 0.3:
            raise UserError("noise", self.noise, "must be in [0, 0.3): durations stay positive")


class DurationNoise:
    """Factor on a task's duration: a pure function of (seed, chunk, stage), so that two runs agree.

    Normal, cut at three standard deviations. The draws come from a table because a run of 200
    stages asks for 40,000 of them a second.
    """

    __slots__ = ("_seed", "_table")

    def __init__(self, noise: float, seed: int) -> None:
        draws = np.random.default_rng(seed).standard_normal(_TABLE)
        self._table: list[float] = (1.0 + noise * np.clip(draws, -3.0, 3.0)).tolist()
        self._seed = seed

    def factor(self, chunk: int, stage: int) -> float:
        # Multiply-and-fold hash (constants of splitmix64): neighbouring chunks and stages must not
        # correlate.
        key = (chunk * 0x9E3779B97F4A7C15 + stage * 0xBF58476D1CE4E5B9 + self._seed) & _MASK
        key ^= key >> 30
        key = (key * 0x94D049BB133111EB) & _MASK
        return self._table[(key >> 40) % _TABLE]
