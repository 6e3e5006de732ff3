"""What goes to the controller: forwards motions, brakes, and knows where the robot is commanded.

One trajectory at a time is on its way. Until it is acknowledged nothing else is forwarded but a
brake; if it is not acknowledged in time, nothing at all until the robot rests in any case.

Times are seconds of the controller's clock. Pure; not thread safe.
"""

from __future__ import annotations

import math

import numpy as np

from physis_ros.robot.joint_limits import RobotLimits
from physis_ros.robot.joint_motion import Floats, JointMotion
from physis_ros.robot.trajectory_tail import braking_tail
from physis_ros.safety.controller_estimate import ControllerEstimate
from physis_ros.safety.joint_watch import JointWatch
from physis_ros.safety.late_join import rest
from physis_ros.safety.possible_motions import Arrivals
from physis_ros.safety.types import Forward, SafetyConfig

# A brake that saves less than this is not worth a message.
_WORTH_BRAKING_S = 0.02


class ControllerHandover:
    def __init__(self, limits: RobotLimits, config: SafetyConfig) -> None:
        self._limits = limits
        self._config = config
        self._acceleration = np.array(limits.acceleration)
        self._estimate = ControllerEstimate(config.late_s)
        self._listening = True
        self._misplaced = False
        self.changes = 0

    @property
    def in_flight(self) -> bool:
        return self._estimate.in_flight

    @property
    def lost(self) -> int:
        return self._estimate.lost

    @property
    def end_s(self) -> float:
        """When the robot rests in any case; minus infinity where nothing is known."""
        return self._estimate.end_s

    def estimate(self) -> ControllerEstimate:
        """A copy to judge by; it holds as long as `changes` does not change."""
        return self._estimate.copy()

    def keep(self, ahead: Arrivals) -> None:
        """Take what an estimate of the same `changes` saw ahead."""
        self._estimate.keep(ahead)

    def commanded(self, now_s: float) -> tuple[Floats, Floats] | None:
        """Position and velocity, [joints] each; None before the robot's place is known."""
        motion = self._estimate.motion
        return None if motion is None else motion.state(now_s)

    def unreachable(self) -> str:
        """Why nothing can be forwarded; empty where it can."""
        if not self._listening:
            return "handover: nobody receives what is forwarded to the controller"
        if self._estimate.uncertain:
            return (
                f"handover: not acknowledged within {self._config.late_s:g} s; "
                "waiting until the robot rests in any case"
            )
        return ""

    def set_listening(self, listening: bool) -> None:
        """Whether anybody receives what is forwarded."""
        self._listening = listening

    def acknowledged(self, now_s: float) -> None:
        """Whatever was forwarded has been acknowledged."""
        self.changes += 1
        self._estimate.acknowledged(now_s)

    def rest_at(self, position: Floats, now_s: float) -> None:
        """The robot rests at `position` [joints], whatever was commanded."""
        self.changes += 1
        self._estimate.rest_at(position, now_s)

    def forward(
        self,
        times_s: Floats,
        positions: Floats,
        velocities: Floats,
        now_s: float,
        arrivals: Arrivals | None = None,
    ) -> Forward:
        """Forward what was judged at `now_s`; times count from then. `arrivals` is what it was
        judged against, which takes as long to find as all the rest."""
        self.changes += 1
        self._estimate.sent(JointMotion(now_s + times_s, positions, velocities), now_s, arrivals)
        if not self._config.acknowledged:
            self._estimate.acknowledged(now_s)
        return Forward(at_s=now_s, times_s=times_s, positions=positions, velocities=velocities)

    def brake(self, now_s: float) -> Forward | None:
        """To rest sooner than by itself; None where what was forwarded rests as soon, or where no
        brake is harmless: then its tail acts."""
        if self._estimate.motion is None or self._estimate.uncertain:
            return None
        # A trajectory that lies at another time must be replaced, whatever that saves.
        latest_s = math.inf if self._misplaced else self._estimate.end_s - _WORTH_BRAKING_S
        self._misplaced = False
        found = rest(self._estimate.arrivals(now_s), self._limits, latest_s)
        if found is None:
            return None
        return self.forward(
            np.array([found.first_s - now_s]),
            found.position[None, :],
            found.velocity[None, :],
            now_s,
        )

    def update(self, now_s: float, joints: JointWatch, *, sees: bool) -> None:
        """Begin to doubt what is overdue; end doubt at rest, by where the robot is measured."""
        self._estimate.update(now_s)
        if not self._estimate.settled(now_s) or not sees:
            return
        ends = self._estimate.ends()
        apart = [float(np.max(np.abs(joints.position - end))) for end in ends]
        end = ends[int(np.argmin(apart))]
        fits = not joints.away_from(end, self._config.tracking_tolerance)
        self.rest_at(end if fits else joints.position, now_s)

    def clock_jumped(self, now_s: float, *, delta_s: float) -> None:
        """The controller's clock moved by itself: what was forwarded lies at another time now. The
        robot is taken to brake from where it was; the next `brake` says so to the controller."""
        motion = self._estimate.motion
        if motion is None:
            return
        position, velocity = motion.state(now_s - delta_s)
        tail = braking_tail(position, velocity, self._acceleration)
        self.changes += 1
        self._misplaced = True
        self._estimate.assume(
            JointMotion(
                now_s + np.concatenate([[0.0], tail.times_s]),
                np.concatenate([position[None, :], tail.positions]),
                np.concatenate([velocity[None, :], tail.velocities]),
            )
        )
