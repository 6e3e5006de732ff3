"""The two clocks of a node: ROS time, which may be simulated, pause and jump, and the steady clock.

ROS time stamps what leaves the process; the steady clock measures every duration.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
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


LEAST_CLOCK_HZ = 20.0
"""The lowest rate of /clock, in simulated time, at which the stack is meant to work."""
FINEST_STEP_S = 0.005
"""Smaller steps of simulated time are not measured: they disturb nothing."""


class ClockSteps:
    """How coarse simulated time is: the steps in which it advances. Pure.

    A sensor stamps between two steps, so its stamp may lie ahead of ROS time by up to one of them.
    """

    def __init__(self, *, window: int = 16, memory_s: float = 3.0) -> None:
        self._steps: deque[tuple[float, float]] = deque(maxlen=window)
        self._memory_s = memory_s

    def add(self, step_s: float, steady_s: float) -> None:
        """ROS time advanced by `step_s` at once, at the steady instant `steady_s`."""
        if step_s >= FINEST_STEP_S:
            self._steps.append((steady_s, step_s))

    def step_s(self, steady_s: float) -> float:
        """The usual step; 0 where it is finer than FINEST_STEP_S or not known yet."""
        steps = [step_s for at_s, step_s in self._steps if steady_s - at_s <= self._memory_s]
        return statistics.median(steps) if len(steps) >= 3 else 0.0

    def fault(self, steady_s: float) -> str:
        """One line where /clock is coarser than LEAST_CLOCK_HZ; else empty."""
        step_s = self.step_s(steady_s)
        # A simulator keeps its rate only about.
        if step_s <= 1.1 / LEAST_CLOCK_HZ:
            return ""
        return (
            f"/clock advances in steps of {step_s:.3f} s ({1.0 / step_s:.1f} Hz); "
            f"at least {LEAST_CLOCK_HZ:g} Hz is needed"
        )


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
        self._steps = ClockSteps()
        self._watch = ClockJumpWatch(
            threshold_s=jump_s, simulated=bool(node.get_parameter("use_sim_time").value)
        )
        # The callback reports a step of /clock at once; polling finds everything else.
        self._handle = node.get_clock().create_jump_callback(
            JumpThreshold(
                min_forward=Duration(seconds=min(jump_s, FINEST_STEP_S)),
                min_backward=Duration(nanoseconds=-1),
                on_clock_change=True,
            ),
            post_callback=self._on_step,
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

    def step_s(self) -> float:
        """The usual step of simulated time; 0 where it is fine, and on wall time."""
        return self._steps.step_s(self.steady_s())

    def fault(self) -> str:
        """Why simulated time does not serve: it stands still or is too coarse; else empty."""
        now_s = self.steady_s()
        return self._watch.standstill(now_s) or self._steps.fault(now_s)

    def _on_step(self, jump: Any) -> None:
        # A mapping or an object, by the version of rclpy.
        delta_ns = jump["delta"] if isinstance(jump, Mapping) else jump.delta.nanoseconds
        self._steps.add(delta_ns * 1e-9, self.steady_s())
        self._look()

    def _look(self) -> None:
        jump = self._watch.look(ros_ns=self.now_ns(), steady_s=self.steady_s())
        if jump is not None:
            self._on_jump(jump)
