"""What the engine's nodes import before their workers are started."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("node", ["physis_ros.engine.engine_node", "physis_ros.world.world_node"])
def test_a_node_of_the_engine_starts_its_workers_before_it_imports_torch(node):
    """Else workers begin their own import of torch, which takes seconds, only after this one."""
    code = f"import {node}, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
