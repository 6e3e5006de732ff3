"""What package.xml names is enough for a robot's nodes; what is missing is named in one line."""

from __future__ import annotations

import importlib.util
import os
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from physis_core.types import UserError
from physis_ros.cli import main as physis
from physis_ros.node.packages import BUILD_WITH_LAB, command_for, missing_package
from physis_ros.stack.description import NodeSpec
from physis_ros.stack.resolution import check_installed

BARE = Path(__file__).with_name("bare_python.py")
LIMIT_S = 60.0


def bare(module: str, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST"}
    return subprocess.Popen(
        [sys.executable, str(BARE), module, "--ros-args", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.parametrize(
    "module",
    [
        "physis_ros.observation.observation_node",
        "physis_ros.timeline.buffer_node",
        "physis_ros.safety.safety_node",
    ],
)
def test_a_node_of_the_robot_works_with_what_package_xml_names(module: str) -> None:
    name = module.rpartition(".")[2]
    parameters = Path(__file__).parents[4] / "config" / f"{name}.param.yaml"
    with bare(module, "--params-file", str(parameters), "--log-level", "debug") as node:
        assert node.stdout is not None
        # rcl logs every transition: active is the last one of the start.
        said, deadline_s = "", time.monotonic() + LIMIT_S
        while "active" not in said and node.poll() is None and time.monotonic() < deadline_s:
            if select.select([node.stdout], [], [], 0.2)[0]:
                said += os.read(node.stdout.fileno(), 1 << 16).decode()
        works = node.poll() is None
        node.terminate()
        node.wait(LIMIT_S)
        assert works, said[-3000:]
        assert node.returncode == 0, said[-3000:]


def test_a_node_names_the_package_that_is_missing() -> None:
    with bare("physis_ros.engine.engine_node") as node:
        said, _ = node.communicate(timeout=LIMIT_S)
    assert node.returncode == 2
    assert len(said.strip().splitlines()) == 1, said
    assert said.startswith("engine_node: the Python package "), said
    assert "is not installed: " in said


def test_commands() -> None:
    assert command_for("numpy", prefix="/usr", base="/usr") == "sudo apt install python3-numpy"
    assert command_for("torch", prefix="/v", base="/usr") == "/v/bin/python -m pip install torch"
    assert "venv --system-site-packages" in command_for("mujoco", prefix="/usr", base="/usr")
    assert command_for("physis_lab") == BUILD_WITH_LAB
    assert "setup.bash" in command_for("rclpy", prefix="/usr", base="/usr")


def test_a_missing_module_of_ours_is_a_fault() -> None:
    assert missing_package(ModuleNotFoundError("x", name="physis_core.absent")) is None


def test_a_verb_names_the_package_that_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    monkeypatch.delitem(sys.modules, "physis_ros.cli.simulate", raising=False)
    assert physis.main(["simulate", "nothing.yaml"]) == 2
    said = capsys.readouterr().err
    assert "the Python package 'rich' is not installed: " in said
    assert len(said.strip().splitlines()) == 1


def test_a_node_of_a_package_that_was_not_built_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "physis_lab" else found(name)
    )
    with pytest.raises(UserError, match="robot_sim_node.*-DPHYSIS_LAB=ON.*name your robot"):
        check_installed(NodeSpec(name="robot_sim_node", part="simulated_robot"))
    check_installed(NodeSpec(name="buffer_node"))
