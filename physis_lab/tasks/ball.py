"""The tasks with a ball: follow it, or touch it. Pure in (seed, t)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from physis_core.types import Array, UserError
from physis_lab.arm.scene import BALL, BALL_RADIUS_M, TOOL_TIP_M, Props
from physis_lab.tasks.outcome import Arrives, Rule, StaysNear

BOX_LOW_M: tuple[float, float, float] = (0.33, -0.27, 0.08)
BOX_HIGH_M: tuple[float, float, float] = (0.58, 0.27, 0.28)
"""The ball's centre stays in this box in front of the arm, visible and within reach."""

HOVER_M = 0.10
"""Goal height of the end effector above the ball's centre."""

_WAVES = 3

FASTEST_M_S = 0.5
JUMP_PERIOD_S = 4.0
"""Of the task `follow_jumps`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Follow:
    """Stay above a ball that moves smoothly; with `jump_period_s` it also jumps.

    Each axis is a sum of three sinusoids scaled to the box. Time is scaled to the peak speed
    `peak_speed_m_s` (default: drawn from the seed). With jumps, the ball moves to another such path
    every `jump_period_s`. `stretch` above 1 pushes the path against the sides and corners of the
    box, where it rests for a while. The ball stands still until `stand_s`.
    """

    seed: int
    peak_speed_m_s: float | None = None
    jump_period_s: float | None = None
    stretch: float = 1.0
    stand_s: float = 0.0

    def __post_init__(self) -> None:
        # The search for the peak speed covers a time span that is only long enough for slow paths.
        speed = self.peak_speed_m_s
        if speed is not None and not 0.0 <= speed <= FASTEST_M_S:
            raise UserError("peak_speed_m_s", speed, f"must be between 0 and {FASTEST_M_S} m/s")
        if self.jump_period_s is not None and not self.jump_period_s > 0.0:
            raise UserError("jump_period_s", self.jump_period_s, "must be positive")
        if not 1.0 <= self.stretch <= 3.0:
            raise UserError("stretch", self.stretch, "must be between 1 and 3")
        if not 0.0 <= self.stand_s < math.inf:
            raise UserError("stand_s", self.stand_s, "must not be negative")

    @property
    def name(self) -> str:
        return "follow" if self.jump_period_s is None else "follow_jumps"

    @property
    def duration_s(self) -> float:
        return 20.0

    @property
    def props(self) -> Props:
        return BALL

    @property
    def rule(self) -> Rule:
        return StaysNear()

    @property
    def object_start(self) -> Array | None:
        return None

    def target(self, t_s: float) -> Array:
        position: Array = self.targets(np.array([t_s]))[0]
        return position

    def goal(self, t_s: float) -> Array:
        return self.target(t_s) + (0.0, 0.0, HOVER_M)

    def targets(self, t_s: Array) -> Array:
        """Ball positions [n, 3] m at the times `t_s` [n] s."""
        t_s = np.maximum(np.asarray(t_s, dtype=np.float64) - self.stand_s, 0.0)
        if self.jump_period_s is None:
            return self._kept_in_box(_path(self.seed, 0, self.peak_speed_m_s).at(t_s))
        segment = np.floor(t_s / self.jump_period_s).astype(int)
        out = np.empty((len(t_s), 3))
        for s in np.unique(segment):
            here = segment == s
            out[here] = _path(self.seed, int(s), self.peak_speed_m_s).at(t_s[here])
        return self._kept_in_box(out)

    def _kept_in_box(self, positions: Array) -> Array:
        if self.stretch == 1.0:
            return positions
        low, high = np.array(BOX_LOW_M), np.array(BOX_HIGH_M)
        center = (low + high) / 2
        kept: Array = np.clip(center + self.stretch * (positions - center), low, high)
        return kept


@dataclass(frozen=True, slots=True, kw_only=True)
class _Path:
    """center + sum over waves of amplitude * sin(rate * t + phase); arrays are [3 axes, waves]."""

    center: Array
    amplitude: Array
    rate_rad_s: Array
    phase_rad: Array

    def at(self, t_s: Array) -> Array:
        angle = self.rate_rad_s * t_s[:, None, None] + self.phase_rad
        position: Array = self.center + (self.amplitude * np.sin(angle)).sum(axis=-1)
        return position

    def speed(self, t_s: Array) -> Array:
        angle = self.rate_rad_s * t_s[:, None, None] + self.phase_rad
        velocity = (self.amplitude * self.rate_rad_s * np.cos(angle)).sum(axis=-1)
        norm: Array = np.linalg.norm(velocity, axis=-1)
        return norm


@lru_cache(maxsize=4096)
def _path(seed: int, segment: int, peak_speed_m_s: float | None) -> _Path:
    random = np.random.default_rng([seed & 0xFFFFFFFF, segment & 0xFFFFFFFF, 0x70617468])
    low, high = np.array(BOX_LOW_M), np.array(BOX_HIGH_M)
    weight = random.uniform(0.4, 1.0, size=(3, _WAVES)) / np.array([1.0, 2.2, 4.0])
    weight /= weight.sum(axis=1, keepdims=True)
    rate = 2.0 * math.pi * random.uniform(0.06, 0.13, size=(3, _WAVES)) * np.array([1.0, 1.9, 3.1])
    phase = random.uniform(0.0, 2.0 * math.pi, size=(3, _WAVES))
    drawn = random.uniform(0.15, 0.28)
    peak = drawn if peak_speed_m_s is None else peak_speed_m_s
    path = _Path(
        center=(low + high) / 2,
        amplitude=weight * ((high - low) / 2)[:, None],
        rate_rad_s=rate,
        phase_rad=phase,
    )
    # Scaling time scales all speeds equally and keeps the shape of the path.
    fastest = float(path.speed(np.arange(0.0, 240.0, 0.05)).max())
    return _Path(
        center=path.center,
        amplitude=path.amplitude,
        rate_rad_s=rate * (peak / fastest),
        phase_rad=phase,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Touch a ball at rest in the box: the tool's round tip rests on top of it.

    Success: a touch within 20 mm that starts in the first 5 s and lasts 0.5 s. With `every_s` the
    ball moves to another place in that interval.
    """

    seed: int
    every_s: float | None = None

    def __post_init__(self) -> None:
        if self.every_s is not None and not self.every_s > 0.0:
            raise UserError("every_s", self.every_s, "must be positive")

    @property
    def name(self) -> str:
        return "reach"

    @property
    def duration_s(self) -> float:
        return 6.0

    @property
    def props(self) -> Props:
        return BALL

    @property
    def rule(self) -> Rule:
        return Arrives(tolerance_m=0.02, within_s=5.0)

    @property
    def object_start(self) -> Array | None:
        return None

    def target(self, t_s: float) -> Array:
        place = 0 if self.every_s is None else max(0, math.floor(t_s / self.every_s))
        return _place(self.seed, place).copy()

    def goal(self, t_s: float) -> Array:
        return self.target(t_s) + (0.0, 0.0, BALL_RADIUS_M + TOOL_TIP_M)


@lru_cache(maxsize=4096)
def _place(seed: int, number: int) -> Array:
    random = np.random.default_rng([seed & 0xFFFFFFFF, number, 0x72656163])
    position: Array = random.uniform(BOX_LOW_M, BOX_HIGH_M)
    return position
