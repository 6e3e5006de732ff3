import subprocess
import sys
from pathlib import Path

import pytest

from physis_ros.node.realtime import ask_realtime

ASK_AND_LEAVE = """
import os
from physis_ros.node.realtime import ask_realtime, leave_realtime
print(ask_realtime(1) or "granted")
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
    assert "was not granted" in ask_realtime(1000)
