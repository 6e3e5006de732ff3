from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from physis_core.types import UserError
from physis_lab.tasks.ball import BOX_HIGH_M, BOX_LOW_M, FASTEST_M_S, HOVER_M, Follow, Reach
from physis_lab.tasks.task import make_task

seeds = st.integers(0, 2**31 - 1)


@settings(max_examples=25, deadline=None)
@given(seeds, st.sampled_from(["follow", "follow_jumps"]))
def test_ball_stays_in_its_box(seed: int, name: str) -> None:
    path = make_task(name, seed)
    positions = np.array([path.target(t) for t in np.linspace(0.0, 100.0, 150)])
    assert np.all(positions >= np.array(BOX_LOW_M) - 1e-9)
    assert np.all(positions <= np.array(BOX_HIGH_M) + 1e-9)


@settings(max_examples=25, deadline=None)
@given(seeds, st.floats(0.0, FASTEST_M_S))
def test_peak_speed_is_kept(seed: int, peak: float) -> None:
    times = np.arange(0.0, 60.0, 0.02)
    path = Follow(seed=seed, peak_speed_m_s=peak).targets(times)
    speed = np.linalg.norm(np.diff(path, axis=0), axis=1) / 0.02
    assert speed.max() <= peak * 1.01 + 1e-9


def test_pure_in_seed_and_time() -> None:
    a, b = make_task("follow", 7), make_task("follow", 7)
    a.target(50.0)
    assert a.target(3.0) == pytest.approx(b.target(3.0), abs=0.0)
    assert not np.allclose(a.target(3.0), make_task("follow", 8).target(3.0))
    assert a.goal(3.0) - a.target(3.0) == pytest.approx([0.0, 0.0, HOVER_M])


def test_jumps_are_at_the_period_and_nowhere_else() -> None:
    times = np.arange(0.0, 20.0, 0.01)
    path = Follow(seed=3, jump_period_s=4.0).targets(times)
    leaps = np.flatnonzero(np.linalg.norm(np.diff(path, axis=0), axis=1) > 0.01)
    assert np.floor(times[leaps + 1] / 4.0).tolist() == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    "bad", [{"peak_speed_m_s": -1.0}, {"peak_speed_m_s": 9.0}, {"jump_period_s": 0.0}]
)
def test_bad_values_are_named(bad: dict[str, float]) -> None:
    with pytest.raises(UserError, match=next(iter(bad))):
        Follow(seed=0, **bad)


def test_unknown_task() -> None:
    with pytest.raises(UserError, match="task: 'dance'"):
        make_task("dance", 0)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000), st.floats(1.0, 3.0), st.floats(0.0, 20.0))
def test_a_stretched_ball_stays_in_its_box_and_stands_as_long_as_asked(
    seed: int, stretch: float, stand_s: float
) -> None:
    task = Follow(seed=seed, stretch=stretch, stand_s=stand_s)
    at = task.targets(np.linspace(0.0, stand_s + 30.0, 200))
    assert (at >= np.array(BOX_LOW_M) - 1e-12).all() and (at <= np.array(BOX_HIGH_M) + 1e-12).all()
    assert (task.targets(np.linspace(0.0, stand_s, 20)) == at[0]).all()
    later = Follow(seed=seed, stretch=stretch)
    np.testing.assert_allclose(task.target(stand_s + 3.0), later.target(3.0), atol=1e-9)


@pytest.mark.parametrize(
    ("field", "value"), [("stretch", 0.5), ("stretch", 3.5), ("stand_s", -1.0)]
)
def test_a_wrong_stretch_or_stand_is_named(field: str, value: float) -> None:
    with pytest.raises(UserError, match=field):
        Follow(seed=1, **{field: value})


@settings(max_examples=25, deadline=None)
@given(seeds, st.floats(0.0, 100.0))
def test_the_ball_to_reach_stands_and_is_touched_on_its_top(seed: int, t_s: float) -> None:
    task = make_task("reach", seed)
    assert np.array_equal(task.target(t_s), task.target(0.0))
    assert np.all(task.target(0.0) >= BOX_LOW_M) and np.all(task.target(0.0) <= BOX_HIGH_M)
    assert task.goal(t_s) - task.target(t_s) == pytest.approx([0.0, 0.0, 0.079])


def test_a_ball_that_is_set_anew_moves_at_its_period_and_nowhere_else() -> None:
    task = Reach(seed=5, every_s=2.0)
    places = np.stack([task.target(t) for t in np.arange(0.0, 8.0, 0.1)])
    assert np.flatnonzero(np.any(np.diff(places, axis=0) != 0.0, axis=1)).tolist() == [19, 39, 59]
    with pytest.raises(UserError, match="every_s"):
        Reach(seed=5, every_s=0.0)
