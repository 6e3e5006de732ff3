"""The simulated robot as ROS sees one: camera, joint states, a trajectory controller, and the
truth.

Inputs: `joint_trajectory_controller/joint_trajectory`. Outputs: `joint_states` at every controller
tick, `camera/front/image_raw` and `camera_info`, and for the judge `sim/target` and
`sim/end_effector`. With `record_path`, `arm.rows` there holds every tick
(physis_ros.simulated_robot.RECORD_COLUMNS).

Threads: one moves the robot on a steady clock and publishes joint states; one renders, with its own
OpenGL context and its own copy of the state, so that a slow picture never delays a tick; ROS
callbacks run on the executor and only put trajectories into a queue.
"""

from __future__ import annotations

import array
import math
import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from geometry_msgs.msg import PoseStamped
from sensor_msgs.msg import CameraInfo, Image, JointState
from std_msgs.msg import String

from physis_core.arm.camera import Camera
from physis_core.arm.limits import JOINT_NAMES
from physis_core.arm.scene import CAMERA_NAME, build_model
from physis_core.arm.tasks import TASKS, make_task
from physis_core.arm.urdf import urdf_text
from physis_core.types import Array
from physis_ros.interfaces import (
    JOINT_STATES,
    JOINT_TRAJECTORY,
    ROBOT_DESCRIPTION,
    SIM_END_EFFECTOR,
    SIM_TARGET,
    Topic,
    camera_info,
    camera_raw,
)
from physis_ros.nodes.base import EXIT_FAULT, OK, WARN, BaseParameters, Diagnosis, PhysisNode, main
from physis_ros.params import param
from physis_ros.realtime import ask_realtime, leave_realtime
from physis_ros.simulated_robot import SimulatedRobot, Tick
from physis_ros.trajectory_controller import ControllerConfig, Trajectory, TrajectoryPoint

_MAX_LAG_S = 0.5
"""Behind by more than this the simulation skips instead of racing after the clock."""

CAMERA_FAULTS = ("none", "loss", "freeze", "freeze_restamped")
JOINT_FAULTS = ("none", "loss", "freeze", "nan", "missing_joint")


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotSimParameters(BaseParameters):
    task: str = param("follow", description="What the ball does", choices=TASKS)
    task_seed: int = param(1, description="Seed of the ball's path", minimum=0)
    task_waits: bool = param(
        True, description="The ball stands still until the first trajectory is taken"
    )
    width: int = param(128, description="Camera width", unit="pixel", minimum=8, maximum=1280)
    height: int = param(128, description="Camera height", unit="pixel", minimum=8, maximum=960)
    camera_hz: float = param(30.0, description="Camera rate", unit="Hz", minimum=0.1, maximum=120.0)
    controller_hz: float = param(
        125.0,
        description="Rate of the controller and of joint_states; 500 over a whole number",
        unit="Hz",
        minimum=50.0,
        maximum=500.0,
    )
    interpolate_from_desired_state: bool = param(
        True, description="As the controller YAML that goes with us sets it"
    )
    cmd_timeout_s: float = param(
        0.5,
        description="After the last point, hold the measured position; 0: never",
        unit="s",
        minimum=0.0,
        maximum=60.0,
    )
    realtime_priority: int = param(
        40,
        description="SCHED_FIFO priority asked for, as a real controller has; 0: none",
        minimum=0,
        maximum=98,
    )
    record_path: str = param("", description="Directory for arm.rows; empty: no record")
    camera_fault: str = param(
        "none", description="A camera fault to play", choices=CAMERA_FAULTS, runtime=True
    )
    joint_states_fault: str = param(
        "none", description="A joint_states fault to play", choices=JOINT_FAULTS, runtime=True
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Snapshot:
    """What the renderer needs of one tick."""

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
        self._told_refusals = 0
        self._before_others = False

    # Life cycle --------------------------------------------------------------------------------

    def configure(self) -> None:
        self._model = build_model()
        # Made and closed here as well: a machine without EGL is told so before anything runs.
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
                joint_names=JOINT_NAMES,
                interpolate_from_desired_state=p.interpolate_from_desired_state,
                cmd_timeout_s=p.cmd_timeout_s,
            ),
            start_s=self.steady_s(),
            tick_s=1.0 / p.controller_hz,
            task_waits=p.task_waits,
            record=_fresh_record(Path(p.record_path)) if p.record_path else None,
        )
        if p.realtime_priority > 0 and (why := ask_realtime(p.realtime_priority)):
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
        for thread in self._threads:
            thread.join(timeout=5.0)
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
        told = robot.refused > self._told_refusals
        if told:
            self.get_logger().warning(f"trajectory refused: {robot.last_refusal}")
            self._told_refusals = robot.refused
        faults = f"{self.params.camera_fault}/{self.params.joint_states_fault}"
        return (
            Diagnosis(
                part="controller",
                level=WARN if told or robot.limit_ticks else OK,
                message=robot.last_refusal if told else "",
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
        stamp_ns = message.header.stamp.sec * 1_000_000_000 + message.header.stamp.nanosec
        start_s = None if stamp_ns == 0 else arrival_s + (stamp_ns - arrival_ns) / 1e9
        self._robot.offer(
            Trajectory(
                joint_names=tuple(message.joint_names),
                start_s=start_s,
                points=tuple(
                    TrajectoryPoint(
                        time_from_start_s=p.time_from_start.sec + p.time_from_start.nanosec / 1e9,
                        positions=tuple(p.positions),
                        velocities=tuple(p.velocities),
                        accelerations=tuple(p.accelerations),
                        effort=tuple(p.effort),
                    )
                    for p in message.points
                ),
            ),
            arrival_s,
        )

    # Threads -----------------------------------------------------------------------------------

    def _guarded(self, work: Any) -> None:
        """A thread that dies takes the node with it: half a robot would look alive."""
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
            # Both clocks are read here together; the state belongs to the tick's own instant.
            stamp_ns = self.now_ns() + round((tick.at_s - self.steady_s()) * 1e9)
            self._snapshot = _Snapshot(
                stamp_ns=stamp_ns,
                qpos=robot.plant.data.qpos.copy(),
                mocap=robot.plant.data.mocap_pos.copy(),
            )
            frozen = self._publish_joints(tick, stamp_ns, frozen)
            count += 1
            if count % every == 0:
                self._target.publish(_pose(stamp_ns, tick.target))
                self._end_effector.publish(_pose(stamp_ns, tick.end_effector))

    def _publish_joints(
        self, tick: Tick, stamp_ns: int, frozen: JointState | None
    ) -> JointState | None:
        """Publish what the fault in force lets through; gives back what a freeze repeats."""
        fault = self.params.joint_states_fault
        if fault == "loss":
            return None
        if fault == "freeze" and frozen is not None:
            self._joint_states.publish(frozen)
            return frozen
        message = JointState(name=list(JOINT_NAMES))
        _stamp(message.header, stamp_ns)
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
                # A late picture is skipped, not caught up with.
                due_s = max(due_s + period_s, self.steady_s() - period_s)
                snapshot, fault = self._snapshot, self.params.camera_fault
                if snapshot is None or fault == "loss":
                    continue
                if last is not None and fault == "freeze_restamped":
                    _stamp(last.header, snapshot.stamp_ns)
                elif last is None or fault != "freeze":
                    data.qpos[:] = snapshot.qpos
                    data.mocap_pos[:] = snapshot.mocap
                    mujoco.mj_kinematics(model, data)
                    mujoco.mj_camlight(model, data)
                    last = _image(camera.render(data), snapshot.stamp_ns)
                self._images.publish(last)
                self._camera_info.publish(_camera_info(model, last))


def _raise_priority() -> bool:
    """A real robot has a computer of its own; ask for this thread to go before a loaded engine."""
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), -10)
    except PermissionError:
        return False
    return True


