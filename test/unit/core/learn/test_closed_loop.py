"""The closed loop: its pieces, and the checkpoint of the repository in it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from physis_core.arm.camera import Camera
from physis_core.arm.kinematics import HOME_RAD, Kinematics
from physis_core.arm.scene import build_model
from physis_core.arm.tasks import Follow, make_task
from physis_core.learn.closed_loop import (
    RENDER_SIZE,
    Chunk,
    ClosedLoopConfig,
    ExpertPolicy,
    ModelPolicy,
    run,
    still_errors,
    summary,
)
from physis_core.types import UserError

CHECKPOINT = Path(__file__).parents[4] / "checkpoints" / "physis_tiny_follow.safetensors"


def test_a_chunk_is_linear_between_points_and_held_outside() -> None:
    chunk = Chunk(exit_s=1.0, start_s=1.0, step_s=0.1, points=np.array([[0.0], [1.0], [3.0]]))
    at = {0.5: 0.0, 1.0: 0.0, 1.05: 0.5, 1.15: 2.0, 1.2: 3.0, 9.0: 3.0}
    for t_s, wanted in at.items():
        assert chunk.at(t_s)[0] == pytest.approx(wanted)


def test_the_expert_follows_far_better_than_an_arm_that_stands_still() -> None:
    config = ClosedLoopConfig(episodes=1, duration_s=4.0, settle_s=2.0)
    tasks = [make_task("follow", 7)]
    kinematics = Kinematics(build_model())
    expert = summary(run(ExpertPolicy(tasks, kinematics, 0.05), tasks, config), config.settle_s)
    still = summary(still_errors(tasks, config, kinematics), config.settle_s)
    assert expert["mean_m"] < 0.02 < still["mean_m"]


def test_the_trained_policy_comes_back_from_far_astray_to_a_ball_in_a_corner() -> None:
    starts = np.array(HOME_RAD) + np.array(
        [
            [-1.75, 0.0, 0.0, 0.0, 0.0, 0.0],
            [1.3, 0.1, 0.0, 0.2, -0.3, 0.7],
            [0.7, -0.2, -0.4, 0.4, -0.1, -0.6],
            [-0.4, -0.3, 0.1, 0.3, -0.2, 0.4],
        ]
    )
    config = ClosedLoopConfig(episodes=len(starts), duration_s=6.0, response_s=0.2)
    tasks = [Follow(seed=9000 + n, stretch=2.5, stand_s=20.0) for n in range(len(starts))]
    with Camera(build_model(), width=RENDER_SIZE, height=RENDER_SIZE) as camera:
        policy = ModelPolicy(CHECKPOINT, config, camera)
        errors = run(policy, tasks, config, starts)
    # At rest above a ball at rest; an arm that had run away would be decimetres off.
    assert errors[:, -100:].mean(axis=1).max() < 0.06


@pytest.mark.parametrize(
    ("field", "value"),
    [("episodes", 0), ("duration_s", 1.0), ("response_s", -0.1), ("period_s", 0.001)],
)
def test_bad_settings_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(UserError, match=field.removesuffix("_s")):
        ClosedLoopConfig(**{field: value})  # type: ignore[arg-type]
