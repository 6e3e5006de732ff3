"""The behaviour of ros2_control's joint_trajectory_controller, without ROS or robot.

The simulated robot runs this, so a stack that moves it well also moves a stock controller well. It
follows the rules of the real one, including the unfriendly ones: by default each message restarts
from the measured state, and neither NaN nor limits are checked. Pure: the caller gives the time.

All times are seconds of one clock; the caller turns a message's stamp into `start_s`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from physis_core.types import Array, UserError
from physis_ros.robot.point_interpolation import MotionState, interpolate

PastStart = Literal["step", "shift"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryPoint:
    """One point; an empty tuple means that the quantity is not given. Radians and seconds."""

    time_from_start_s: float
    positions: tuple[float, ...]
    velocities: tuple[float, ...] = ()
    accelerations: tuple[float, ...] = ()
    effort: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """A JointTrajectory. `start_s` is None where the stamp is 0: it starts when first played."""

    joint_names: tuple[str, ...]
    points: tuple[TrajectoryPoint, ...]
    start_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerConfig:
    """The controller's parameters with their original names and defaults.

    `past_start`: what happens to a start in the past. `step` begins in the middle, by time (Humble
    to Kilted, and later with `allow_trajectory_replacement: false`); `shift` begins the whole
    trajectory now (later releases by default).
    """

    joint_names: tuple[str, ...]
    interpolate_from_desired_state: bool = False
    allow_partial_joints_goal: bool = False
    allow_nonzero_velocity_at_trajectory_end: bool = False
    cmd_timeout_s: float = 0.0
    past_start: PastStart = "step"

    def __post_init__(self) -> None:
        if not self.joint_names:
            raise UserError("joints", self.joint_names, "must name at least one joint")
        if len(set(self.joint_names)) != len(self.joint_names):
            raise UserError("joints", self.joint_names, "a name is given twice")
        if not self.cmd_timeout_s >= 0.0:
            raise UserError("cmd_timeout", self.cmd_timeout_s, "must be 0 (off) or positive")
        if self.past_start not in ("step", "shift"):
            raise UserError("past_start", self.past_start, "one of step, shift")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What the controller writes to the joints at one tick, and whether it only holds."""

    state: MotionState
    holding: bool


def refusal(trajectory: Trajectory, config: ControllerConfig, now_s: float) -> str | None:
    """Why the controller refuses `trajectory` at `now_s`; None where it takes it."""
    names, points = trajectory.joint_names, trajectory.points
    if not names:
        return "joint_names is empty"
    if not points:
        return "points is empty"
    unknown = [name for name in names if name not in config.joint_names]
    if unknown:
        return f"joint {unknown[0]!r} is not one of this controller's"
    if len(set(names)) != len(names):
        return "a joint is named twice"
    if len(names) != len(config.joint_names) and not config.allow_partial_joints_goal:
        missing = [name for name in config.joint_names if name not in names]
        return f"joint {missing[0]!r} is missing, and partial goals are not allowed"
    if trajectory.start_s is not None:
        end_s = trajectory.start_s + points[-1].time_from_start_s
        if end_s < now_s:
            return f"the trajectory ended {now_s - end_s:.3f} s ago"
    previous_s = -math.inf
    for i, point in enumerate(points):
        if point.time_from_start_s < 0.0 or point.time_from_start_s <= previous_s:
            return f"point {i}: time_from_start {point.time_from_start_s} does not increase"
        previous_s = point.time_from_start_s
        if len(point.positions) != len(names):
            return f"point {i}: {len(point.positions)} positions for {len(names)} joints"
        for field, values in (
            ("velocities", point.velocities),
            ("accelerations", point.accelerations),
        ):
            if values and len(values) != len(names):
                return f"point {i}: {len(values)} {field} for {len(names)} joints"
        if point.effort:
            return f"point {i}: effort is given, and no effort interface is claimed"
    if not config.allow_nonzero_velocity_at_trajectory_end and any(
        abs(v) > 1e-9 for v in points[-1].velocities
    ):
        return "the last point's velocity is not zero"
    return None


