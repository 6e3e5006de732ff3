"""Import rules that the contracts in pyproject.toml cannot express.

import-linter reads sources: it does not see our generated messages (`physis_ros.msg`), nor what the
`__init__` of a parent package brings in.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONTRACT = "ros-in-nodes-only"


def modules_with_ros() -> set[str]:
    """The modules that the contract lets import ROS."""
    tomllib = pytest.importorskip("tomllib", reason="the standard library reads TOML from 3.11 on")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for contract in project["tool"]["importlinter"]["contracts"]:
        if contract["id"] == CONTRACT:
            return {line.partition(" -> ")[0] for line in contract["ignore_imports"]}
    raise AssertionError(f"no contract {CONTRACT}")


def test_our_messages_are_imported_where_ros_may_be() -> None:
    allowed = modules_with_ros()
    found = set()
    for package in ("physis_core", "physis_ros"):
        for path in (ROOT / package).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            if re.search(r"^\s*(from|import) physis_ros\.(msg|srv)\b", text, re.MULTILINE):
                found.add(".".join(path.relative_to(ROOT).with_suffix("").parts))
    assert "physis_ros.safety.safety_node" in allowed
    assert "physis_ros.timeline.buffer_node" in found
    assert found <= allowed


@pytest.mark.parametrize(
    "module",
    [
        "physis_ros.observation.observation_node",
        "physis_ros.timeline.buffer_node",
        "physis_ros.safety.safety_node",
    ],
)
def test_a_node_of_the_robot_loads_neither_torch_nor_mujoco(module: str) -> None:
    code = f"import sys, {module}; print(*sorted({{'torch', 'mujoco'}} & sys.modules.keys()))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []
