"""`physis up` and the stock `ros2 launch` on the same choices: one order, the same refusals.

`ros2 launch` is tried where it is installed.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from own_domain import free_domain
from rcl_interfaces.srv import GetParameters

from physis_ros.node.interfaces import SAFETY_STATUS, Service, in_namespace

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]
PATIENCE_S = 120.0
LAUNCHERS = ("physis up", "ros2 launch")
HAS_LAUNCH = importlib.util.find_spec("ros2launch") is not None


def command(launcher: str, stack: str, choices: dict[str, str]) -> list[str]:
    if launcher == "physis up":
        words = [word for name, value in choices.items() for word in _option(name, value)]
        return [sys.executable, "-m", "physis_ros.cli.main", "up", stack, *words]
    if not HAS_LAUNCH:
        pytest.skip("ros2launch comes with a ROS distribution")
    file = ROOT / "launch" / f"{stack}.launch.py"
    starter = "import sys; from ros2cli.cli import main; sys.exit(main())"
    words = [f"{name}:={value}" for name, value in choices.items()]
    return [sys.executable, "-c", starter, "launch", str(file), *words]


def _option(name: str, value: str) -> list[str]:
    option = f"--{name.replace('_', '-')}"
    if name in ("use_sim_time", "print_parameters"):
        return [option]
    if name in ("set", "remap"):
        return [word for part in value.split() for word in (option, part)]
    return [option, value]


class Launched:
    """A launcher that runs, and its output."""

    def __init__(
        self, launcher: str, stack: str, choices: dict[str, str], domain: int, folder: Path
    ) -> None:
        self.log = folder / f"{launcher.replace(' ', '_')}.log"
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                command(launcher, stack, choices),
                cwd=ROOT,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={
                    **os.environ,
                    "ROS_DOMAIN_ID": str(domain),
                    "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST",
                    "ROS_LOG_DIR": str(folder),
                },
            )
        self.below: list[psutil.Process] = []

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def wait(self) -> int:
        return self.process.wait(timeout=PATIENCE_S)

    def node(self, name: str) -> psutil.Process:
        """The process of a node, by its name in its arguments."""
        end_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < end_s:
            self.below = psutil.Process(self.process.pid).children(recursive=True)
            for child in self.below:
                if f"__node:={name}" in child.cmdline():
                    return child
            time.sleep(0.1)
        pytest.fail(f"{name} is not there\n{self.text()}")

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(timeout=PATIENCE_S)
        _, alive = psutil.wait_procs(self.below, timeout=PATIENCE_S)
        for process in alive:
            process.kill()
        assert not alive, self.text()


@pytest.fixture(params=LAUNCHERS)
def launcher(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        (
            {"set": "safety_node.enabled_at_start=0"},
            "safety_node.enabled_at_start: 0: must be bool",
        ),
        ({"set": "buffer_node.servo_hz=abc"}, "buffer_node.servo_hz: 'abc': must be float"),
        ({"set": "buffer_node.servo_herz=1"}, "did you mean 'servo_hz'"),
        ({"set": "bufer_node.servo_hz=1"}, "did you mean 'buffer_node'"),
        ({"robot": "panda"}, "joint_names: 'shoulder_pan_joint, "),
        ({"robot": "ur55"}, "robot: 'ur55': "),
        ({"params_file": "LIST"}, "must map node names to ros__parameters"),
        ({"params_file": "EMPTY"}, "must map node names to ros__parameters"),
        ({"params_file": "TABS"}, "line 2: "),
        ({"params_file": "WRONG"}, "safety_node.rate_hz: 'fast': must be float"),
        ({"params_file": "/"}, "Is a directory"),
        ({"engine": "far"}, "engine: 'far': "),
        ({"model": "no_such_model"}, "model: 'no_such_model': "),
        ({"namespace": "9"}, "namespace: '9': "),
    ],
    ids=str,
)
def test_bad_input_is_one_line_and_exit_2_before_anything_starts(
    launcher: str, choices: dict[str, str], said: str, tmp_path: Path
) -> None:
    files = {
        "LIST": "[1, 2]",
        "EMPTY": "",
        "TABS": "a:\n\tb: 1",
        "WRONG": "safety_node: {ros__parameters: {rate_hz: fast}}",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    choices = {
        name: str(tmp_path / value) if value in files else value for name, value in choices.items()
    }
    running = Launched(launcher, "wam", choices, free_domain(), tmp_path)
    assert running.wait() == 2, running.text()
    lines = [line for line in running.text().splitlines() if "[INFO] [launch]" not in line]
    assert len(lines) == 1, running.text()
    assert said in lines[0]


def test_an_argument_that_no_launch_file_declares_is_refused(tmp_path: Path) -> None:
    for argument in ("robto", "stack"):
        running = Launched("ros2 launch", "wam", {argument: "ur5e"}, free_domain(), tmp_path)
        assert running.wait() == 2, running.text()
        assert f"{argument}: 'ur5e': is no argument of this launch file" in running.text()


SHARED = """
/**: {ros__parameters: {use_sim_time: false}}
safety_node: {ros__parameters: {rate_hz: 100.0, late_s: 0.3, status_hz: 10.0}}
amcl: {ros__parameters: {alpha1: 0.2}}
"""


@pytest.fixture
def running(launcher: str, ros: Any, tmp_path: Path) -> Iterator[Launched]:
    params = tmp_path / "shared.yaml"
    params.write_text(SHARED)
    choices = {
        "namespace": "left",
        "params_file": str(params),
        "set": "safety_node.late_s=0.1",
        "remap": "safety_status:=state_of_safety",
    }
    launched = Launched(launcher, "robot", choices, ros.domain, tmp_path)
    try:
        yield launched
    finally:
        launched.close()


def test_the_node_has_the_value_of_the_last_layer_and_death_ends_the_launcher_with_1(
    running: Launched, ros: Any
) -> None:
    topic = in_namespace(SAFETY_STATUS, "left")
    heard = ros.listen(type(topic)(name="/left/state_of_safety", type=topic.type, qos=topic.qos))
    ros.wait(lambda: heard or running.process.poll() is not None, "safety_node", PATIENCE_S)
    assert running.process.poll() is None, running.text()
    service = Service(name="/left/safety_node/get_parameters", type=GetParameters)
    names = ["rate_hz", "late_s", "status_hz", "command_age_s"]
    answer = ros.call(service, GetParameters.Request(names=names))
    assert [value.double_value for value in answer.values] == [100.0, 0.1, 10.0, 0.5]
    assert "for no node of this stack: amcl" in running.text()
    running.node("safety_node").kill()
    assert running.wait() == 1, running.text()
    assert "safety_node was ended by SIGKILL" in running.text()
    assert "Traceback" not in running.text()
