"""The spread of the durations of emulated devices."""

from __future__ import annotations

import numpy as np

_TABLE = 1 << 14
_MASK = (1 << 64) - 1


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
