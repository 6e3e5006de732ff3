"""Sends what safety_node decides, on its own thread: the loop must never wait for the middleware.

Decisions enter the outbox in their order. This thread turns them into messages and polls whether
the controller's side has acknowledged them.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rclpy.duration import Duration
from rclpy.publisher import Publisher
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray, Header

from physis_core.observe.percentiles import SlidingWindow
from physis_core.types import Percentiles
from physis_ros.msg import SafetyStatus
from physis_ros.node.base import PhysisNode
from physis_ros.node.diagnosis import percentiles_message
from physis_ros.node.interfaces import (
    FORWARD_POSITION,
    GRIPPER_COMMAND,
    JOINT_TRAJECTORY,
    SAFETY_COMMANDED_STATE,
    SAFETY_HEARTBEAT,
    SAFETY_STATUS,
)
from physis_ros.robot.joint_motion import Floats
from physis_ros.robot.trajectory_messages import TrajectoryWriter
from physis_ros.safety.types import Forward

# Poll period while an acknowledgement is outstanding.
_POLL_S = 0.002
_NO_WAIT = Duration(nanoseconds=0)
_SAMPLES = 1000
# A trajectory older than this share of `late_s` is not sent: the rest of `late_s` is for transport.
# One that is held back counts as lost, which the filter allows for.
_SEND_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusSnapshot:
    """The content of a SafetyStatus message, without its stamp."""

    fields: dict[str, Any]
    jitter_ms: Percentiles | None
    lost_ticks: int


class SafetyOutput:
    """`names`: of all joints. `gripper`: the number of the one that has a controller of its own;
    None: none has. `acknowledged` is called when everything forwarded so far is acknowledged,
    `failed` when the thread ends by an error. Both are called on the sender's thread."""

    def __init__(
        self,
        node: PhysisNode[Any],
        names: Sequence[str],
        *,
        gripper: int | None,
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
        self._gripper = gripper
        # The joints of the arm's controller.
        self._arm = [number for number in range(len(self._names)) if number != gripper]
        self._writer = TrajectoryWriter([self._names[number] for number in self._arm])
        self._positions = positions
        self._stamped = stamped
        self._simulated = simulated
        self._acknowledged = acknowledged
        self._failed = failed
        self._robot = node.publisher(FORWARD_POSITION if positions else JOINT_TRAJECTORY)
        self._fingers = None if gripper is None else node.publisher(GRIPPER_COMMAND)
        self._status = node.publisher(SAFETY_STATUS)
        self._commanded = node.publisher(SAFETY_COMMANDED_STATE)
        self._heartbeat = node.publisher(SAFETY_HEARTBEAT)
        self._outbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._awaits_acknowledgement = False
        self._sent_s = 0.0
        self._moves = False
        self._acknowledgement_ms = SlidingWindow(_SAMPLES)
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread; may be called again after `stop`."""
        self._thread = threading.Thread(target=self._run, name="sender", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Return when everything in the outbox has been sent."""
        if self._thread is None:
            return
        self._outbox.put(None)
        self._thread.join()
        self._thread = None

    def close(self) -> None:
        for publisher in (
            self._robot,
            self._fingers,
            self._status,
            self._commanded,
            self._heartbeat,
        ):
            if publisher is not None:
                self._node.destroy_publisher(publisher)

    @property
    def robot(self) -> Publisher[Any]:
        """The publisher on the controller's topic."""
        return self._robot

    @property
    def has_subscriber(self) -> bool:
        """Whether the controller's topic has a subscriber."""
        return bool(self._robot.get_subscription_count() > 0)

    def acknowledgement_ms(self) -> Percentiles:
        """From sending a trajectory to its acknowledgement."""
        return self._acknowledgement_ms.percentiles()

    def forward(self, forward: Forward) -> None:
        if not self._positions:
            self._outbox.put(lambda: self._send_trajectory(forward))

    def position(self, position: Floats) -> None:
        """One point for a forward position controller."""
        if self._positions:
            self._outbox.put(lambda: self._send_position(position))

    def gripper(self, position: Floats) -> None:
        """The gripper's part of `position` [joints], where it has a controller of its own."""
        fingers, number = self._fingers, self._gripper
        if fingers is not None and number is not None:
            message = Float64MultiArray(data=[float(position[number])])
            self._outbox.put(lambda: fingers.publish(message))

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
        """Publish what `status` returns when the sender comes to it; None: nothing."""
        self._outbox.put(lambda: self._send_status(status()))

    def do(self, act: Callable[[], None]) -> None:
        """Run anything else that the loop's thread must not wait for."""
        self._outbox.put(act)

    def _send_position(self, position: Floats) -> None:
        self._robot.publish(Float64MultiArray(data=position[self._arm].tolist()))
        self._say_first()

    def _say_first(self) -> None:
        """`physis up` waits for this line."""
        if not self._moves:
            self._moves = True
            self._node.get_logger().info("first trajectory to the robot")

    def _send_trajectory(self, forward: Forward) -> None:
        """Send, unless it was judged too long ago: after a pause of this process it may be
        wrong."""
        now_s = self._node.now_ns() * 1e-9 if self._simulated else self._node.steady_s()
        if now_s - forward.at_s > _SEND_SHARE * self._late_s:
            self._node.get_logger().warning(
                f"a trajectory was not sent: judged {now_s - forward.at_s:.3f} s ago"
            )
            return
        start_ns = 0
        if self._stamped:
            start_ns = self._ros_ns(forward.at_s)
        self._robot.publish(
            self._writer.write(
                forward.times_s,
                forward.positions[:, self._arm],
                forward.velocities[:, self._arm],
                start_ns=start_ns,
            )
        )
        self._awaits_acknowledgement, self._sent_s = True, self._node.steady_s()
        self._say_first()

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
                    send = self._outbox.get(
                        timeout=_POLL_S if self._awaits_acknowledgement else None
                    )
                except queue.Empty:
                    self._poll_acknowledgement()
                    continue
                if send is None:
                    return
                send()
                if self._awaits_acknowledgement:
                    self._poll_acknowledgement()
        except Exception as error:  # noqa: BLE001  handed to the node, which ends
            self._failed(error)

    def _poll_acknowledgement(self) -> None:
        if self._robot.wait_for_all_acked(_NO_WAIT):
            self._awaits_acknowledgement = False
            self._acknowledgement_ms.add((self._node.steady_s() - self._sent_s) * 1e3)
            self._acknowledged()