@dataclass(slots=True, kw_only=True)
class _Plan:
    """The trajectory in force, its points in the controller's joint order at absolute times [s]."""

    times_s: tuple[float, ...]
    states: tuple[MotionState, ...]
    begun_s: float
    before: MotionState


class TrajectoryController:
    """Accepts trajectories and returns a command per tick. Holds the measured position at first."""

    def __init__(self, config: ControllerConfig, measured: MotionState) -> None:
        self.config = config
        self._plan: _Plan | None = None
        self._waiting: Trajectory | None = None
        self._hold = _standing(measured.position)
        self._last = self._hold
        self._last_s: float | None = None

    @property
    def commanded(self) -> MotionState:
        """The last command."""
        return self._last

    def accept(self, trajectory: Trajectory, now_s: float) -> str | None:
        """Replace the current trajectory from the next tick on. Returns why not; None if it
        does."""
        reason = refusal(trajectory, self.config, now_s)
        if reason is None:
            self._waiting = trajectory
        return reason

    def update(self, now_s: float, measured: MotionState) -> Command:
        """The command at `now_s`; `measured` is where the joints are."""
        if self._waiting is not None:
            self._plan = self._begin(self._waiting, now_s, measured)
            self._waiting = None
        self._last_s = now_s
        plan = self._plan
        if plan is None:
            self._last = self._hold
            return Command(state=self._hold, holding=True)
        over_s = now_s - plan.times_s[-1]
        if self.config.cmd_timeout_s > 0.0 and over_s > self.config.cmd_timeout_s:
            # The real one holds the measured position here, not the commanded one.
            self._plan, self._hold = None, _standing(measured.position)
            self._last = self._hold
            return Command(state=self._hold, holding=True)
        self._last = _sample(plan, now_s)
        return Command(state=self._last, holding=over_s >= 0.0)

    def _begin(self, trajectory: Trajectory, now_s: float, measured: MotionState) -> _Plan:
        start_s = now_s if trajectory.start_s is None else trajectory.start_s
        if self.config.past_start == "shift":
            start_s = max(start_s, now_s)
        begun_s, before = now_s, measured
        if self.config.interpolate_from_desired_state:
            # The desired state belongs to the tick before; used as this tick's, it would stall one
            # tick.
            begun_s, before = (now_s if self._last_s is None else self._last_s), self._last
        order = [
            trajectory.joint_names.index(name) if name in trajectory.joint_names else -1
            for name in self.config.joint_names
        ]
        return _Plan(
            times_s=tuple(start_s + p.time_from_start_s for p in trajectory.points),
            states=tuple(_ordered(p, order, before.position) for p in trajectory.points),
            begun_s=begun_s,
            before=before,
        )


def _standing(position: Array) -> MotionState:
    zeros = np.zeros_like(position)
    return MotionState(position=position.copy(), velocity=zeros, acceleration=zeros)


def _ordered(point: TrajectoryPoint, order: list[int], rest: Array) -> MotionState:
    """The point in the controller's joint order; joints that it does not name stay at `rest`."""

    def pick(values: tuple[float, ...], absent: Array) -> Array | None:
        if not values:
            return None
        return np.array([values[k] if k >= 0 else absent[j] for j, k in enumerate(order)])

    zeros = np.zeros(len(order))
    position = pick(point.positions, rest)
    assert position is not None
    return MotionState(
        position=position,
        velocity=pick(point.velocities, zeros),
        acceleration=pick(point.accelerations, zeros),
    )


def _sample(plan: _Plan, now_s: float) -> MotionState:
    times, states = plan.times_s, plan.states
    if now_s < times[0]:
        return interpolate(plan.begun_s, plan.before, times[0], states[0], now_s)
    for i in range(len(times) - 1):
        if now_s < times[i + 1]:
            return interpolate(times[i], states[i], times[i + 1], states[i + 1], now_s)
    last = states[-1]
    zeros = np.zeros_like(last.position)
    return MotionState(
        position=last.position,
        velocity=zeros if last.velocity is None else last.velocity,
        acceleration=zeros if last.acceleration is None else last.acceleration,
    )
