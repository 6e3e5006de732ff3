"""Runs a node's module as the program, where only what package.xml names can be imported.

python bare_python.py MODULE [arguments of the node]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]
MODULES = {"python3-numpy": "numpy", "python3-opencv": "cv2", "python3-yaml": "yaml"}
"""rosdep key -> the module that it brings."""

BROUGHT = {
    # By the wheels that stand in for a distribution's rclpy and message packages.
    "ros_wheels_bootstrapper", "rpyutils", "rosidl_parser", "rosidl_generator_py", "lark",
    "ament_index_python", "rcl_interfaces", "service_msgs", "action_msgs",
    "unique_identifier_msgs", "type_description_interfaces", "typing_extensions",
    "rosidl_pycommon", "rosidl_adapter", "rosidl_cli", "em", "numpy", "cython_runtime",
}  # fmt: skip


def named() -> set[str]:
    """Top-level modules of the dependencies in package.xml."""
    package = ElementTree.parse(ROOT / "package.xml").getroot()
    keys = {e.text for tag in ("depend", "exec_depend") for e in package.findall(tag) if e.text}
    return {MODULES.get(key, key) for key in keys}


class OnlyNamed(MetaPathFinder):
    def __init__(self) -> None:
        self._allowed = named() | BROUGHT | {"physis_core", "physis_ros"}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        top = fullname.partition(".")[0]
        if top in self._allowed or top in sys.stdlib_module_names or top.startswith("_"):
            return None
        raise ModuleNotFoundError(f"No module named {top!r}", name=top)


if __name__ == "__main__":
    sys.meta_path.insert(0, OnlyNamed())
    del sys.argv[0]
    from physis_ros.node.startup import run_node

    run_node(sys.argv[0])