def _fresh_record(directory: Path) -> Path:
    """Where to write; an earlier life's record moves aside, so that a restart loses nothing."""
    path = directory / "arm.rows"
    if path.exists():
        count = sum(1 for _ in directory.glob("arm.*.rows"))
        path.rename(directory / f"arm.{count + 1}.rows")
    return path


def _stamp(header: Any, stamp_ns: int) -> None:
    header.stamp.sec, header.stamp.nanosec = divmod(stamp_ns, 1_000_000_000)


def _pose(stamp_ns: int, position: Array) -> PoseStamped:
    message = PoseStamped()
    message.header.frame_id = "base_link"
    _stamp(message.header, stamp_ns)
    point = message.pose.position
    point.x, point.y, point.z = (float(value) for value in position)
    message.pose.orientation.w = 1.0
    return message


def _image(pixels: Array, stamp_ns: int) -> Image:
    height, width = pixels.shape[:2]
    message = Image(height=height, width=width, encoding="rgb8", step=3 * width)
    message.header.frame_id = f"{CAMERA_NAME}_optical"
    _stamp(message.header, stamp_ns)
    # An array.array goes in whole; bytes would be checked one by one.
    message.data = array.array("B", pixels.tobytes())
    return message


def _camera_info(model: mujoco.MjModel, image: Image) -> CameraInfo:
    """A pinhole without distortion, from the camera's vertical field of view."""
    fovy_rad = math.radians(float(model.camera(CAMERA_NAME).fovy[0]))
    focal = 0.5 * image.height / math.tan(0.5 * fovy_rad)
    cx, cy = 0.5 * image.width, 0.5 * image.height
    message = CameraInfo(
        height=image.height, width=image.width, distortion_model="plumb_bob", d=[0.0] * 5
    )
    message.header = image.header
    message.k = np.array([focal, 0.0, cx, 0.0, focal, cy, 0.0, 0.0, 1.0])
    message.r = np.eye(3).ravel()
    message.p = np.array([focal, 0.0, cx, 0.0, 0.0, focal, cy, 0.0, 0.0, 0.0, 1.0, 0.0])
    return message


if __name__ == "__main__":
    sys.exit(main(RobotSimNode))
