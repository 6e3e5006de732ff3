"""The simulated robot as a ROS node: camera, joint states, trajectory controller, ground truth.

Inputs: `joint_trajectory_controller/joint_trajectory`. Outputs: `joint_states` at every controller
tick, `camera/front/image_raw` and `camera_info`, and the ground truth `sim/target` and
`sim/end_effector`. With `record_path`, `arm.rows` holds every tick
(physis_lab.robot.simulated_robot.RECORD_COLUMNS).

Threads: one moves the robot on a steady clock and publishes joint states. One renders, with its own
OpenGL context and copy of the state, so that a slow image never delays a tick. ROS callbacks run on
the executor and only queue trajectories.
"""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mujoco
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import String

from physis_core.types import Array
from physis_lab.arm.camera import Camera
from physis_lab.arm.limits import JOINT_NAMES
from physis_lab.arm.scene import CAMERA_NAME, build_model
from physis_lab.arm.urdf import urdf_text
from physis_lab.robot.conversions import (
    camera_info_message,
    image_message,
    pose_message,
    put_stamp,
    trajectory_of,
)
from physis_lab.robot.parameters import RobotSimParameters
from physis_lab.robot.simulated_robot import RobotTick, SimulatedRobot
from physis_lab.tasks.task import make_task
from physis_ros.node.base import EXIT_FAULT, OK, WARN, Diagnosis, PhysisNode, main
from physis_ros.node.interfaces import (
    JOINT_STATES,
    JOINT_TRAJECTORY,
    ROBOT_DESCRIPTION,
    SIM_END_EFFECTOR,
    SIM_TARGET,
    Topic,
    camera_info,
    camera_raw,
)
from physis_ros.node.system import leave_realtime, request_realtime
from physis_ros.node.time_messages import time_to_ns
from physis_ros.robot.trajectory_controller import ControllerConfig

