"""`physis doctor` on this machine, which must be healthy for the other tests to mean anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from own_domain import free_domain
from sensor_msgs.msg import JointState

from physis_ros.node.interfaces import JOINT_STATES, JOINT_TRAJECTORY

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]


def doctor(tmp_path: Path, **environment: str) -> tuple[int, str, dict[str, dict[str, object]]]:
    out = tmp_path / "doctor.json"
    done = subprocess.run(
        [sys.executable, "-m", "physis_ros.cli.main", "doctor", "--json", str(out)],
        cwd=ROOT,
        env={**os.environ, "ROS_DOMAIN_ID": str(free_domain()), **environment},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert "Traceback" not in done.stdout + done.stderr
    findings = json.loads(out.read_text())["findings"]
    return done.returncode, done.stdout, {item["name"]: item for item in findings}


def test_this_machine_is_ready(tmp_path: Path) -> None:
    code, text, findings = doctor(tmp_path)
    assert code == 0, text
    assert "this machine is ready" in text
    for name in ("packages", "messages", "dds", "rendering", "torch"):
        assert findings[name]["ok"], text


def test_a_wrong_domain_is_said_and_the_rest_is_still_looked_at(tmp_path: Path) -> None:
    code, text, findings = doctor(tmp_path, ROS_DOMAIN_ID="999")
    assert code == 1
    assert not findings["ros domain"]["ok"]
    assert findings["messages"]["ok"], text
    assert text.splitlines()[-1] == "missing or wrong: ros domain"


def test_a_second_commander_and_a_second_publisher_of_a_joint_are_named(
    ros: Any, tmp_path: Path
) -> None:
    sliders = ros.another_node("sliders")
    for node, position in ((ros.node, 1.5), (sliders, 0.0)):
        node.create_publisher(JOINT_TRAJECTORY.type, JOINT_TRAJECTORY.name, JOINT_TRAJECTORY.qos)
        states = node.create_publisher(JOINT_STATES.type, JOINT_STATES.name, JOINT_STATES.qos)
        state = JointState(name=["a"], position=[position])
        ros.every(0.1, lambda states=states, state=state: states.publish(state))
    looking = subprocess.Popen(
        [sys.executable, "-m", "physis_ros.cli.main", "doctor", "--only", "robot"],
        cwd=ROOT,
        env={**os.environ, "ROS_DOMAIN_ID": str(ros.domain)},
        stdout=subprocess.PIPE,
        text=True,
    )
    ros.wait(lambda: looking.poll() is not None, "the doctor")
    assert looking.stdout is not None
    text = looking.stdout.read()
    assert looking.returncode == 1, text
    assert "/joint_trajectory_controller/joint_trajectory has 2 publishers: /bench, /slid" in text
    assert "/joint_states: /bench and /sliders both publish a; a is 1.500 and 0.000" in text
