from pathlib import Path

import pytest

from physis_lab.bench.robot.start import StartTimes, figures_of
from physis_ros.node import startup

BEGINS = "physis up wam: engine_node, safety_node (Ctrl-C stops all)"
LINE = (
    "safety_node | [INFO] [safety_node]: started in 2.10 s: imports 1.30, node 0.20, configure 0.60"
)
FIRST = "safety_node | [INFO] [safety_node]: first trajectory to the robot"


def test_the_parts_of_a_start_are_read_from_the_commands_output() -> None:
    times = StartTimes()
    times.take(BEGINS, 0.5)
    assert times.names == ("engine_node", "safety_node")
    times.take(LINE, 2.2)
    times.take(FIRST, 5.0)
    assert not times.complete, "a node has not said that it is ready"
    times.take(LINE.replace("safety_node", "engine_node").replace("2.10", "4.00"), 5.1)
    times.take("engine_node | something else", 5.5)
    assert times.complete
    assert times.nodes["safety_node"] == {
        "all": 2.1,
        "imports": 1.3,
        "node": 0.2,
        "configure": 0.6,
    }
    figures = figures_of([times, times])
    assert figures["start.first_trajectory_s"].value == 5.0
    assert figures["start.command_s"].value == 0.5
    assert figures["start.engine_node_s"].value == 4.0


def test_the_age_of_a_process_grows_with_time_and_begins_at_its_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    uptime_s = float(Path("/proc/uptime").read_text().split()[0])
    assert 0.0 < startup.process_age_s() <= uptime_s + 1.0
    now_s = startup.time.clock_gettime(startup.time.CLOCK_BOOTTIME)
    before_s = startup.process_age_s()
    monkeypatch.setattr(startup.time, "clock_gettime", lambda _clock: now_s + 100.0)
    assert startup.process_age_s() == pytest.approx(before_s + 100.0, abs=5.0)
