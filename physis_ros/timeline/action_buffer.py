"""The decisions of buffer_node, without ROS: when a window leaves, and when the plan restarts.

The caller gives both clocks and sends what `window` returns whenever a method answers that one is
due. Pure; not thread safe.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from physis_ros.robot.joint_limits import RobotLimits
from physis_ros.robot.joint_motion import Floats
from physis_ros.timeline.chunk_timeline import ChunkTimeline
from physis_ros.timeline.robot_state import RobotState
from physis_ros.timeline.timed_chunk import IncomingChunk, RefusedChunk
from physis_ros.timeline.types import (
    AcceptedChunk,
    ServoPoint,
    TimelineConfig,
    TimelineWindow,
)

# A commanded state this old is extrapolated no further.
_LONGEST_BEHIND_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferInstant:
    """One moment on two clocks: ROS time, which stamps chunks and windows, and the steady clock."""

    ros_ns: int
    steady_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkAnswer:
    """`send`: a window is due now."""

    outcome: AcceptedChunk | RefusedChunk
    send: bool


class ActionBuffer:
    """`limits`: those that the plan keeps, below the robot's own. `rebases` counts how often the
    plan restarted because the robot followed another motion."""

    def __init__(self, limits: RobotLimits, config: TimelineConfig) -> None:
        self.timeline = ChunkTimeline(limits, config)
        self.robot = RobotState(limits.names)
        self.rebases = 0
        self._servo_s = config.tick_s
        self._waiting = False
        self._handed_off_s = 0.0

    @property
    def waiting(self) -> bool:
        """An accepted chunk has not left in a window yet."""
        return self._waiting

    def begin(self, now: BufferInstant) -> None:
        """Wait for the commanded state from now on."""
        self.robot.begin(now.steady_s)

    def clock_jumped(self, now: BufferInstant) -> None:
        """ROS time jumped: drop the plan and every chunk."""
        self.timeline.clear(now.ros_ns)
        self._waiting = False
        self.robot.begin(now.steady_s)

    def chunk(self, chunk: IncomingChunk, now: BufferInstant) -> ChunkAnswer:
        """Check a chunk. A good one leaves at once, because waiting for the next tick would only
        age the action; in a burst of chunks, the next tick hands off the newest."""
        outcome = self.timeline.offer(chunk, now.ros_ns)
        if isinstance(outcome, RefusedChunk):
            return ChunkAnswer(outcome=outcome, send=False)
        self._waiting = True
        send = now.steady_s - self._handed_off_s >= self._servo_s
        return ChunkAnswer(outcome=outcome, send=send)

    def commanded(
        self, position: Floats, velocity: Floats, stamp_ns: int, now: BufferInstant
    ) -> bool:
        """Take the commanded state [joints] of `stamp_ns`. The plan restarts there if the robot
        follows another motion; True: a window is due, because the controller still holds one of the
        old plan."""
        self.robot.commanded()
        timeline = self.timeline
        if timeline.started:
            planned = timeline.point(min(stamp_ns, now.ros_ns))
            if not self.robot.differs_from_plan(
                planned.position, planned.velocity, position, velocity
            ):
                return False
            self.rebases += 1
        self.robot.rebased()
        behind_s = min(max(0.0, (now.ros_ns - stamp_ns) * 1e-9), _LONGEST_BEHIND_S)
        begins_at = position + behind_s * velocity
        if not timeline.rebase(begins_at, velocity, now.ros_ns, keep_newest=True):
            self._waiting = False
            return False
        return not self._waiting

    def tick(self, now: BufferInstant) -> bool:
        """One servo tick. Without a safety node the plan begins at the measured state. True: a
        window is due."""
        if not self.timeline.started:
            measured = self.robot.measured_start(now.steady_s)
            if measured is not None:
                self.timeline.rebase(measured, np.zeros_like(measured), now.ros_ns)
        return self._waiting and self.timeline.started

    def window(self, now: BufferInstant) -> TimelineWindow:
        """The window to send now.

        Raises:
            RuntimeError: no commanded state is known yet.
        """
        if self._waiting:
            self._waiting = False
            self._handed_off_s = now.steady_s
        return self.timeline.window(now.ros_ns)

    def point(self, now: BufferInstant) -> ServoPoint | None:
        """The point that is due now; None before the commanded state is known."""
        return self.timeline.point(now.ros_ns) if self.timeline.started else None
