"""Launch a world model from a downloaded folder."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

HERE = Path(__file__)


def generate_launch_description() -> Any:
    shared = runpy.run_path(str(HERE.with_name("stack.launch.py")))
    return shared["stack_description"]("world", HERE.name)
