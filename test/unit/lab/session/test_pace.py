"""The pace of a demo: what a capacity carries, and what a run did not keep."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from physis_lab.session.pace import DIVISORS, FULL_CORES, Pace, choose_pace, why_too_slow

FULL = Pace(
    divisor=1,
    period_s=0.1,
    camera_hz=30.0,
    controller_hz=125.0,
    servo_hz=100.0,
    capacity_cores=math.nan,
    enough=True,
)


def report(chunk_hz: float, servo_hz: float, sensor_hz: float, late: int = 0) -> dict[str, Any]:
    rates = {"chunk": chunk_hz, "servo": servo_hz, "sensor": sensor_hz}
    return {"rates_hz": rates, "chunks": 100, "deadline_misses": late}


def test_a_machine_that_is_fast_enough_changes_nothing() -> None:
    pace = choose_pace(FULL_CORES, FULL)
    assert pace.divisor == 1 and pace.enough and pace.parameters() == ()
    assert pace.line().startswith("Full pace: a chunk every 100 ms, camera 30 Hz")


def test_half_of_what_is_needed_slows_all_rates_alike() -> None:
    pace = choose_pace(0.7, FULL)
    assert pace.divisor == 2 and pace.enough
    assert {f"{n}.{p}": v for n, p, v in pace.parameters()} == {
        "engine_node.period_s": 0.2,
        "policy_node.period_s": 0.2,
        "robot_sim_node.camera_hz": 15.0,
        "robot_sim_node.controller_hz": 62.5,
        "buffer_node.servo_hz": 50.0,
    }
    assert "Paced to 1/2" in pace.line()


@given(less=st.floats(0.0, 4.0), more=st.floats(0.0, 4.0))
def test_more_capacity_never_means_a_slower_pace(less: float, more: float) -> None:
    less, more = sorted((less, more))
    slow, fast = choose_pace(less, FULL), choose_pace(more, FULL)
    assert fast.divisor <= slow.divisor
    assert slow.divisor in DIVISORS
    assert slow.enough or slow.divisor == DIVISORS[-1]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (report(10.0, 100.0, 30.0), ""),
        (report(8.5, 85.0, 25.0, late=20), ""),
        (report(7.0, 100.0, 30.0), "chunk rate 7.0 Hz of 10.0"),
        (report(10.0, 66.0, 30.0), "servo rate 66.0 Hz of 100.0"),
        (report(10.0, 100.0, 12.0), "camera rate 12.0 Hz of 30.0"),
        (report(math.nan, 100.0, 30.0), "chunk rate nan Hz of 10.0"),
        (report(10.0, 100.0, 30.0, late=40), "40 of 100 chunks late"),
    ],
)
def test_what_was_not_kept_is_named(made: dict[str, Any], said: str) -> None:
    assert why_too_slow(made, FULL) == said
