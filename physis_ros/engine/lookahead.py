"""Estimates the time from capture to a chunk's exit: the model's lookahead. Pure."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from physis_core.types import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class LookaheadConfig:
    """`quantile` of the last `window` measured ages, without the first `warmup` of an epoch.

    `initial_s` is used until `enough` ages were measured. The result stays within 0..max_s, the
    range that the model was trained for.
    """

    initial_s: float
    max_s: float
    quantile: float = 0.9
    window: int = 100
    warmup: int = 8
    enough: int = 10

    def __post_init__(self) -> None:
        if not 0.0 <= self.initial_s <= self.max_s:
            raise UserError("lookahead_initial_s", self.initial_s, f"must be in 0..{self.max_s:g}")
        if not 0.0 < self.quantile < 1.0:
            raise UserError("lookahead_quantile", self.quantile, "must be between 0 and 1")


class LookaheadEstimator:
    """A running quantile; a slow first inference does not distort it for long."""

    def __init__(self, config: LookaheadConfig) -> None:
        self._config = config
        self._ages_s: deque[float] = deque(maxlen=config.window)
        self._to_skip = config.warmup

    def restart(self) -> None:
        """A new epoch fills the pipeline anew: skip its warm-up, keep earlier ages."""
        self._to_skip = self._config.warmup

    def add(self, age_s: float) -> None:
        """Age of an observation (from its newest capture stamp) at its chunk's exit."""
        if self._to_skip > 0:
            self._to_skip -= 1
            return
        # A negative or infinite age is a clock error, not a latency.
        if math.isfinite(age_s) and age_s >= 0.0:
            self._ages_s.append(age_s)

    @property
    def value_s(self) -> float:
        if len(self._ages_s) < self._config.enough:
            return self._config.initial_s
        ages_s = sorted(self._ages_s)
        index = math.ceil(self._config.quantile * len(ages_s)) - 1
        return min(ages_s[max(index, 0)], self._config.max_s)

    @property
    def measured(self) -> int:
        return len(self._ages_s)

    @property
    def capped(self) -> bool:
        """The latency exceeds the largest lookahead of the model."""
        return self.measured >= self._config.enough and self.value_s >= self._config.max_s
