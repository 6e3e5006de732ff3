"""A stop that is under way: brakes are repeated until the robot is measured at rest.

Pure: asked at each tick for the brake to send.
"""

from __future__ import annotations

from dataclasses import replace

from physis_ros.safety.controller_handover import ControllerHandover
from physis_ros.safety.joint_watch import JointWatch
from physis_ros.safety.types import Finding, Forward, Instant

# A search for a better brake costs as much as judging a command.
_LOOK_AGAIN_S = 0.02
# A robot that moves this long after a brake should have ended is braked again. Not before: a second
# brake that allows for the first one being lost would undo it.
_REPEAT_S = 0.3
# From here on the reason says that the robot is not at rest.
_OVERDUE_S = 1.0


class Stopping:
    """`settle_s`: a robot that moves this long after our last motion ended is braked from where it
    is measured."""

    def __init__(
        self, handover: ControllerHandover, joints: JointWatch, *, settle_s: float
    ) -> None:
        self._handover = handover
        self._joints = joints
        self._settle_s = settle_s
        self._since_s: float | None = None
        self._next_s = 0.0
        self._sent = False
        self._moving = ""

    @property
    def active(self) -> bool:
        return self._since_s is not None

    @property
    def reason(self) -> str:
        """Why the robot is not known to rest, as of the last step; empty where no stop is under
        way."""
        return self._moving if self.active else ""

    def begin(self, now: Instant) -> None:
        """Brake from the next step on, unless a stop is under way."""
        if self._since_s is None:
            self._since_s = self._next_s = now.steady_s
            self._moving, self._sent = "the brake is not sent yet", False

    def end(self) -> None:
        """A command was forwarded instead."""
        self._since_s, self._moving = None, ""

    def annotated(self, finding: Finding, now: Instant) -> Finding:
        """The finding, with the news that the robot is not at rest where it is overdue."""
        if self._since_s is None or now.steady_s - self._since_s < _OVERDUE_S:
            return finding
        waited_s = now.steady_s - self._since_s
        return replace(
            finding,
            reason=f"{finding.reason}; NOT AT REST after {waited_s:.1f} s: {self._moving}",
        )

    def step(self, now: Instant, *, sees: bool) -> Forward | None:
        """The brake to send at this tick, if any. Ends where the robot is measured at rest and
        nothing of ours can move it any more. `sees`: joint states are fresh."""
        if self._since_s is None:
            return None
        moves = self._handover.moves(now.motion_s)
        measured = self._joints.moving(now.steady_s)
        self._moving = measured or ("a motion may be under way" if moves else "")
        if not self._moving:
            self.end()
            return None
        # The first brake goes out in any case: what it ends may not have begun. Later on, a robot
        # at rest is left alone.
        if now.steady_s < self._next_s or (self._sent and not measured):
            return None
        forward = self._handover.brake(now.motion_s)
        if forward is None and sees and not moves:
            # Our motion has ended, and the robot moves all the same.
            if self._handover.rested_s(now.motion_s) <= self._settle_s:
                return None
            forward = self._handover.brake_from(
                self._joints.position, self._joints.velocity, now.motion_s
            )
        self._sent = True
        self._next_s = now.steady_s + _LOOK_AGAIN_S
        if forward is not None:
            self._next_s = now.steady_s + float(forward.times_s[-1]) + _REPEAT_S
        return forward
