"""What safety_node sends, on a thread of its own: the loop must never wait for the middleware.

Whoever decides puts what was decided into the outbox, in the order of the decisions. This thread
makes messages of it, and asks whether the controller's side has acknowledged what it was sent.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rclpy.duration import Duration
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray, Header

from physis_core.observe.percentiles import SlidingWindow
from physis_core.types import Percentiles
from physis_ros.msg import SafetyStatus
from physis_ros.node.base import PhysisNode
from physis_ros.node.diagnosis import percentiles_message
from physis_ros.node.interfaces import (
    FORWARD_POSITION,
    JOINT_TRAJECTORY,
    SAFETY_COMMANDED_STATE,
    SAFETY_HEARTBEAT,
    SAFETY_STATUS,
)
from physis_ros.robot.joint_motion import Floats
from physis_ros.robot.trajectory_messages import TrajectoryWriter
from physis_ros.safety.types import Forward

# How often an acknowledgement is asked for while one is waited for.
_ASK_S = 0.002
_AT_ONCE = Duration(nanoseconds=0)
_WAYS = 1000
# Of the time within which a forwarded trajectory may be taken, what may have gone by when it is
# sent; the rest is for its way. One that is held back counts as lost, which is reckoned with.
_OWN_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusSnapshot:
    """What safety_status says besides the time; see SafetyStatus."""

    fields: dict[str, Any]
    jitter_ms: Percentiles | None
    lost_ticks: int


class SafetyOutput:
    """`acknowledged` is called when everything forwarded so far has been; `failed` when this thread
    cannot go on. Both are called on this thread."""

    def __init__(
        self,
        node: PhysisNode[Any],
        names: Sequence[str],
        *,
        positions: bool,
        stamped: bool,
        simulated: bool,
        late_s: float,
        acknowledged: Callable[[], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._node = node
        self._late_s = late_s
        self._names = tuple(names)
        self._writer = TrajectoryWriter(names)
        self._positions = positions
        self._stamped = stamped
        self._simulated = simulated
        self._acknowledged = acknowledged
        self._failed = failed
        self._robot = node.publisher(FORWARD_POSITION if positions else JOINT_TRAJECTORY)
        self._status = node.publisher(SAFETY_STATUS)
        self._commanded = node.publisher(SAFETY_COMMANDED_STATE)
        self._heartbeat = node.publisher(SAFETY_HEARTBEAT)
        self._outbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._waits = False
        self._sent_s = 0.0
        self._way_ms = SlidingWindow(_WAYS)
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to send; may begin again after `stop`."""
        self._thread = threading.Thread(target=self._run, name="sender", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Returns when everything in the outbox has been sent."""
        if self._thread is None:
            return
        self._outbox.put(None)
        self._thread.join()
        self._thread = None

    def close(self) -> None:
        for publisher in (self._robot, self._status, self._commanded, self._heartbeat):
            self._node.destroy_publisher(publisher)

    @property
    def has_subscriber(self) -> bool:
        """Whether anybody subscribes to what is forwarded."""
        return bool(self._robot.get_subscription_count() > 0)

    def acknowledgement_ms(self) -> Percentiles:
        """From sending a trajectory to its acknowledgement."""
        return self._way_ms.percentiles()

    def forward(self, forward: Forward) -> None:
        if not self._positions:
            self._outbox.put(lambda: self._send_trajectory(forward))

    def position(self, position: Floats) -> None:
        """One point for a forward position controller."""
        if self._positions:
            self._outbox.put(lambda: self._robot.publish(Float64MultiArray(data=position.tolist())))

    def commanded(self, state: tuple[Floats, Floats]) -> None:
        stamp = self._node.get_clock().now().to_msg()
        self._outbox.put(
            lambda: self._commanded.publish(
                JointState(
                    header=Header(stamp=stamp),
                    name=list(self._names),
                    position=state[0].tolist(),
                    velocity=state[1].tolist(),
                )
            )
        )

    def heartbeat(self) -> None:
        stamp = self._node.get_clock().now().to_msg()
        self._outbox.put(lambda: self._heartbeat.publish(Header(stamp=stamp)))

    def status(self, status: Callable[[], StatusSnapshot | None]) -> None:
        """What `status` says when it is its turn; None: nothing any more."""
        self._outbox.put(lambda: self._send_status(status()))

    def do(self, act: Callable[[], None]) -> None:
        """Anything else that the loop's thread must not wait for."""
        self._outbox.put(act)

    def _send_trajectory(self, forward: Forward) -> None:
        """Not if it was judged long ago: a process that was stopped in between would send what was
        right before."""
        now_s = self._node.now_ns() * 1e-9 if self._simulated else self._node.steady_s()
        if now_s - forward.at_s > _OWN_SHARE * self._late_s:
            self._node.get_logger().warning(
                f"a trajectory was not sent: judged {now_s - forward.at_s:.3f} s ago"
            )
            return
        start_ns = 0
        if self._stamped:
            start_ns = self._ros_ns(forward.at_s)
        self._robot.publish(
            self._writer.write(
                np.asarray(forward.times_s),
                forward.positions,
                forward.velocities,
                start_ns=start_ns,
            )
        )
        self._waits, self._sent_s = True, self._node.steady_s()

    def _ros_ns(self, motion_s: float) -> int:
        """The instant at which it was judged, as a stamp."""
        if self._simulated:
            return round(motion_s * 1e9)
        steady_s, now_ns = self._node.both_clocks()
        return now_ns - round((steady_s - motion_s) * 1e9)

    def _send_status(self, status: StatusSnapshot | None) -> None:
        if status is None:
            return
        message = SafetyStatus(**status.fields)
        message.header.stamp = self._node.get_clock().now().to_msg()
        if status.jitter_ms is not None:
            message.loop_jitter_ms = percentiles_message(status.jitter_ms)
            message.lost_ticks = status.lost_ticks
        self._status.publish(message)

    def _run(self) -> None:
        try:
            while True:
                try:
                    send = self._outbox.get(timeout=_ASK_S if self._waits else None)
                except queue.Empty:
                    self._ask()
                    continue
                if send is None:
                    return
                send()
                if self._waits:
                    self._ask()
        except Exception as error:  # noqa: BLE001  handed on: unsent decisions are not safe
            self._failed(error)

    def _ask(self) -> None:
        if self._robot.wait_for_all_acked(_AT_ONCE):
            self._waits = False
            self._way_ms.add((self._node.steady_s() - self._sent_s) * 1e3)
            self._acknowledged()
