"""Write docs/reference/parameters.md from the nodes' own declarations: `.venv/bin/python
scripts/parameters_page.py`.

A test compares the page with what this makes, so that the page never tells what a node does not
know.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from physis_ros.node.parameters import REQUIRED, Declaration, declarations
from physis_ros.stack.description import NODE_MODULES

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "parameters.md"
NODES = {
    "observation_node": "ObservationParameters",
    "engine_node": "EngineParameters",
    "world_node": "WorldParameters",
    "buffer_node": "BufferParameters",
    "safety_node": "SafetyParameters",
    "robot_sim_node": "RobotSimParameters",
    "recorder_node": "RecorderParameters",
    "viewer_node": "ViewerParameters",
}
HEAD = """# Parameters

Made by `scripts/parameters_page.py` from the nodes' declarations. Values that differ from these
defaults stand in `config/*.param.yaml`. *run time* marks those that `ros2 param set` may change
while the node works; the others are read at start. An unknown name or a value out of range is
refused with one line, and nothing changes.
"""


def page() -> str:
    parts = [HEAD]
    for node, class_name in NODES.items():
        module = importlib.import_module(NODE_MODULES[node])
        parts.append(
            f"\n## {node}\n\n| name | default | unit | allowed | meaning |\n|---|---|---|---|---|"
        )
        parts.extend(_row(d) for d in declarations(getattr(module, class_name)))
    return "\n".join(parts) + "\n"


def _row(declaration: Declaration) -> str:
    meta = declaration.meta
    allowed = ", ".join(meta.choices) or _range(meta.minimum, meta.maximum)
    when = " *(run time)*" if meta.runtime else ""
    cells = (
        f"`{declaration.name}`",
        _default(declaration.default),
        meta.unit,
        allowed,
        f"{meta.description}{when}".replace("|", "\\|"),
    )
    return "| " + " | ".join(cells) + " |"


def _default(value: Any) -> str:
    if value is REQUIRED:
        return "required"
    if isinstance(value, tuple):
        return "`[" + ", ".join(map(str, value)) + "]`"
    return f"`{value}`" if value != "" else ""


def _range(low: float | None, high: float | None) -> str:
    if low is None and high is None:
        return ""
    if high is None:
        return f">= {low:g}"
    if low is None:
        return f"<= {high:g}"
    return f"{low:g} .. {high:g}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
