"""A package that is missing is named in one line, with the command that installs it."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from physis_core.types import UserError
from physis_ros.cli import main as physis
from physis_ros.node.packages import BUILD_WITH_LAB, command_for, missing_package
from physis_ros.stack.description import NodeSpec
from physis_ros.stack.resolution import check_installed


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
