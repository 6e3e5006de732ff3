"""No node of ours gives an attribute of rclpy's own another meaning.

A node that kept its timers in `self._timers` took those of rclpy away: the executor saw only the
new ones, and neither /diagnostics nor the watch on the clock ran. Read from the syntax trees.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import rclpy

from physis_ros.stack.description import NODE_MODULES

ROOT = Path(__file__).resolve().parents[4]
NODES = [
    *(ROOT / Path(*module.split(".")).with_suffix(".py") for module in NODE_MODULES.values()),
    ROOT / "physis_ros" / "node" / "base.py",
]
RCLPY = Path(rclpy.__file__).parent


def own_attributes(path: Path) -> set[str]:
    """What a file assigns to `self`, private names of a class (`self.__x`) left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
        and not node.attr.startswith("__")
    }


THEIRS = own_attributes(RCLPY / "node.py") | own_attributes(RCLPY / "lifecycle" / "node.py")


def test_theirs_are_found() -> None:
    assert {"_timers", "_services", "_subscriptions", "_publishers"} <= THEIRS


@pytest.mark.parametrize("path", NODES, ids=str)
def test_no_attribute_of_rclpy_is_taken(path: Path) -> None:
    assert not own_attributes(path) & THEIRS
