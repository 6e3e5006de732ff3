"""buffer_node: ActionChunk in, JointTrajectory windows and the figures of the stream out.

In:  `action_chunk`, `safety/commanded_state`, `joint_states` (only to start without a safety node),
     `observation` (counted, never decoded).
Out: `safety/command_in`, `stream_status`, /diagnostics.

A window is the plan of the action timeline from the hand-over to rest: first point at least
`lead_s` ahead, last velocity 0. The servo tick samples the same plan, so it knows the age of the
point that is played now. Threads: everything runs on the executor's thread.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from sensor_msgs.msg import JointState

from physis_core.types import UserError
from physis_ros.msg import ActionChunk, StreamStatus
from physis_ros.node.base import Diagnosis, PhysisNode, main
from physis_ros.node.interfaces import (
    JOINT_STATES,
    OBSERVATION,
    SAFETY_COMMAND_IN,
    SAFETY_COMMANDED_STATE,
    STREAM_STATUS,
    action_chunk,
)
from physis_ros.node.metric_names import Sample
from physis_ros.node.time_messages import time_to_ns
from physis_ros.robot.description_topic import limits_for
from physis_ros.robot.joint_readings import whole_state
from physis_ros.robot.trajectory_messages import TrajectoryWriter
from physis_ros.timeline.action_buffer import ActionBuffer, BufferInstant
from physis_ros.timeline.chunk_messages import from_chunk
from physis_ros.timeline.parameters import BufferParameters
from physis_ros.timeline.report import BufferCounts, BufferSnapshot
from physis_ros.timeline.stream_figures import ChunkStamps, StreamFigures, StreamReason
from physis_ros.timeline.stream_record import StreamRecord
from physis_ros.timeline.timed_chunk import RefusedChunk
from physis_ros.timeline.types import ServoPoint

# By use_sim_time: /clock comes in steps, and reaches each process at another moment.
_CLOCK_SLACK_S = {False: 1e-3, True: 0.1}


class BufferNode(PhysisNode[BufferParameters]):
    def __init__(self) -> None:
        super().__init__("buffer_node", BufferParameters)
        self._buffer: ActionBuffer | None = None
        self._record: StreamRecord | None = None
        self._handles: list[Any] = []
        self._timers_made: list[Any] = []
        self._reset_state()

    def _reset_state(self) -> None:
        self._figures: StreamFigures | None = None
        self._waiting: ChunkStamps | None = None
        self._state = StreamStatus.STARTING
        # A refusal stays the reason until the next chunk is overdue.
        self._why = StreamReason(recent_s=self.params.deadline_s)
        self._stream_id = ""
        self._counts = BufferCounts()

    # Life cycle --------------------------------------------------------------------------------

    def configure(self) -> None:
        p = self.params
        limits = limits_for(self)
        self._reset_state()
        self._buffer = ActionBuffer(
            limits.scaled(velocity=p.velocity_share, acceleration=p.acceleration_share),
            p.timeline(),
        )
        self._figures = StreamFigures(
            window=p.window_chunks,
            servo_window=p.window_servo,
            rate_window_s=p.rate_window_s,
            clock_slack_s=_CLOCK_SLACK_S[bool(self.get_parameter("use_sim_time").value)],
        )
        self._writer = TrajectoryWriter(limits.names)
        if p.record_path:
            self._record = StreamRecord(Path(p.record_path), joint_names=limits.names)
        self._windows = self.publisher(SAFETY_COMMAND_IN)
        self._status = self.publisher(STREAM_STATUS)
        chunks = action_chunk(p.deadline_s, p.lease_s)
        self._handles = [
            self._windows,
            self._status,
            self.subscribe(
                chunks, self._on_chunk, deadline=self._on_deadline, liveliness=self._on_liveliness
            ),
            self.subscribe(SAFETY_COMMANDED_STATE, self._on_commanded),
            self.subscribe(JOINT_STATES, self._on_joints),
            # Raw: an observation is counted, not decoded.
            self.subscribe(OBSERVATION, self._on_observation, raw=True),
        ]

    def activate(self) -> None:
        assert self._buffer is not None
        self._buffer.begin(self._instant())
        self._timers_made = [
            self.steady_timer(1.0 / self.params.servo_hz, self._servo_tick),
            self.steady_timer(1.0 / self.params.status_hz, self._publish_status),
        ]
        # Objects from start-up stay; the garbage collector must not scan them in a servo tick.
        gc.collect()
        gc.freeze()

    def deactivate(self) -> None:
        for timer in self._timers_made:
            self.destroy_timer(timer)
        self._timers_made = []

    def cleanup(self) -> None:
        for handle in self._handles:
            if hasattr(handle, "publish"):
                self.destroy_publisher(handle)
            else:
                self.destroy_subscription(handle)
        self._handles = []
        if self._record is not None:
            self._record.close()
            self._record = None
        self._buffer = None

    def on_clock_jump(self, delta_s: float) -> None:
        if self._buffer is None or self._figures is None:
            return
        self._buffer.clock_jumped(self._instant())
        self._figures.clear()
        self._waiting = None
        self._why.cleared(
            f"ROS time jumped by {delta_s:+.3f} s; waiting for new observations", self.steady_s()
        )

    # Input -------------------------------------------------------------------------------------

    def _on_chunk(self, message: ActionChunk) -> None:
        buffer, figures = self._buffer, self._figures
        wanted = self.params.stream_id
        if not self.active or buffer is None or figures is None:
            return
        if wanted and message.stream_id != wanted:
            return
        now = self._instant()
        chunk, stamps = from_chunk(message, self.params.joint_prefix)
        self._stream_id = message.stream_id
        if stamps.missed:
            figures.missed()
        answer = buffer.chunk(chunk, now)
        if isinstance(answer.outcome, RefusedChunk):
            self._counts.dropped += 1
            self._why.refused(answer.outcome.reason, now.steady_s)
            if self._record is not None:
                self._record.chunk(stamps, now.steady_s, handoff_ns=0, accepted=False)
            self.get_logger().warning(answer.outcome.reason, throttle_duration_sec=1.0)
            return
        if self._waiting is not None and self._record is not None:
            self._record.chunk(self._waiting, now.steady_s, handoff_ns=0, accepted=True)
        self._waiting = stamps
        self._why.accepted(now.steady_s)
        figures.chunk(stamps, now.steady_s)
        if answer.send:
            self._send_window(buffer, figures)

    def _on_observation(self, _serialized: bytes) -> None:
        if self._figures is not None:
            self._figures.observation(self.steady_s())

    def _on_deadline(self, event: Any) -> None:
        self._counts.deadline_events += int(event.total_count_change)

    def _on_liveliness(self, event: Any) -> None:
        if event.not_alive_count_change > 0 or event.alive_count_change < 0:
            self._counts.liveliness_events += 1
        if event.alive_count == 0 and self._buffer is not None:
            # The next publisher is another engine process, with any epoch.
            self._buffer.timeline.forget_epoch()

    def _on_joints(self, message: JointState) -> None:
        if self._buffer is not None:
            self._buffer.robot.measured(message.name, message.position)

    def _on_commanded(self, message: JointState) -> None:
        buffer, figures = self._buffer, self._figures
        if not self.active or buffer is None or figures is None:
            return
        try:
            state = whole_state(message, buffer.timeline.limits.names)
        except UserError as error:
            self.get_logger().error(f"commanded state: {error}", throttle_duration_sec=1.0)
            return
        if state is None:
            return
        send = buffer.commanded(*state, time_to_ns(message.header.stamp), self._instant())
        self._counts.rebases = buffer.rebases
        if not buffer.waiting:
            # The plan restarted without the chunk that waited.
            self._waiting = None
        if send:
            self._send_window(buffer, figures)

    # Work --------------------------------------------------------------------------------------

    def _servo_tick(self) -> None:
        buffer, figures = self._buffer, self._figures
        if buffer is None or figures is None:
            return
        now = self._instant()
        if buffer.tick(now):
            self._send_window(buffer, figures)
        point = buffer.point(now)
        if point is None:
            return
        self._account(point, figures, now.steady_s)
        if self._record is not None:
            depth_s = buffer.timeline.depth_s(now.ros_ns)
            self._record.tick(point, now.steady_s, now.ros_ns, depth_s)

    def _account(self, point: ServoPoint, figures: StreamFigures, now_s: float) -> None:
        if self.standstill():
            # The point of this instant is valid, but nothing plays it.
            if self._state == StreamStatus.PLAYING:
                self._state = StreamStatus.UNDERRUN
        elif point.valid:
            self._state = StreamStatus.PLAYING
            figures.servo_point(point.age_s, now_s)
        elif self._state != StreamStatus.STARTING:
            self._state = StreamStatus.UNDERRUN
            figures.underrun()

    def _send_window(self, buffer: ActionBuffer, figures: StreamFigures) -> None:
        now = self._instant()
        window = buffer.window(now)
        self._windows.publish(
            self._writer.write(
                window.times_s,
                window.positions,
                window.velocities,
                start_ns=now.ros_ns if self.params.window_start == "stamped" else 0,
            )
        )
        stamps, self._waiting = self._waiting, None
        if stamps is None:
            return
        handoff_ns = self.now_ns()
        figures.handed_off(stamps, handoff_ns)
        if self._record is not None:
            self._record.chunk(stamps, self.steady_s(), handoff_ns=handoff_ns, accepted=True)

    def _instant(self) -> BufferInstant:
        steady_s, ros_ns = self.both_clocks()
        return BufferInstant(ros_ns=ros_ns, steady_s=steady_s)

    # Output ------------------------------------------------------------------------------------

    def _reason(self) -> str:
        if self._state == StreamStatus.PLAYING:
            return ""
        if clock_fault := self.clock_fault():
            return clock_fault
        if self._buffer is None or not self._buffer.timeline.started:
            return "waiting for safety/commanded_state or joint_states"
        return self._why.line(self.steady_s())

    def _now(self) -> BufferSnapshot | None:
        if self._buffer is None or self._figures is None:
            return None
        return BufferSnapshot(
            timeline=self._buffer.timeline,
            figures=self._figures,
            counts=self._counts,
            stream_id=self._stream_id,
            state=self._state,
            reason=self._reason(),
            now_ns=self.now_ns(),
            now_s=self.steady_s(),
        )

    def _publish_status(self) -> None:
        now = self._now()
        if now is None:
            return
        message = now.status()
        message.header.stamp = self.get_clock().now().to_msg()
        self._status.publish(message)

    def waits_for(self) -> str:
        return "" if self._state == StreamStatus.PLAYING else self._reason()

    def diagnose(self) -> Sequence[Diagnosis]:
        now = self._now()
        return () if now is None else (now.diagnosis(),)

    def metrics(self) -> Iterable[Sample]:
        now = self._now()
        return () if now is None else now.metrics()

    def validate_parameters(self, new: BufferParameters) -> None:
        if new.lead_s < 1.0 / new.servo_hz:
            raise UserError("lead_s", new.lead_s, f"below one servo period at {new.servo_hz:g} Hz")


if __name__ == "__main__":
    sys.exit(main(BufferNode))
