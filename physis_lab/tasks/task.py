"""Tasks by name and seed: where the mark is at time t, where the arm or an object belongs, and what
a success is. Everything is a pure function of (seed, t).

    task = make_task("reach", seed=7)
    task.target(t_s), task.goal(t_s)              [3] m each
    outcome = judge_episode(task, t_s, moved)     success, error_m, time_s

where `moved` [n, 3] m is the recorded path of what the task moves: the end effector, or the object
where `task.object_start` is not None.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np

from physis_core.types import Array, UserError
from physis_lab.arm.scene import BALL, BALL_RADIUS_M, TOOL_TIP_M, Props
from physis_lab.tasks.outcome import Arrives, Outcome, Rule, StaysNear
from physis_lab.tasks.push import Push

BOX_LOW_M: tuple[float, float, float] = (0.33, -0.27, 0.08)
BOX_HIGH_M: tuple[float, float, float] = (0.58, 0.27, 0.28)
"""The ball's centre stays in this box, in front of the arm, in sight and within reach."""

HOVER_M = 0.10
"""The end effector belongs this far above the ball's centre."""

_WAVES = 3


class Task(Protocol):
    """What the arm is asked to do, as seen by the scene and by the judge."""

    @property
    def name(self) -> str: ...

    @property
    def duration_s(self) -> float:
        """How long an episode is that is to be judged."""
        ...

    @property
    def props(self) -> Props:
        """What the scene shows; one kind of task has one."""
        ...

    @property
    def rule(self) -> Rule:
        """What a success is."""
        ...

    @property
    def object_start(self) -> Array | None:
        """Where the object lies first [3] m (its centre); None where the task has no object."""
        ...

    def target(self, t_s: float) -> Array:
        """Position of the mark (ball, goal on the floor) [3] m, `t_s` after the task began."""
        ...

    def goal(self, t_s: float) -> Array:
        """Where the end effector, or the object of a task with one, belongs [3] m at `t_s`."""
        ...


FASTEST_M_S = 0.5
JUMP_PERIOD_S = 4.0
"""Of the task `follow_jumps`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Follow:
    """Stay above a ball that wanders smoothly; with `jump_period_s`, it also leaps now and then.

    Each axis is a sum of three sinusoids scaled to the box, and the whole is slowed or sped up so
    that its fastest moment is `peak_speed_m_s` (drawn from the seed where not given). With jumps,
    the ball is set onto another such path every `jump_period_s`. `stretch` above 1 pushes the path
    against the sides of the box and into its corners, where it rests for a while; the ball stands
    still until `stand_s`.
    """

    seed: int
    peak_speed_m_s: float | None = None
    jump_period_s: float | None = None
    stretch: float = 1.0
    stand_s: float = 0.0

    def __post_init__(self) -> None:
        # The fastest moment is sought over a stretch of time that covers slow paths only.
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
    # Slowing time down scales every speed alike and leaves the shape of the path as it is.
    fastest = float(path.speed(np.arange(0.0, 240.0, 0.05)).max())
    return _Path(
        center=path.center,
        amplitude=path.amplitude,
        rate_rad_s=rate * (peak / fastest),
        phase_rad=phase,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Touch a ball that stands somewhere in the box: the tool's round tip rests on top of it.

    A success is a touch within 20 mm, begun in the first 5 s and kept for 0.5 s. With `every_s` the
    ball is set onto another place again and again.
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


TASKS: tuple[str, ...] = ("follow", "follow_jumps", "reach", "push")


def make_task(name: str, seed: int) -> Task:
    """The task `name`, seeded.

    Raises:
        UserError: no such task.
    """
    if name == "follow":
        return Follow(seed=seed)
    if name == "follow_jumps":
        return Follow(seed=seed, jump_period_s=JUMP_PERIOD_S)
    if name == "reach":
        return Reach(seed=seed)
    if name == "push":
        return Push(seed=seed)
    raise UserError("task", name, f"one of {', '.join(TASKS)}")


def judge_episode(task: Task, t_s: Array, moved: Array) -> Outcome:
    """What became of one episode.

    Args:
        t_s: [n] s since the task began, increasing.
        moved: [n, 3] m at these times, the end effector or (`object_start`) the object's centre;
            its first row is where it was before anything moved.

    Raises:
        ValueError: the record is too short to be judged.
    """
    goals = np.stack([task.goal(float(t)) for t in t_s]) if len(t_s) else np.empty((0, 3))
    return task.rule.judge(
        t_s, np.linalg.norm(moved - goals, axis=1), np.linalg.norm(moved[:1] - goals, axis=1)
    )
