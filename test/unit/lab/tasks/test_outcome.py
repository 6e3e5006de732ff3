from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from physis_lab.tasks.outcome import Arrives, StaysNear
from physis_lab.tasks.task import judge_episode, make_task

AT_S = 0.01 * np.arange(601)
FAR = np.full(601, 0.2)


def distance(inside: list[tuple[float, float]]) -> np.ndarray:
    """0.2 m everywhere but in these stretches of time, both ends included."""
    out = FAR.copy()
    for begin_s, end_s in inside:
        out[np.abs(AT_S - (begin_s + end_s) / 2) <= (end_s - begin_s) / 2 + 1e-6] = 0.01
    return out


@pytest.mark.parametrize(
    ("inside", "time_s"),
    [
        ([(2.0, 6.0)], 2.0),
        ([(1.0, 1.4), (3.0, 3.5)], 3.0),  # the first is too short
        ([(4.9, 5.6)], 4.9),
        ([(5.1, 6.0)], None),  # begun too late
        ([], None),
    ],
)
def test_an_arrival_has_to_last_and_to_begin_in_time(
    inside: list[tuple[float, float]], time_s: float | None
) -> None:
    found = Arrives(tolerance_m=0.02, within_s=5.0).judge(AT_S, distance(inside), FAR)
    assert found.success == (time_s is not None)
    assert found.time_s == (None if time_s is None else pytest.approx(time_s))


def test_an_arrival_that_is_left_again_is_none_where_it_has_to_stay() -> None:
    rule = Arrives(tolerance_m=0.02, within_s=6.0, to_the_end=True)
    assert not rule.judge(AT_S, distance([(1.0, 3.0)]), FAR).success
    stayed = rule.judge(AT_S, distance([(1.0, 3.0), (4.0, 6.0)]), FAR)
    assert stayed.success and stayed.time_s == pytest.approx(4.0)
    assert stayed.error_m == pytest.approx(0.01)


def test_following_is_judged_by_standing_still_after_settling() -> None:
    error = np.where(AT_S > 2.0, 0.03, 9.0)
    found = StaysNear().judge(AT_S, error, FAR)
    assert found.success and found.error_m == pytest.approx(0.03)
    assert found.time_s == pytest.approx(2.01)
    assert not StaysNear().judge(AT_S, error + 0.01, FAR).success
    still = StaysNear().judge(AT_S, FAR, FAR)
    assert not still.success and still.time_s is None


def test_a_record_that_is_too_short_is_not_judged() -> None:
    with pytest.raises(ValueError, match="shorter than 0.5"):
        Arrives(tolerance_m=0.02, within_s=5.0).judge(AT_S[:10], FAR[:10], FAR[:10])
    with pytest.raises(ValueError, match=r"ends before 2\.0"):
        StaysNear().judge(AT_S[:100], FAR[:100], FAR[:100])


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(["reach", "push"]))
def test_standing_still_far_away_is_no_success_and_being_there_is(seed: int, name: str) -> None:
    task = make_task(name, seed)
    goals = np.stack([task.goal(float(t)) for t in AT_S])
    there = judge_episode(task, AT_S, goals)
    assert there.success and there.time_s == 0.0 and there.error_m == 0.0
    away = judge_episode(task, AT_S, goals + (0.1, 0.0, 0.0))
    assert not away.success and away.error_m == pytest.approx(0.1)
