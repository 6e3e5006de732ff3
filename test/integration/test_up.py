"""`physis up` with the real nodes of the robot's side (no engine: others test that)."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from own_domain import free_domain
from stack_up import PATIENCE_S, Up

from physis_ros.node.interfaces import JOINT_STATES, SAFETY_STATUS, STREAM_STATUS
from physis_ros.stack.reach import RANGE
from physis_ros.stack.transport import PROFILE_VARIABLES

pytestmark = pytest.mark.integration
WAM = ("wam", "--engine", "none")
NODES = ["safety_node", "robot_sim_node", "observation_node", "buffer_node"]


@pytest.fixture
def up(ros: Any, tmp_path: Path) -> Iterator[Up]:
    """A stack that runs: the robot's state, safety and buffer are heard."""
    states, safety, stream = (ros.listen(t) for t in (JOINT_STATES, SAFETY_STATUS, STREAM_STATUS))
    running = Up(ros.domain, tmp_path, *WAM)
    try:
        ros.wait(
            lambda: (states and safety and stream) or running.process.poll() is not None,
            "the stack to run",
            PATIENCE_S,
        )
        assert running.process.poll() is None, running.text()
        assert all(running.node(name) for name in NODES)
        yield running
    finally:
        running.close()


def test_ctrl_c_stops_all_in_order(up: Up) -> None:
    up.process.send_signal(signal.SIGINT)
    assert up.wait() == 0, up.text()
    up.assert_nothing_is_left()
    assert up.outcome()["ok"] is True
    assert up.outcome()["nodes"] == NODES
    assert "Traceback" not in up.text()
    assert all(f"{name:<16} | -- ended with exit code 0" in up.text() for name in NODES), up.text()


def test_the_death_of_the_safety_node_ends_the_stack_with_1(up: Up) -> None:
    node = up.node("safety_node")
    assert node is not None
    node.kill()
    assert up.wait() == 1
    up.assert_nothing_is_left()
    assert up.outcome()["failure"] == "safety_node was ended by SIGKILL"


def test_a_buffer_that_dies_comes_back_and_the_stack_goes_on(up: Up) -> None:
    first = up.node("buffer_node")
    assert first is not None
    first.kill()
    end_s = time.monotonic() + PATIENCE_S
    while True:
        again = up.node("buffer_node")
        if again is not None and again.pid != first.pid:
            break
        assert time.monotonic() < end_s, up.text()
        time.sleep(0.05)
    assert up.process.poll() is None
    up.process.send_signal(signal.SIGTERM)
    assert up.wait() == 0
    up.assert_nothing_is_left()
    assert up.outcome()["respawns"]["buffer_node"] == 1


def test_nothing_is_left_when_physis_up_itself_is_killed(up: Up) -> None:
    up.process.kill()
    up.wait()
    up.assert_nothing_is_left()


def test_a_parameter_that_a_node_refuses_ends_the_stack_with_its_line(tmp_path: Path) -> None:
    up = Up(free_domain(), tmp_path, *WAM, "--set", "observation_node.compressed_cameras=[top]")
    assert up.wait() == 2
    assert "compressed_cameras: 'top'" in up.text()
    assert "Traceback" not in up.text()
    assert up.outcome()["failure"] == "observation_node refused its input (exit code 2)"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--set", "bufer_node.a=1"], "physis up: node: 'bufer_node': "),
        (["--params-file", "no.yaml"], "physis up: params_file: 'no.yaml': "),
        (["--engine", "far"], "physis up: engine: 'far': "),
        (["--robot", "ur55"], "physis up: robot: 'ur55': "),
        (["--namespace", "9"], "physis up: namespace: '9': "),
        (["--set", "buffer_node.servo_herz=1"], "physis up: buffer_node.servo_herz: 1: no such"),
        (["--robot", "panda"], "physis up: joint_names: 'shoulder_pan_joint, "),
        (["--duration-s", "-3"], "physis up: duration_s: -3.0: "),
    ],
)
def test_bad_input_is_one_line_before_anything_starts(
    tmp_path: Path, words: list[str], line: str
) -> None:
    up = Up(free_domain(), tmp_path, *WAM, *words)
    assert up.wait() == 2
    assert up.text().startswith(line)
    assert up.text().count("\n") == 1


def test_a_wrong_domain_is_one_line(tmp_path: Path) -> None:
    up = Up(300, tmp_path, *WAM)
    assert up.wait() == 2
    assert up.text().startswith("physis up: ROS_DOMAIN_ID: '300': ")


def test_a_simulated_stack_stays_on_this_machine_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(RANGE)
    for name in PROFILE_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    up = Up(free_domain(), tmp_path, *WAM)
    try:
        while up.node("safety_node") is None:
            assert up.process.poll() is None, up.text()
            time.sleep(0.05)
        node = up.node("safety_node")
        assert node is not None
        assert node.environ()[RANGE] == "LOCALHOST"
        assert up.text().count(f"{RANGE}=LOCALHOST") == 1
    finally:
        up.close()
