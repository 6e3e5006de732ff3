"""The safety filter as the threads of safety_node share it: one lock, one order of decisions.

The loop's thread calls `tick`; ROS callbacks and the sender call everything else. Whoever decides
hands on what is to be sent while holding the lock, so that it leaves in the order of the decisions.
Judging a command, which takes longest, holds no lock, nor does what can be worked out before it is
there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from physis_ros.robot.joint_motion import CommandedTrajectory, Floats
from physis_ros.safety.command_judge import judge_command
from physis_ros.safety.filter import SafetyFilter
from physis_ros.safety.types import Decision, Finding, Forward, Instant, ResetAnswer, Verdict


class GuardedFilter:
    """`now` reads both clocks. `forward` takes what goes to the robot, `position` where it is
    commanded to be at each tick, `changed` the finding of a tick whose verdict is another one than
    before; none of them may wait."""

    def __init__(
        self,
        judge: SafetyFilter,
        *,
        now: Callable[[], Instant],
        forward: Callable[[Forward], None],
        position: Callable[[Floats], None],
        changed: Callable[[Finding], None],
    ) -> None:
        self._filter = judge
        self._now = now
        self._forward = forward
        self._position = position
        self._changed = changed
        self._lock = threading.Lock()
        self._finding = Finding(verdict=Verdict.HOLD, reason="starting")

    @property
    def filter(self) -> SafetyFilter:
        """To read counters and configuration from, which needs no lock."""
        return self._filter

    @property
    def finding(self) -> Finding:
        """Of the last tick."""
        return self._finding

    def tick(self) -> None:
        with self._lock:
            now = self._now()
            done = self._filter.tick(now)
            self._send(done.forward)
            state = self._filter.commanded(now)
            if state is not None:
                self._position(state[0])
            changed = done.finding.verdict != self._finding.verdict
            self._finding = done.finding
        if changed:
            self._changed(done.finding)

    def command(
        self, command: CommandedTrajectory, source: str, asked: Instant, *, started_s: float
    ) -> Decision:
        """Judge what came from `source` at `asked`; see SafetyFilter.offer."""
        with self._lock:
            request = self._filter.request(source, asked)
        if isinstance(request, Decision):
            return request
        judgement = judge_command(
            command,
            request.estimate,
            asked.motion_s,
            self._filter.limits,
            self._filter.config,
            started_s=started_s,
        )
        with self._lock:
            decision = self._filter.decide(request, judgement, self._now())
            self._send(decision.forward)
        return decision

    def joints(
        self,
        names: Sequence[str],
        positions: Sequence[float],
        velocities: Sequence[float],
        *,
        stamp_ns: int,
    ) -> None:
        with self._lock:
            self._filter.joints.see(
                names, positions, velocities, self._now().steady_s, stamp_ns=stamp_ns
            )

    def acknowledged(self) -> None:
        """Everything forwarded so far has reached the controller's side."""
        with self._lock:
            self._filter.handover.acknowledged(self._now().motion_s)

    def look_ahead(self) -> None:
        """Work out now what judging the next command will need. For whoever has time; a command
        that comes sooner is judged all the same."""
        with self._lock:
            handover = self._filter.handover
            estimate, changes = handover.estimate(), handover.changes
            now_s = self._now().motion_s
        ahead = estimate.look_ahead(now_s)
        if ahead is None:
            return
        with self._lock:
            if handover.changes == changes:
                handover.keep(ahead)

    def set_listening(self, listening: bool) -> None:
        with self._lock:
            self._filter.handover.set_listening(listening)

    def estop(self) -> None:
        with self._lock:
            self._filter.estop(self._now())
        self.tick()

    def reset(self) -> ResetAnswer:
        with self._lock:
            answer = self._filter.reset(self._now())
        self.tick()
        return answer

    def enable(self, enabled: bool) -> None:
        with self._lock:
            self._filter.enable(enabled)
        self.tick()

    def clock_jumped(self, delta_s: float, *, motion_jumped: bool) -> None:
        """`motion_jumped`: the controller's clock did, not that of the stamps alone."""
        with self._lock:
            if motion_jumped:
                self._filter.clock_jumped(self._now(), delta_s=delta_s)
            else:
                self._filter.joints.forget_stamps()

    def commanded(self) -> tuple[Floats, Floats] | None:
        """Where the robot is commanded to be: position and velocity, [joints] each."""
        with self._lock:
            return self._filter.commanded(self._now())

    def command_age_s(self) -> float | None:
        with self._lock:
            return self._filter.command_age_s(self._now())

    def _send(self, forward: Forward | None) -> None:
        if forward is not None:
            self._forward(forward)
