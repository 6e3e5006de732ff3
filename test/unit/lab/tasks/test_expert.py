from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from physis_lab.arm.kinematics import Kinematics
from physis_lab.arm.scene import build_model
from physis_lab.tasks.expert import APPROACH_SPEED_RAD_S, approach, ideal
from physis_lab.tasks.task import make_task


def test_ideal_keeps_the_end_effector_at_its_goal() -> None:
    kinematics = Kinematics(build_model())
    task = make_task("follow", 5)
    times = np.linspace(0.0, 8.0, 30)
    for t, joints in zip(times, ideal(kinematics, task, times), strict=True):
        assert kinematics.forward(joints).position == pytest.approx(task.goal(float(t)), abs=2e-5)


def test_on_the_path_it_stays_on_the_path() -> None:
    path = np.linspace(0.0, 0.5, 20)[:, None] * np.ones(6)
    assert approach(path[0], path, 0.05) == pytest.approx(path)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-1.5, 1.5), min_size=6, max_size=6))
def test_from_anywhere_it_closes_in_at_a_bounded_speed(start: list[float]) -> None:
    path = np.zeros((120, 6))
    got = approach(np.array(start), path, 0.05)
    assert got[0] == pytest.approx(start)
    assert np.abs(np.diff(got, axis=0)).max() <= APPROACH_SPEED_RAD_S * 0.05 + 1e-12
    assert np.all(np.diff(np.abs(got), axis=0) <= 1e-12)
    assert np.abs(got[-1]).max() < 1e-3


def test_rows_are_independent() -> None:
    path = np.cumsum(np.full((3, 10, 6), 0.01), axis=1)
    states = np.array([[0.0] * 6, [0.5] * 6, [-0.2] * 6])
    together = approach(states, path, 0.05)
    for i in range(3):
        assert together[i] == pytest.approx(approach(states[i], path[i], 0.05))
