"""How much a task's duration differs from the profile: jitter, tails and measured slowdown."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from physis_core.pipeline.emulation import DurationNoise
from physis_core.types import UserError

_TABLE = 1 << 15
_MASK = (1 << 64) - 1
_Z99 = 2.3263478740408408
"""99th percentile of the standard normal distribution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseSpec:
    """Jitter of task durations.

    `relative`: standard deviation of a normal factor, as emulated devices have it.
    `p99_ratio`: p99 over p50 of a log-normal factor, as a measured profile gives it.
    `tail_probability`, `tail_factor`: now and then a task takes so many times as long.
    `factors`: measured factors, drawn evenly; instead of the others.
    """

    relative: float = 0.0
    p99_ratio: float = 1.0
    tail_probability: float = 0.0
    tail_factor: float = 1.0
    factors: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not 0.0 <= self.relative < 0.3:
            raise UserError("relative", self.relative, "must be in [0, 0.3)")
        if not 1.0 <= self.p99_ratio < 100.0:
            raise UserError("p99_ratio", self.p99_ratio, "must be in [1, 100)")
        if self.relative > 0.0 and self.p99_ratio > 1.0:
            raise UserError("p99_ratio", self.p99_ratio, "give it or `relative`, not both")
        if self.factors and (self.relative > 0.0 or self.p99_ratio > 1.0):
            raise UserError("factors", len(self.factors), "give them or a distribution, not both")
        if not all(0.0 < factor < math.inf for factor in self.factors):
            raise UserError("factors", min(self.factors), "must be positive and finite")
        if not 0.0 <= self.tail_probability < 1.0:
            raise UserError("tail_probability", self.tail_probability, "must be in [0, 1)")
        if self.tail_factor < 1.0:
            raise UserError("tail_factor", self.tail_factor, "must be at least 1")

    @property
    def silent(self) -> bool:
        tail = self.tail_probability > 0.0
        return not (tail or self.factors) and self.relative == 0.0 and self.p99_ratio == 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedTrace:
    """Measured slowdown of each device over time. Batches that start within the i-th `step_s` take
    `factors[device][i]` times as long; the last factor applies to the rest. A device that is not
    named keeps its costs.
    """

    step_s: float
    factors: Mapping[int, tuple[float, ...]]

    def __post_init__(self) -> None:
        if not 0.0 < self.step_s < math.inf:
            raise UserError("step_s", self.step_s, "must be positive and finite")
        for device, factors in self.factors.items():
            if not factors or not all(0.0 < factor < math.inf for factor in factors):
                raise UserError(f"factors[{device}]", factors, "must be positive and finite")

    def factor(self, device: int, at_s: float) -> float:
        factors = self.factors.get(device)
        if factors is None:
            return 1.0
        return factors[min(int(at_s / self.step_s), len(factors) - 1)]


class Noise:
    """Factor on a task's duration: a pure function of (seed, stream, chunk, stage)."""

    __slots__ = ("_same", "_seed", "_table")

    def __init__(self, spec: NoiseSpec, seed: int) -> None:
        # For one stream and normal jitter these are the same draws as in the emulated devices.
        self._same = DurationNoise(spec.relative, seed) if spec.relative > 0.0 else None
        draws = np.random.default_rng([seed, 1]).standard_normal(_TABLE)
        factors = np.exp(draws * math.log(spec.p99_ratio) / _Z99)
        if spec.factors:
            factors = np.random.default_rng([seed, 3]).choice(spec.factors, _TABLE)
        if spec.tail_probability > 0.0:
            tail = np.random.default_rng([seed, 2]).random(_TABLE) < spec.tail_probability
            factors = np.where(tail, factors * spec.tail_factor, factors)
        self._table: list[float] = factors.tolist()
        self._seed = seed

    def factor(self, stream: int, chunk: int, stage: int) -> float:
        key = (chunk + (stream << 24)) * 0x9E3779B97F4A7C15 + stage * 0xBF58476D1CE4E5B9
        key = (key + self._seed) & _MASK
        key ^= key >> 30
        key = (key * 0x94D049BB133111EB) & _MASK
        factor = self._table[(key >> 40) % _TABLE]
        if self._same is not None:
            factor *= self._same.factor(chunk + (stream << 24), stage)
        return factor
