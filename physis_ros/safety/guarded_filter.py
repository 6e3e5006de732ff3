"""The safety filter behind a lock, for the threads of safety_node.

The loop's thread calls `tick`; ROS callbacks and the sender call everything else. A decision is
handed to the sender while the lock is held, so that messages leave in the order of the decisions.
Judging a command and looking ahead take longest and hold no lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from physis_ros.robot.joint_motion import Floats
from physis_ros.robot.joint_publishers import Disagreement
from physis_ros.safety.arming import Answer
from physis_ros.safety.filter import SafetyFilter
from physis_ros.safety.position_output import PositionOutput
from physis_ros.safety.types import (
    Decision,
    Finding,
    Forward,
    Instant,
    OfferedCommand,
    Verdict,
)


class GuardedFilter:
    """`now` reads both clocks. `forward` takes what goes to the robot, `position` the point of each
    tick for a position controller, `changed` the finding of a tick whose verdict changed. None of
    these may block."""

    def __init__(
        self,
        safety: SafetyFilter,
        *,
        now: Callable[[], Instant],
        forward: Callable[[Forward], None],
        position: Callable[[Floats], None],
        changed: Callable[[Finding], None],
    ) -> None:
        self._filter = safety
        self._now = now
        self._forward = forward
        self._position = position
        self._changed = changed
        self._points = PositionOutput(safety.limits)
        self._lock = threading.Lock()
        self._finding = Finding(verdict=Verdict.HOLD, reason="starting")

    @property
    def filter(self) -> SafetyFilter:
        """For reading counters and configuration, which needs no lock."""
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
            if state is not None and self._filter.moves_robot:
                measured = self._filter.joints.position
                self._position(self._points.point(state[0], measured, now.steady_s))
            else:
                self._points.pause()
            changed = done.finding.verdict != self._finding.verdict
            self._finding = done.finding
        if changed:
            self._changed(done.finding)

    def command(self, offered: OfferedCommand) -> Decision:
        """Judge a command; see SafetyFilter.offer."""
        with self._lock:
            request = self._filter.request(offered)
        if isinstance(request, Decision):
            return request
        judgement = self._filter.judge(request, offered)
        with self._lock:
            decision = self._filter.decide(request, judgement, self._now())
            self._send(decision.forward)
        return decision

    def command_that_waited(self) -> Decision | None:
        """After an acknowledgement: judge the command that waited for it, if one did."""
        with self._lock:
            waiting = self._filter.waiting(self._now())
        return None if waiting is None else self.command(waiting)

    def joints(
        self,
        names: Sequence[str],
        positions: Sequence[float],
        velocities: Sequence[float],
        *,
        stamp_ns: int,
        publisher: bytes | None = None,
    ) -> Disagreement | None:
        """Returns two publishers of one joint that disagree, as of this message."""
        with self._lock:
            joints, now_s = self._filter.joints, self._now().steady_s
            joints.see(names, positions, velocities, now_s, stamp_ns=stamp_ns, publisher=publisher)
            return joints.disagreement(now_s)

    def publishers(self, names: Mapping[bytes, str]) -> None:
        """The nodes that publish joint states, by their publishers' ids."""
        with self._lock:
            self._filter.joints.publisher_names = names

    def clock(self, fault: str) -> None:
        """Why simulated time does not serve; empty where it does."""
        with self._lock:
            self._filter.joints.clock_fault = fault

    def acknowledged(self) -> None:
        """Everything forwarded so far was acknowledged by the controller's side."""
        with self._lock:
            self._filter.handover.acknowledged(self._now().motion_s)

    def look_ahead(self) -> None:
        """Compute in advance what judging the next command needs. Optional: a command that comes
        sooner is judged all the same, only more slowly."""
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

    def surroundings(self, problems: Sequence[str]) -> None:
        """See SafetyFilter.surroundings."""
        with self._lock:
            self._filter.surroundings(problems)

    def deadman(self, held: bool) -> None:
        with self._lock:
            self._filter.deadman(held, self._now())

    def estop(self, reason: str) -> None:
        with self._lock:
            self._filter.estop(self._now(), reason)
        self.tick()

    def stopping(self) -> str:
        """Why the robot is not known to rest although it should; empty where it rests."""
        with self._lock:
            return self._filter.stopping

    def reset(self) -> Answer:
        return self._answered(lambda: self._filter.reset(self._now()))

    def arm(self) -> Answer:
        return self._answered(lambda: self._filter.arm(self._now()))

    def hand_back(self) -> Answer:
        return self._answered(lambda: self._filter.hand_back(self._now()))

    def disarm(self) -> None:
        with self._lock:
            self._filter.disarm(self._now())
        self.tick()

    def begin(self) -> None:
        """Before the first tick after a pause."""
        with self._lock:
            self._filter.begin()

    def _answered(self, act: Callable[[], Answer]) -> Answer:
        with self._lock:
            answer = act()
        self.tick()
        return answer

    def clock_jumped(self, delta_s: float, *, motion_jumped: bool) -> None:
        """`motion_jumped`: the controller's clock jumped too, not only the clock of the stamps."""
        with self._lock:
            if motion_jumped:
                self._filter.clock_jumped(self._now(), delta_s=delta_s)
            else:
                self._filter.joints.forget_stamps()

    def commanded(self) -> tuple[Floats, Floats] | None:
        """Commanded position and velocity, [joints] each; None until joints were seen."""
        with self._lock:
            return self._filter.commanded(self._now())

    def command_age_s(self) -> float | None:
        with self._lock:
            return self._filter.command_age_s(self._now())

    def _send(self, forward: Forward | None) -> None:
        if forward is not None:
            self._forward(forward)
