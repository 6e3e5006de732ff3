"""A thread of safety_node that fails ends the process: exit code 1, and the reason on the log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

LIMIT_S = 150.0


@pytest.mark.parametrize("thread", ["loop", "sender", "look-ahead"])
def test_a_failing_thread_ends_the_node(ros: Any, thread: str) -> None:
    node = ros.start_file(Path(__file__).with_name("failing_safety_node.py"), thread)
    assert node.wait(LIMIT_S) == 1
    assert f"safety {thread}: RuntimeError: a fault of this test" in ros.log(node)