_MAX_LAG_S = 0.5
"""If it lags by more than this, the simulation skips ticks instead of catching up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Snapshot:
    """The state of one tick, for the renderer."""

    stamp_ns: int
    qpos: Array
    mocap: Array


class RobotSimNode(PhysisNode[RobotSimParameters]):
    def __init__(self) -> None:
        super().__init__("robot_sim_node", RobotSimParameters)
        self._robot: SimulatedRobot | None = None
        self._model: mujoco.MjModel | None = None
        self._end = threading.Event()
        self._threads: list[threading.Thread] = []
        self._publishers_made: list[Any] = []
        self._subscription: Any = None
        self._snapshot: _Snapshot | None = None
        self._skipped_s = 0.0
        self._reported_refusals = 0
        self._before_others = False
        self._simulated_time = bool(self.get_parameter("use_sim_time").value)

    # Life cycle --------------------------------------------------------------------------------

    def configure(self) -> None:
        self._joint_names = [f"{self.params.joint_prefix}{name}" for name in JOINT_NAMES]
        self._model = build_model(props=make_task(self.params.task, self.params.task_seed).props)
        # Create and close a camera first, so that a missing EGL is reported before anything runs.
        Camera(self._model, width=self.params.width, height=self.params.height).close()
        self._joint_states = self._make(JOINT_STATES)
        self._images = self._make(camera_raw(CAMERA_NAME))
        self._camera_info = self._make(camera_info(CAMERA_NAME))
        self._target = self._make(SIM_TARGET)
        self._end_effector = self._make(SIM_END_EFFECTOR)
        # RViz and robot_state_publisher read the description here.
        self._make(ROBOT_DESCRIPTION).publish(String(data=urdf_text()))
        self._subscription = self.subscribe(JOINT_TRAJECTORY, self._on_trajectory)

    def activate(self) -> None:
        assert self._model is not None
        p = self.params
        self._robot = SimulatedRobot(
            self._model,
            make_task(p.task, p.task_seed),
            controller=ControllerConfig(
                joint_names=tuple(self._joint_names),
                interpolate_from_desired_state=p.interpolate_from_desired_state,
                cmd_timeout_s=p.cmd_timeout_s,
            ),
            start_s=self.steady_s(),
            tick_s=1.0 / p.controller_hz,
            task_waits=p.task_waits,
            record=_fresh_record(Path(p.record_path)) if p.record_path else None,
        )
        if p.realtime_priority > 0 and (why := request_realtime(p.realtime_priority)):
            self.get_logger().info(f"the simulated controller is not real-time: {why}")
        self._end.clear()
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,), name=name, daemon=True)
            for name, work in (("robot", self._move), ("camera", self._render))
        ]
        for thread in self._threads:
            thread.start()

    def deactivate(self) -> None:
        self._end.set()
        wait_for_end(self._threads, self.get_logger().warning)
        self._threads.clear()
        if self._robot is not None:
            self._robot.close()

    def cleanup(self) -> None:
        for publisher in self._publishers_made:
            self.destroy_publisher(publisher)
        self._publishers_made.clear()
        if self._subscription is not None:
            self.destroy_subscription(self._subscription)
            self._subscription = None

    def _make(self, topic: Topic) -> Any:
        publisher = self.publisher(topic)
        self._publishers_made.append(publisher)
        return publisher

    def diagnose(self) -> Sequence[Diagnosis]:
        robot = self._robot
        if robot is None:
            return ()
        new_refusals = robot.refused > self._reported_refusals
        if new_refusals:
            self.get_logger().warning(f"trajectory refused: {robot.last_refusal}")
            self._reported_refusals = robot.refused
        faults = f"{self.params.camera_fault}/{self.params.joint_states_fault}"
        return (
            Diagnosis(
                part="controller",
                level=WARN if new_refusals or robot.limit_ticks else OK,
                message=robot.last_refusal if new_refusals else "",
                values={
                    "accepted": robot.accepted,
                    "refused": robot.refused,
                    "ticks_past_a_limit": robot.limit_ticks,
                    "skipped_s": f"{self._skipped_s:.3f}",
                    "raised_priority": self._before_others,
                    "camera/joint_states fault": faults,
                },
            ),
        )

    # ROS in ------------------------------------------------------------------------------------

    def _on_trajectory(self, message: Any) -> None:
        if self._robot is None:
            return
        arrival_s, arrival_ns = self.both_clocks()
        stamp_ns = time_to_ns(message.header.stamp)
        start_s = None if stamp_ns == 0 else arrival_s + (stamp_ns - arrival_ns) / 1e9
        self._robot.offer(trajectory_of(message, start_s), arrival_s)

    # Threads -----------------------------------------------------------------------------------

    def _guarded(self, work: Any) -> None:
        """End the node when a thread fails: half a robot would look alive."""
        try:
            work()
        except Exception as error:
            self.request_exit(EXIT_FAULT, f"{work.__name__}: {type(error).__name__}: {error}")
            raise

    def _move(self) -> None:
        robot = self._robot
        assert robot is not None
        self._before_others = _raise_priority()
        every = max(1, round(self.params.controller_hz / self.params.camera_hz))
        frozen: JointState | None = None
        count = 0
        while not self._end.wait(max(0.0, robot.next_s - self.steady_s())):
            lag_s = self.steady_s() - robot.next_s
            if lag_s > _MAX_LAG_S:
                robot.skip_to(self.steady_s())
                self._skipped_s += lag_s
            tick = robot.tick()
            # Both clocks are read together; the state belongs to the tick's instant. Simulated time
            # runs at its own pace or stands still, so there the present stamp is used.
            steady_s, now_ns = self.both_clocks()
            if now_ns == 0:
                continue  # simulated time has not started: nothing can be stamped
            late_s = 0.0 if self._simulated_time else steady_s - tick.at_s
            stamp_ns = now_ns - round(late_s * 1e9)
            self._snapshot = _Snapshot(
                stamp_ns=stamp_ns,
                qpos=robot.plant.data.qpos.copy(),
                mocap=robot.plant.data.mocap_pos.copy(),
            )
            frozen = self._publish_joints(tick, stamp_ns, frozen)
            count += 1
            if count % every == 0:
                self._target.publish(pose_message(stamp_ns, tick.target))
                self._end_effector.publish(pose_message(stamp_ns, tick.end_effector))

    def _publish_joints(
        self, tick: RobotTick, stamp_ns: int, frozen: JointState | None
    ) -> JointState | None:
        """Publish subject to the active fault; returns the message that a freeze repeats."""
        fault = self.params.joint_states_fault
        if fault == "loss":
            return None
        if fault == "freeze" and frozen is not None:
            self._joint_states.publish(frozen)
            return frozen
        message = JointState(name=self._joint_names)
        put_stamp(message.header, stamp_ns)
        message.position = tick.position.tolist()
        message.velocity = tick.velocity.tolist()
        if fault == "nan":
            message.position[2] = math.nan
        if fault == "missing_joint":
            for field in (message.name, message.position, message.velocity):
                del field[-1]
        self._joint_states.publish(message)
        return message

    def _render(self) -> None:
        model = self._model
        assert model is not None
        data = mujoco.MjData(model)
        period_s = 1.0 / self.params.camera_hz
        leave_realtime()
        with Camera(model, width=self.params.width, height=self.params.height) as camera:
            due_s = self.steady_s()
            last: Image | None = None
            while not self._end.wait(max(0.0, due_s - self.steady_s())):
                # A late image is skipped, not caught up.
                due_s = max(due_s + period_s, self.steady_s() - period_s)
                snapshot, fault = self._snapshot, self.params.camera_fault
                if snapshot is None or fault == "loss":
                    continue
                if last is not None and fault == "freeze_restamped":
                    put_stamp(last.header, snapshot.stamp_ns)
                elif last is None or fault != "freeze":
                    data.qpos[:] = snapshot.qpos
                    data.mocap_pos[:] = snapshot.mocap
                    mujoco.mj_kinematics(model, data)
                    mujoco.mj_camlight(model, data)
                    last = image_message(camera.render(data), snapshot.stamp_ns)
                self._images.publish(last)
                self._camera_info.publish(camera_info_message(model, last))


def wait_for_end(
    threads: Sequence[threading.Thread],
    warn: Callable[[str], object],
    *,
    every_s: float = 5.0,
) -> None:
    """Wait until all `threads` have ended, with a warning every `every_s`.

    It never gives up: EGL is terminated when the process exits, and that corrupts the memory of a
    thread which is still creating its context or rendering. The supervisor kills a process that
    does not end.
    """
    for thread in threads:
        thread.join(timeout=every_s)
        while thread.is_alive():
            warn(f"waiting for the {thread.name} thread to end")
            thread.join(timeout=every_s)


def _raise_priority() -> bool:
    """Raise this thread's priority above a loaded engine: a real robot has its own computer."""
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), -10)
    except PermissionError:
        return False
    return True


def _fresh_record(directory: Path) -> Path:
    """Path of the record; an existing record is renamed, so that a restart loses nothing."""
    path = directory / "arm.rows"
    if path.exists():
        count = sum(1 for _ in directory.glob("arm.*.rows"))
        path.rename(directory / f"arm.{count + 1}.rows")
    return path


if __name__ == "__main__":
    sys.exit(main(RobotSimNode))
