"""What training episodes show: the expert starts from the state of each frame."""

from __future__ import annotations

import numpy as np
import pytest

from physis_lab.arm.kinematics import Kinematics
from physis_lab.arm.limits import UR5E_LIMITS
from physis_lab.arm.scene import BALL_RADIUS_M, TOOL_TIP_M, build_model
from physis_lab.tasks import TASKS
from physis_lab.tasks.demonstrations import EXPERT_POINTS, Motion
from physis_lab.tasks.episodes import DEMONSTRATORS


def made(task: str, frames: int = 30) -> Motion:
    frame_s = np.arange(frames) / 10.0
    kinematics = Kinematics(build_model())
    return DEMONSTRATORS[task](kinematics, 2_000_001, np.random.default_rng(4), frame_s)


@pytest.mark.parametrize("task", TASKS)
def test_every_task_has_demonstrations_from_the_state_of_each_frame(task: str) -> None:
    motion = made(task)
    assert motion.joints.shape == (30, 6) and motion.marks.shape == (30, 3)
    assert motion.expert.shape == (30, EXPERT_POINTS, 6)
    assert motion.expert[:, 0] == pytest.approx(motion.joints)
    assert np.all(np.abs(np.diff(motion.expert, axis=1)) < 0.05 * UR5E_LIMITS.velocity[0])
    assert (motion.objects is not None) == (task == "push")
    again = made(task)
    assert np.array_equal(again.joints, motion.joints)
    assert np.array_equal(again.expert, motion.expert)


def test_the_expert_of_reach_goes_to_the_ball_that_is_there_and_not_to_the_next_one() -> None:
    motion, kinematics = made("reach", frames=70), Kinematics(build_model())
    places = np.unique(motion.marks, axis=0)
    assert len(places) >= 2
    # The expert looks 1.2 s ahead: enough for the way from anywhere but far astray.
    ends = np.stack([kinematics.forward(q).position for q in motion.expert[:, -1]])
    touch = motion.marks + (0.0, 0.0, BALL_RADIUS_M + TOOL_TIP_M)
    assert np.median(np.linalg.norm(ends - touch, axis=1)) < 0.03
