"""The robot's side: a trajectory controller, an arm that obeys it exactly, and what is on its way.

Pure; times are seconds of the controller's clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from physis_lab.bench.robot.simulated.played_motion import PlayedMotion
from physis_ros.robot.joint_limits import RobotLimits
from physis_ros.robot.joint_motion import Floats
from physis_ros.robot.point_interpolation import MotionState
from physis_ros.robot.trajectory_controller import (
    ControllerConfig,
    Trajectory,
    TrajectoryController,
    TrajectoryPoint,
)
from physis_ros.safety.types import Forward

CONTROLLER_S = 0.008


@dataclass(slots=True, eq=False)
class _Sent:
    """A trajectory on its way: when the controller's side has it, when it may be taken, and when
    safety knows (infinite: never)."""

    trajectory: Trajectory
    taken_s: float
    acknowledged_s: float


class RobotSide:
    """`position`, `velocity` [joints]: as measured. `motion`: what the controller played."""

    def __init__(self, limits: RobotLimits, home: Floats) -> None:
        self.motion = PlayedMotion(limits, CONTROLLER_S)
        self.position = np.array(home, dtype=np.float64)
        self.velocity = np.zeros_like(self.position)
        self._names = limits.names
        self._hand: Callable[[float], Floats] | None = None
        self._flying: list[_Sent] = []
        self._controller: TrajectoryController | None = self._new_controller()

    @property
    def active(self) -> bool:
        """Whether the controller is."""
        return self._controller is not None

    def stop(self) -> None:
        """The controller is deactivated: the arm stands where it is measured."""
        self._controller = None
        self.velocity = np.zeros_like(self.position)
        self.motion.forget()

    def start(self) -> None:
        """The controller is activated and holds the measured position."""
        self._controller = self._new_controller()
        self.motion.forget()

    def guide(self, path: Callable[[float], Floats] | None) -> None:
        """A person moves the stopped arm along `path` (of the time, [joints]); None: lets go."""
        self._hand = path

    def foreign(self, trajectory: Trajectory, now_s: float) -> None:
        """Somebody else publishes on the controller's topic."""
        if self._controller is not None:
            self._controller.accept(trajectory, now_s)

    def latest_taken_s(self) -> float:
        """When the last trajectory on its way will be taken; minus infinity without any."""
        return max(
            (one.taken_s for one in self._flying if math.isfinite(one.taken_s)), default=-math.inf
        )

    def send(self, forward: Forward, *, taken_s: float, acknowledged_s: float) -> None:
        trajectory = Trajectory(
            joint_names=self._names,
            start_s=forward.at_s,
            points=tuple(
                TrajectoryPoint(
                    # A message carries whole nanoseconds.
                    time_from_start_s=round(time_s * 1e9) * 1e-9,
                    positions=tuple(position),
                    velocities=tuple(velocity),
                )
                for time_s, position, velocity in zip(
                    forward.times_s.tolist(),
                    forward.positions.tolist(),
                    forward.velocities.tolist(),
                )
            ),
        )
        self._flying.append(
            _Sent(trajectory=trajectory, taken_s=taken_s, acknowledged_s=acknowledged_s)
        )

    def all_acknowledged(self, now_s: float) -> bool:
        return all(one.acknowledged_s <= now_s for one in self._flying)

    def tick(self, now_s: float, *, in_flight: bool) -> None:
        """`in_flight`: safety still waits for an acknowledgement."""
        ready = [one for one in self._flying if one.taken_s <= now_s]
        if ready:
            # A queue of one: what the newest replaced is gone.
            if self._controller is not None:
                self._controller.accept(ready[-1].trajectory, now_s)
            for one in ready:
                one.taken_s = math.inf
        self._flying = [
            one
            for one in self._flying
            if math.isfinite(one.taken_s) or (in_flight and one.acknowledged_s > now_s)
        ]
        if self._controller is not None:
            state = self._controller.update(now_s, _still(self.position)).state
            self.motion.add(now_s, state)
            self.position = state.position.copy()
            self.velocity = np.zeros(len(self.position))
            if state.velocity is not None:
                self.velocity = state.velocity.copy()
        elif self._hand is not None:
            before, self.position = self.position, self._hand(now_s)
            self.velocity = (self.position - before) / CONTROLLER_S

    def _new_controller(self) -> TrajectoryController:
        return TrajectoryController(
            ControllerConfig(joint_names=self._names, interpolate_from_desired_state=True),
            _still(self.position),
        )


def _still(position: Floats) -> MotionState:
    return MotionState(position=position, velocity=np.zeros_like(position))
