"""Forwards motions to the controller, brakes, and knows where the robot is commanded to be.

One trajectory at a time is in flight. Until it is acknowledged only a brake is forwarded. If it is
not acknowledged in time, only brakes are forwarded until the robot is certain to be at rest, or is
measured to follow one of the motions that are possible. A brake is within the limits from every
motion that the controller may be playing.

Times are seconds of the controller's clock. Pure; not thread safe.
"""

from __future__ import annotations

import math

import numpy as np

from physis_ros.robot.joint_limits import RobotLimits, tolerances
from physis_ros.robot.joint_motion import Floats, JointMotion
from physis_ros.robot.trajectory_tail import braking_tail
from physis_ros.safety.joint_watch import JointWatch
from physis_ros.safety.motion.controller_estimate import ControllerEstimate
from physis_ros.safety.motion.late_join import rest
from physis_ros.safety.motion.possible_motions import Arrivals
from physis_ros.safety.types import Forward, Instant, SafetyConfig

# A brake that ends the motion less than this earlier is not worth a message.
_WORTH_BRAKING_S = 0.02
# A controller may hold the position commanded last, this far from the measured one at rest, or
# start from the measured one: until it moves again, both are possible [rad or m].
_HELD_APART = 0.03
# A robot that has not moved for so long stands still.
_STILL_S = 0.05


class ControllerHandover:
    """`changes` counts everything that makes an earlier judgement obsolete."""

    def __init__(self, limits: RobotLimits, config: SafetyConfig) -> None:
        self._limits = limits
        self._config = config
        self._acceleration = np.array(limits.acceleration)
        self._slack = np.array(tolerances(limits.tracking, len(limits.names), 0.0))
        self._estimate = ControllerEstimate(config.late_s)
        self._listening = True
        self._misplaced = False
        self._moves_until_s = -math.inf
        self.changes = 0

    @property
    def in_flight(self) -> bool:
        return self._estimate.in_flight

    def moves(self, now_s: float) -> bool:
        """Whether something of ours may still move the robot, or come to do so."""
        return (
            self._estimate.in_flight
            or self._estimate.uncertain
            or now_s < min(self._moves_until_s, self._estimate.end_s)
        )

    def settled(self, now_s: float, settle_s: float) -> bool:
        """Whether nothing of ours moves the robot, since more than `settle_s`."""
        unknown = self._estimate.in_flight or self._estimate.uncertain
        return not unknown and self.rested_s(now_s) > settle_s

    def rested_s(self, now_s: float) -> float:
        """Seconds since the last motion of ours ended; negative while it moves."""
        return now_s - min(self._moves_until_s, self._estimate.end_s)

    @property
    def not_followed(self) -> bool:
        """The robot stands still although what was forwarded moves."""
        return self._estimate.not_followed

    @property
    def lost(self) -> int:
        return self._estimate.lost

    def estimate(self) -> ControllerEstimate:
        """A copy to judge against; valid while `changes` stays the same."""
        return self._estimate.copy()

    def keep(self, ahead: Arrivals) -> None:
        """Keep what `look_ahead` of an estimate with the same `changes` returned."""
        self._estimate.keep(ahead)

    def commanded(self, now_s: float) -> tuple[Floats, Floats] | None:
        """Position and velocity, [joints] each; None before joints were seen."""
        motion = self._estimate.motion
        return None if motion is None else motion.state(now_s)

    def unreachable(self) -> str:
        """Why nothing can be forwarded; empty where it can."""
        if not self._listening:
            return "handover: no subscriber on the controller's topic"
        if self._estimate.not_followed:
            return "handover: only brakes are sent until what was forwarded has ended"
        if self._estimate.uncertain:
            return (
                f"handover: not acknowledged within {self._config.late_s:g} s; "
                "only brakes are sent until it is known what the robot does"
            )
        return ""

    def set_listening(self, listening: bool) -> None:
        """Whether the controller's topic has a subscriber."""
        self._listening = listening

    def acknowledged(self, now_s: float) -> None:
        """Everything forwarded so far has been acknowledged."""
        self.changes += 1
        self._estimate.acknowledged(now_s)

    def rest_at(self, position: Floats, now_s: float) -> None:
        """The robot rests at `position` [joints]; forget what was commanded."""
        self.changes += 1
        motion = self._estimate.motion
        held = None if motion is None else motion.state(now_s)[0]
        near = held is not None and float(np.max(np.abs(held - position))) <= _HELD_APART
        self._estimate.rest_at(position, now_s, or_at=held if near else None)
        # Not later: how long it has been at rest still counts from our last motion.
        self._moves_until_s = min(self._moves_until_s, now_s)

    def forward(
        self,
        times_s: Floats,
        positions: Floats,
        velocities: Floats,
        now_s: float,
        arrivals: Arrivals | None = None,
    ) -> Forward:
        """Forward what was judged at `now_s`; times count from then. `arrivals`: those it was
        judged against, which are expensive to compute."""
        self.changes += 1
        self._estimate.sent(JointMotion(now_s + times_s, positions, velocities), now_s, arrivals)
        self._moves_until_s = max(self._moves_until_s, now_s + float(times_s[-1]))
        if not self._config.acknowledged:
            self._estimate.acknowledged(now_s)
        return Forward(at_s=now_s, times_s=times_s, positions=positions, velocities=velocities)

    def brake(self, now_s: float) -> Forward | None:
        """Bring the robot to rest earlier than the forwarded trajectory does. None where that rests
        as soon, or where no brake stays within the limits: then its own tail brakes."""
        if self._estimate.motion is None:
            return None
        # A trajectory whose times no longer hold must be replaced in any case.
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

    def update(self, now: Instant, joints: JointWatch, *, sees: bool) -> None:
        """Mark what is overdue as uncertain; compare with the measured joints what is possible."""
        now_s = now.motion_s
        self._estimate.update(now_s)
        if not sees:
            self._estimate.moves_again()
            return
        # Only while something of ours moves: at rest, the measured position is the commanded one.
        if now_s >= self._estimate.end_s or joints.still_s(now.steady_s) <= _STILL_S:
            self._estimate.moves_again()
        elif self._estimate.compare_rest(joints.position, now_s, slack=self._slack):
            self.changes += 1
            return
        if not self._estimate.uncertain:
            return
        # Measured joints lag behind: just when a motion ends, they do not show its end.
        if self._estimate.settled(now_s - self._config.settle_s):
            self.rest_at(joints.position, now_s)
            return
        if self._estimate.compare(joints.position, now_s):
            self.changes += 1

    def brake_from(self, position: Floats, velocity: Floats, now_s: float) -> Forward | None:
        """Brake a robot that moves although nothing of ours moves it, from where it is measured
        (position and velocity [joints])."""
        most = np.array(self._limits.velocity)
        self._assume_braking(position, np.clip(velocity, -most, most), now_s)
        return self.brake(now_s)

    def clock_jumped(self, now_s: float, *, delta_s: float) -> None:
        """The controller's clock jumped, so the forwarded times no longer hold. The estimate
        assumes that the robot brakes from where it was; the next `brake` makes the controller do
        so."""
        motion = self._estimate.motion
        if motion is None:
            return
        self._assume_braking(*motion.state(now_s - delta_s), now_s)

    def _assume_braking(self, position: Floats, velocity: Floats, now_s: float) -> None:
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
        self._moves_until_s = self._estimate.end_s
