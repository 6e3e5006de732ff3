"""The pieces of the closed loop that need neither a camera nor a model."""

from __future__ import annotations

import numpy as np
import pytest

from physis_core.arm.kinematics import Kinematics
from physis_core.arm.scene import build_model
from physis_core.arm.tasks import make_task
from physis_core.learn.closed_loop import (
    Chunk,
    ClosedLoopConfig,
    ExpertPolicy,
    run,
    still_errors,
    summary,
)
from physis_core.types import UserError


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


@pytest.mark.parametrize(
    ("field", "value"),
    [("episodes", 0), ("duration_s", 1.0), ("response_s", -0.1), ("period_s", 0.001)],
)
def test_bad_settings_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(UserError, match=field.removesuffix("_s")):
        ClosedLoopConfig(**{field: value})  # type: ignore[arg-type]
