"""What package.xml names is enough for the nodes of a robot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from physis_ros.node.interfaces import DIAGNOSTICS
from physis_ros.stack.description import NODE_MODULES

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
BARE = Path(__file__).with_name("bare_python.py")


@pytest.mark.parametrize("name", ["observation_node", "buffer_node", "safety_node"])
def test_a_node_of_the_robot_becomes_active(ros: Any, name: str) -> None:
    heard = ros.listen(DIAGNOSTICS)
    parameters = str(ROOT / "config" / f"{name}.param.yaml")
    node = ros.start_file(BARE, NODE_MODULES[name], "--ros-args", "--params-file", parameters)

    def states() -> list[str]:
        """The states that the node has published of itself."""
        return [
            value.value
            for array in heard
            for status in array.status
            if status.name == f"/{name}: node"
            for value in status.values
            if value.key == "state"
        ]

    ros.wait(lambda: "active" in states() or node.poll() is not None, f"{name} to be active")
    assert "active" in states(), ros.log(node)
    assert ros.stop(node) == 0


@pytest.mark.parametrize("name", ["engine_node", "policy_node"])
def test_a_node_names_the_package_that_is_missing(ros: Any, name: str) -> None:
    node = ros.start_file(BARE, NODE_MODULES[name], "--ros-args")
    ros.wait(lambda: node.poll() is not None, f"{name} to end")
    said = ros.log(node)
    assert node.returncode == 2, said
    assert len(said.strip().splitlines()) == 1, said
    assert said.startswith(f"{name}: the Python package "), said
    assert "is not installed: " in said
