"""The two clocks of a node: ROS time, which may be simulated, pause and jump, and the steady clock.

ROS time stamps what leaves the process; the steady clock measures every duration.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeAlias

from rclpy.clock import Clock, JumpThreshold
from rclpy.clock_type import ClockType
from rclpy.duration import Duration
from rclpy.node import Node
from rclpy.timer import Timer


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockJump:
    """ROS time moved by `delta_s` more (or less) than it should have."""

    delta_s: float


class ClockJumpWatch:
    """Compares two readings of a ROS clock. Pure.

    Wall time must advance as steady time does. Simulated time may pause or run at any rate: only a
    step back, or forward by more than `threshold_s` beyond `max_rate` times real time, is a jump.
    The first reading, and time zero (no /clock yet), are never jumps.
    """

    def __init__(self, *, threshold_s: float, simulated: bool, max_rate: float = 20.0) -> None:
        self._threshold_s = threshold_s
        self._simulated = simulated
        self._max_rate = max_rate
        self._last: tuple[int, float] | None = None
        self._moved: tuple[int, float] | None = None

    def standstill(self, steady_s: float) -> str:
        """Why simulated time does not advance, as of the last reading; empty where it does."""
        if not self._simulated or self._moved is None:
            return ""
        ros_ns, moved_s = self._moved
        still_s = steady_s - moved_s
        if still_s <= self._threshold_s:
            return ""
        if ros_ns == 0:
            return f"no /clock for {still_s:.1f} s"
        return f"/clock stands still at {ros_ns * 1e-9:.3f} for {still_s:.1f} s"

    def look(self, *, ros_ns: int, steady_s: float) -> ClockJump | None:
        if self._moved is None or ros_ns != self._moved[0]:
            self._moved = (ros_ns, steady_s)
        last = self._last
        if ros_ns == 0:
            return None
        self._last = (ros_ns, steady_s)
        if last is None:
            return None
        ros_step_s = (ros_ns - last[0]) / 1e9
        steady_step_s = steady_s - last[1]
        if self._simulated:
            if ros_step_s < 0.0:
                return ClockJump(delta_s=ros_step_s)
            if ros_step_s > self._threshold_s + self._max_rate * steady_step_s:
                return ClockJump(delta_s=ros_step_s)
            return None
        drift_s = ros_step_s - steady_step_s
        return ClockJump(delta_s=drift_s) if abs(drift_s) > self._threshold_s else None


TimerCallback: TypeAlias = Callable[[], None] | Callable[[], Coroutine[Any, Any, None]]

_LOOK_PERIOD_S = 0.1
_PAIR_READS = 5
_PAIR_S = 2e-4


class NodeClock:
    """`on_jump` is called on the executor when ROS time has moved by more than `jump_s` against
    steady time."""

    def __init__(self, node: Node, *, jump_s: float, on_jump: Callable[[ClockJump], None]) -> None:
        self._node = node
        self._steady = Clock(clock_type=ClockType.STEADY_TIME)
        self._on_jump = on_jump
        self._watch = ClockJumpWatch(
            threshold_s=jump_s, simulated=bool(node.get_parameter("use_sim_time").value)
        )
        # The callback reports a step of /clock at once; polling finds everything else.
        self._handle = node.get_clock().create_jump_callback(
            JumpThreshold(
                min_forward=Duration(seconds=jump_s),
                min_backward=Duration(nanoseconds=-1),
                on_clock_change=True,
            ),
            post_callback=lambda _jump: self._look(),
        )
        self.steady_timer(_LOOK_PERIOD_S, self._look)

    def now_ns(self) -> int:
        """ROS time (simulated where use_sim_time) in nanoseconds."""
        return int(self._node.get_clock().now().nanoseconds)

    @staticmethod
    def steady_s() -> float:
        return time.monotonic()

    def both(self) -> tuple[float, int]:
        """Steady seconds and ROS nanoseconds of one moment.

        Read again if the thread was interrupted in between: the delay would shift everything that
        is converted from one clock to the other.
        """
        for _ in range(_PAIR_READS):
            before_s, ros_ns = self.steady_s(), self.now_ns()
            after_s = self.steady_s()
            if after_s - before_s < _PAIR_S:
                break
        return 0.5 * (before_s + after_s), ros_ns

    def steady_timer(self, period_s: float, callback: TimerCallback) -> Timer:
        """A timer that a paused or jumping /clock does not touch."""
        # rclpy also runs coroutines; its annotation does not say so.
        return self._node.create_timer(
            period_s,
            callback,  # type: ignore[arg-type]
            clock=self._steady,
        )

    def standstill(self) -> str:
        """Why simulated time does not advance; empty where it does."""
        return self._watch.standstill(self.steady_s())

    def _look(self) -> None:
        jump = self._watch.look(ros_ns=self.now_ns(), steady_s=self.steady_s())
        if jump is not None:
            self._on_jump(jump)
