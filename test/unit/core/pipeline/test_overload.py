from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from physis_core.pipeline.overload import OverloadConfig, OverloadDetector
from physis_core.types import UserError


def feed(detector: OverloadDetector, queues: list[int], start_s: float, seconds: float) -> None:
    steps = round(seconds / 0.1)
    for i in range(steps):
        detector.observe(start_s + i * 0.1, queues)


def test_a_growing_difference_is_found_where_it_grows() -> None:
    detector = OverloadDetector()
    for i in range(200):
        detector.observe(i * 0.1, [1, 1 + i // 8, 0, 0])
    state = detector.state
    assert (state.level, state.where, state.admit) == ("overloaded", 1, False)
    assert state.low_priority_max_batch == 1


def test_levels_rise_in_order_and_clear_with_hysteresis() -> None:
    detector = OverloadDetector(OverloadConfig(hold_s=1.0, clear_s=3.0))
    feed(detector, [0, 0], 0.0, 2.0)
    assert detector.state.level == "ok"
    feed(detector, [3, 0], 2.0, 4.0)
    assert detector.state.level == "rising"
    assert detector.state.low_priority_max_batch is None
    feed(detector, [9, 0], 6.0, 4.0)
    assert detector.state.level == "overloaded"
    # Still above half of the lower threshold: no clearing, however long.
    feed(detector, [2, 0], 10.0, 30.0)
    assert detector.state.level == "overloaded"
    feed(detector, [0, 0], 40.0, 2.0)
    assert detector.state.level == "overloaded"
    feed(detector, [0, 0], 42.0, 5.0)
    assert detector.state.level == "ok"
    assert detector.state.where == -1


def test_one_burst_is_no_overload() -> None:
    detector = OverloadDetector()
    feed(detector, [0, 0], 0.0, 1.0)
    detector.observe(1.0, [50, 0])
    feed(detector, [0, 0], 1.1, 10.0)
    assert detector.state.level == "ok"


def test_chunks_that_found_no_credit_count_as_queued_at_the_entry() -> None:
    detector = OverloadDetector()
    for i in range(100):
        detector.observe(i * 0.1, [0, 0], dropped_for_credit=3)
    assert (detector.state.level, detector.state.where) == ("rising", 0)


def test_equal_long_queues_point_at_the_last() -> None:
    detector = OverloadDetector()
    feed(detector, [8, 8, 8], 0.0, 10.0)
    assert detector.state.where == 2


def test_bad_thresholds_are_refused() -> None:
    with pytest.raises(UserError):
        OverloadConfig(rising_tasks=5.0, overloaded_tasks=4.0)
    with pytest.raises(UserError):
        OverloadDetector().observe(0.0, [])


@given(
    st.lists(
        st.tuples(st.floats(0.0, 1.0), st.lists(st.integers(0, 30), min_size=3, max_size=3)),
        min_size=1,
        max_size=60,
    )
)
def test_small_queues_never_alarm_and_advice_follows_the_level(
    steps: list[tuple[float, list[int]]],
) -> None:
    calm, any_ = OverloadDetector(), OverloadDetector()
    now_s = 0.0
    for dt_s, queues in steps:
        now_s += dt_s
        assert calm.observe(now_s, [q % 2 for q in queues]).level == "ok"
        state = any_.observe(now_s, queues)
        assert state.admit == (state.level == "ok")
        assert (state.where == -1) == (state.level == "ok")
