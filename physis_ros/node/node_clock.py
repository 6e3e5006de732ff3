"""The two clocks of a node: ROS time, which may be simulated, pause and jump, and the steady one.

ROS time stamps what leaves the process; the steady clock measures every duration.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from rclpy.clock import Clock, ClockType, JumpThreshold
from rclpy.duration import Duration
from rclpy.node import Node
from rclpy.timer import Timer

from physis_ros.node.clock_jump import ClockJump, ClockJumpWatch

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
        # The clock calls back at once when /clock steps; looking ten times a second finds the rest.
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

        Read again where the thread was interrupted between the two: the difference would displace
        whatever is carried from one clock to the other.
        """
        for _ in range(_PAIR_READS):
            before_s, ros_ns = self.steady_s(), self.now_ns()
            after_s = self.steady_s()
            if after_s - before_s < _PAIR_S:
                break
        return 0.5 * (before_s + after_s), ros_ns

    def steady_timer(self, period_s: float, callback: Callable[[], None]) -> Timer:
        """A timer that a paused or jumping /clock does not touch."""
        return self._node.create_timer(period_s, callback, clock=self._steady)

    def standstill(self) -> str:
        """Why simulated time does not advance; empty where it does."""
        return self._watch.standstill(self.steady_s())

    def _look(self) -> None:
        jump = self._watch.look(ros_ns=self.now_ns(), steady_s=self.steady_s())
        if jump is not None:
            self._on_jump(jump)
