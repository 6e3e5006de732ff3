"""The simulated robot as a process: it senses, obeys, refuses, plays faults, and records."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rclpy
from own_domain import free_domain
from rcl_interfaces.srv import SetParameters
from rclpy.executors import SingleThreadedExecutor
from rclpy.parameter import Parameter
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from physis_core.observe.rowlog import read_rows
from physis_lab.arm.kinematics import HOME_RAD
from physis_lab.arm.limits import JOINT_NAMES
from physis_lab.session.session import loopback_environment
from physis_ros.node.interfaces import (
    JOINT_STATES,
    JOINT_TRAJECTORY,
    SIM_END_EFFECTOR,
    SIM_TARGET,
    camera_raw,
)

ROOT = Path(__file__).parents[2]
PATIENCE_S = 30.0


class Client:
    """Listens to the robot and speaks to it; keeps each topic's last message and count."""

    def __init__(self, domain: int) -> None:
        self.last: dict[str, Any] = {}
        self.count: dict[str, int] = {}
        self._context = rclpy.Context()
        rclpy.init(context=self._context, domain_id=domain)
        self.node = rclpy.create_node("robot_sim_test", context=self._context)
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self.node)
        for topic in (JOINT_STATES, camera_raw("front"), SIM_TARGET, SIM_END_EFFECTOR):
            self.node.create_subscription(
                topic.type, topic.name, lambda m, n=topic.name: self._keep(n, m), topic.qos
            )
        self._command = self.node.create_publisher(
            JOINT_TRAJECTORY.type, JOINT_TRAJECTORY.name, JOINT_TRAJECTORY.qos
        )
        self._set = self.node.create_client(SetParameters, "robot_sim_node/set_parameters")

    def _keep(self, name: str, message: Any) -> None:
        self.last[name] = message
        self.count[name] = self.count.get(name, 0) + 1

    def wait(self, done: Callable[[], bool], what: str) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while not done():
            assert time.monotonic() < end_s, f"waited in vain for {what}"
            self._executor.spin_once(timeout_sec=0.05)

    def hear(self, name: str, times: int = 3) -> Any:
        """The newest message after `times` more of them."""
        until = self.count.get(name, 0) + times
        self.wait(lambda: self.count.get(name, 0) >= until, name)
        return self.last[name]

    def command(self, positions: np.ndarray, in_s: float, names: tuple[str, ...]) -> None:
        self.wait(lambda: self._command.get_subscription_count() > 0, "the controller")
        whole = int(in_s)
        point = JointTrajectoryPoint(positions=positions.tolist(), velocities=[0.0] * len(names))
        point.time_from_start.sec = whole
        point.time_from_start.nanosec = round((in_s - whole) * 1e9)
        self._command.publish(JointTrajectory(joint_names=list(names), points=[point]))

    def set(self, name: str, value: str) -> bool:
        self.wait(self._set.service_is_ready, "set_parameters")
        request = SetParameters.Request(
            parameters=[Parameter(name, value=value).to_parameter_msg()]
        )
        future = self._set.call_async(request)
        self.wait(future.done, f"{name} to be set")
        return bool(future.result().results[0].successful)

    def close(self) -> None:
        self._executor.shutdown()
        self.node.destroy_node()
        rclpy.shutdown(context=self._context)


def start(domain: int, *parameters: str) -> subprocess.Popen[str]:
    given = [word for p in parameters for word in ("-p", p)]
    return subprocess.Popen(
        [sys.executable, "-m", "physis_lab.robot.robot_sim_node", "--ros-args", *given],
        cwd=ROOT,
        env=loopback_environment(domain),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture
def robot(
    tmp_path: Path,
) -> Iterator[tuple[subprocess.Popen[str], Client]]:
    domain = free_domain()
    process = start(domain, f"record_path:={tmp_path}", "task_seed:=3")
    client = Client(domain)
    try:
        yield process, client
    finally:
        client.close()
        process.kill()
        process.communicate()


def test_senses_obeys_refuses_and_records(
    robot: tuple[subprocess.Popen[str], Client], tmp_path: Path
) -> None:
    process, client = robot
    joints = client.hear(JOINT_STATES.name)
    assert tuple(joints.name) == JOINT_NAMES
    assert list(joints.position) == pytest.approx(HOME_RAD, abs=1e-3)
    image = client.hear(camera_raw("front").name)
    assert (image.width, image.height, image.encoding) == (128, 128, "rgb8")
    assert image.header.stamp.sec > 0
    assert client.hear(SIM_TARGET.name).pose.position.x > 0.3

    goal = np.array(HOME_RAD) + 0.1
    client.command(goal, 0.5, JOINT_NAMES)
    client.wait(
        lambda: np.allclose(client.last[JOINT_STATES.name].position, goal, atol=2e-3), "the move"
    )
    client.command(goal[:5], 0.5, JOINT_NAMES[:5])
    client.hear(JOINT_STATES.name, times=60)

    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=PATIENCE_S) == 0
    table = read_rows(tmp_path / "arm.rows")
    assert table["accepted"][-1] == 1.0
    assert table["refused"][-1] == 1.0
    assert np.count_nonzero(table["limit"]) == 0


def test_faults_are_played_and_end(robot: tuple[subprocess.Popen[str], Client]) -> None:
    _, client = robot
    camera = camera_raw("front").name
    client.hear(camera)
    assert client.set("camera_fault", "freeze")
    client.hear(camera, times=2)
    assert client.hear(camera).header.stamp == client.last[camera].header.stamp
    frozen = client.last[camera].header.stamp
    assert client.hear(camera, times=5).header.stamp == frozen
    assert client.set("camera_fault", "none")
    client.wait(lambda: client.last[camera].header.stamp != frozen, "a fresh picture")

    assert client.set("joint_states_fault", "missing_joint")
    client.wait(lambda: len(client.last[JOINT_STATES.name].name) == 5, "a missing joint")
    assert client.set("joint_states_fault", "nan")
    client.wait(lambda: bool(np.isnan(client.last[JOINT_STATES.name].position).any()), "a NaN")
    assert not client.set("joint_states_fault", "gremlins")


def test_record_survives_a_kill(
    robot: tuple[subprocess.Popen[str], Client], tmp_path: Path
) -> None:
    process, client = robot
    client.hear(JOINT_STATES.name, times=250)
    process.kill()
    process.wait()
    # Written out every 50 rows: less than half a second is lost.
    assert read_rows(tmp_path / "arm.rows").rows >= 150


@pytest.mark.parametrize(
    ("parameter", "word"),
    [("task:=dance", "task"), ("with:=128", "width"), ("controller_hz:=60.0", "controller_hz")],
)
def test_bad_parameters_end_with_one_line(parameter: str, word: str) -> None:
    process = start(free_domain(), parameter)
    said, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2
    assert word in said
    assert "Traceback" not in said
