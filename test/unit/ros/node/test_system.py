"""Real-time priority, and memory of large blocks that stays in the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from physis_ros.node.system import request_realtime

ASK_AND_LEAVE = """
import os
from physis_ros.node.system import request_realtime, leave_realtime
print(request_realtime(1) or "granted")
leave_realtime()
print(os.sched_getscheduler(0) == os.SCHED_OTHER)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="no such scheduling here")
def test_a_refusal_is_one_line_and_normal_scheduling_comes_back():
    done = subprocess.run(
        [sys.executable, "-c", ASK_AND_LEAVE],
        cwd=Path(__file__).parents[4],
        capture_output=True,
        text=True,
        check=True,
    )
    line, normal = done.stdout.strip().split("\n")
    assert line == "granted" or line.startswith("SCHED_FIFO 1 was not granted")
    assert normal == "True"


def test_a_priority_that_cannot_be_is_said():
    assert "was not granted" in request_realtime(1000)


CODE = """
import resource, sys
from physis_ros.node.system import keep_image_memory
if sys.argv[1] == "keep":
    assert keep_image_memory()
blocks = [bytearray(1_000_000) for _ in range(4)]
del blocks
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(100):
    blocks = [bytearray(1_000_000) for _ in range(4)]
    del blocks
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    command = [sys.executable, "-c", CODE, how]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_blocks_of_an_images_size_are_used_again() -> None:
    assert faults("keep") < 100
    assert faults("as it is") > 1000
