"""The push task: its places, the disc's contact, and the expert that pushes it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from physis_lab.arm.kinematics import HOME_RAD, Kinematics
from physis_lab.arm.limits import UR5E_LIMITS
from physis_lab.arm.plant import Plant
from physis_lab.arm.scene import build_model
from physis_lab.tasks.push import PUSH_HIGH_M, PUSH_LOW_M, PUSH_PROPS, WAY_M, Push
from physis_lab.tasks.push_expert import (
    HIGH_M,
    LOW_M,
    TOOL_HIGH_M,
    TOOL_LOW_M,
    TOUCH_M,
    expected_path,
    push_moves,
    pushed,
    velocity,
)
from physis_lab.tasks.task import judge_episode


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**31 - 1))
def test_disc_and_goal_are_in_sight_and_apart(seed: int) -> None:
    task = Push(seed=seed)
    places = np.stack([task.object_start, task.goal(0.0)])[:, :2]
    assert np.all(places >= PUSH_LOW_M) and np.all(places <= PUSH_HIGH_M)
    assert WAY_M[0] - 1e-9 <= np.linalg.norm(places[1] - places[0]) <= WAY_M[1] + 1e-9
    assert task.target(3.0)[:2] == pytest.approx(task.goal(9.0)[:2])
    # Wherever it is pushed from, the tool's place behind it is within reach.
    assert np.all(places - TOUCH_M > TOOL_LOW_M[:2]) and np.all(places + TOUCH_M < TOOL_HIGH_M[:2])


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10_000), st.floats(-0.15, 0.15), st.floats(-0.15, 0.15))
def test_from_anywhere_the_foretold_push_ends_at_the_goal_with_the_tool_up(
    seed: int, x_m: float, y_m: float
) -> None:
    task = Push(seed=seed)
    disc, goal = task.object_start[:2], task.goal(0.0)[:2]
    tool = np.array([0.45 + x_m, y_m, HIGH_M])
    way = expected_path(tool, disc, goal, points=160, step_s=0.1)
    for place in way:
        disc = pushed(place, disc)
    assert np.linalg.norm(disc - goal) < 0.03
    assert way[-1, 2] == pytest.approx(HIGH_M, abs=0.01)
    assert way[:, 2].min() > LOW_M - 0.01


def test_a_tool_that_is_low_and_in_front_of_the_disc_goes_up_before_it_goes_round() -> None:
    tool = np.array([0.60, 0.0, LOW_M])
    wanted = velocity(tool, np.array([0.45, 0.0]), np.array([0.55, 0.0]))
    assert wanted[2] > 0.1 and np.linalg.norm(wanted[:2]) < 1e-6


def test_the_plant_moves_the_disc_where_the_quasi_static_law_says() -> None:
    """Pushed off-centre along x, y and between them: friction has no favourite direction."""
    kinematics, plant = Kinematics(build_model()), Plant(build_model(props=PUSH_PROPS))
    for angle in (0.0, 0.7, 1.4):
        ahead = np.array([np.cos(angle), np.sin(angle)])
        aside = np.array([-ahead[1], ahead[0]])
        disc = np.array([0.45, 0.0])
        tool = disc - (TOUCH_M + 0.005) * ahead + 0.02 * aside
        joints = kinematics.inverse(np.array([*tool, LOW_M]))
        plant.reset(joints, np.array([*disc, 0.04]))
        for _ in range(60):
            tool = tool + 0.001 * ahead
            disc = pushed(np.array([*tool, LOW_M]), disc)
            before = joints
            joints = kinematics.inverse(np.array([*tool, LOW_M]), joints)
            for sub in range(1, 6):
                plant.step(before + sub / 5 * (joints - before), (joints - before) / 0.01)
        lies = plant.object_position
        assert lies is not None
        assert lies[:2] == pytest.approx(disc, abs=0.006)
        assert lies[2] == pytest.approx(0.04, abs=0.002)


def test_the_expert_pushes_the_real_disc_home_within_the_limits_of_the_joints() -> None:
    task, kinematics = Push(seed=0), Kinematics(build_model())
    plant = Plant(build_model(props=PUSH_PROPS))
    plant.reset(np.array(HOME_RAD), task.object_start)
    command, moved, at_s = np.array(HOME_RAD), [task.object_start], [0.0]
    for _ in range(50):
        lies = plant.object_position
        assert lies is not None
        way = push_moves(
            kinematics, command[None], lies[None], task.goal(0.0)[None], points=5, step_s=0.05
        )[0]
        for target in way[1:3]:
            speed = (target - command) / 0.05
            assert np.all(np.abs(speed) < UR5E_LIMITS.velocity)
            for _ in range(25):
                command = command + speed * plant.step_s
                plant.step(command, speed)
        assert np.all(plant.position < UR5E_LIMITS.upper)
        assert np.all(plant.position > UR5E_LIMITS.lower)
        at_s.append(plant.time_s)
        moved.append(plant.object_position)
    found = judge_episode(task, np.array(at_s), np.array(moved))
    assert found.success and found.error_m < 0.03


def test_a_scene_without_an_object_refuses_one() -> None:
    plant = Plant(build_model())
    assert plant.object_position is None
    with pytest.raises(ValueError, match="no object"):
        plant.place_object(np.zeros(3))
