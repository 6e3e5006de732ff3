"""The closed loop: its pieces, and the checkpoint of the repository in it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from physis_core.types import UserError
from physis_lab.arm.camera import Camera
from physis_lab.arm.kinematics import HOME_RAD, Kinematics
from physis_lab.arm.scene import build_model
from physis_lab.evaluation.chunk_execution import ArrivedChunk, BlendExecutor
from physis_lab.evaluation.chunk_schedule import PlannedChunk, captures_by_tick, periodic
from physis_lab.evaluation.closed_loop import (
    RENDER_SIZE,
    ClosedLoopConfig,
    run,
    run_recorded,
    still_errors,
    summary,
    tick_times,
)
from physis_lab.evaluation.policies import ExpertPolicy, ModelPolicy
from physis_lab.tasks.ball import Follow
from physis_lab.tasks.task import make_task

CHECKPOINT = Path(__file__).parents[4] / "checkpoints" / "physis_tiny_follow.safetensors"


def test_a_chunk_is_linear_between_points_and_held_outside() -> None:
    chunk = ArrivedChunk(
        exit_s=1.0, start_s=1.0, step_s=0.1, points=np.array([[0.0], [1.0], [3.0]])
    )
    at = {0.5: 0.0, 1.0: 0.0, 1.05: 0.5, 1.15: 2.0, 1.2: 3.0, 9.0: 3.0}
    for t_s, wanted in at.items():
        assert chunk.at(t_s)[0] == pytest.approx(wanted)


def test_a_chunk_is_faded_in_from_the_one_before() -> None:
    executor = BlendExecutor(np.array([9.0]), blend_s=0.1)
    assert executor.command(0.0)[0] == 9.0
    for exit_s, value in ((0.0, 1.0), (0.5, 3.0)):
        chunk = ArrivedChunk(
            exit_s=exit_s, start_s=exit_s, step_s=0.1, points=np.full((4, 1), value)
        )
        executor.offer(chunk, exit_s)
    for t_s, wanted in ((0.5, 1.0), (0.55, 2.0), (0.6, 3.0), (7.0, 3.0)):
        assert executor.command(t_s)[0] == pytest.approx(wanted)


def test_a_plan_says_at_which_tick_each_chunk_looks() -> None:
    planned = periodic(duration_s=0.25, period_s=0.1, lookahead_s=0.15, handover_s=0.02)
    assert [chunk.arrives_s for chunk in planned] == pytest.approx([0.17, 0.27, 0.37])
    assert [chunk.start_s for chunk in planned] == pytest.approx([0.15, 0.25, 0.35])
    assert captures_by_tick(planned, 0.01) == {0: [(0, True)], 10: [(1, True)], 20: [(2, True)]}
    twice = [
        PlannedChunk(captures_s=(-0.02, 0.1), lookahead_s=0.1, arrives_s=0.2),
        PlannedChunk(captures_s=(0.05, 0.17), lookahead_s=0.1, arrives_s=0.3),
    ]
    assert captures_by_tick(twice, 0.01) == {
        -2: [(0, False)], 5: [(1, False)], 10: [(0, True)], 17: [(1, True)],
    }  # fmt: skip
    with pytest.raises(UserError, match="captured before"):
        captures_by_tick(list(reversed(twice)), 0.01)


@pytest.mark.parametrize(
    ("captures_s", "lookahead_s", "arrives_s", "field"),
    [((), 0.1, 1.0, "captures_s"), ((0.2, 0.1), 0.1, 1.0, "captures_s"),
     ((0.1,), -0.1, 1.0, "lookahead_s"), ((0.1,), 0.1, 0.05, "arrives_s")],
)  # fmt: skip
def test_a_planned_chunk_that_cannot_be_is_refused(
    captures_s: tuple[float, ...], lookahead_s: float, arrives_s: float, field: str
) -> None:
    with pytest.raises(UserError, match=field):
        PlannedChunk(captures_s=captures_s, lookahead_s=lookahead_s, arrives_s=arrives_s)


def test_newer_looks_change_what_a_chunk_knows_and_one_look_alone_is_the_plain_way() -> None:
    config = ClosedLoopConfig(episodes=1, duration_s=1.0, settle_s=0.0)
    tasks = [make_task("follow", 3)]
    plain = periodic(duration_s=1.0, period_s=0.1, lookahead_s=config.lookahead_s)
    refreshed = [
        PlannedChunk(
            captures_s=(n * 0.1, n * 0.1 + 0.05), lookahead_s=0.12, arrives_s=n * 0.1 + 0.17
        )
        for n in range(10)
    ]
    found = []
    with Camera(build_model(), width=RENDER_SIZE, height=RENDER_SIZE) as camera:
        for planned in (None, plain, refreshed):
            policy = ModelPolicy(CHECKPOINT, camera, episodes=config.episodes)
            found.append(run_recorded(policy, tasks, config, planned=planned))
    np.testing.assert_array_equal(found[0].errors, found[1].errors)
    assert np.abs(found[2].commands - found[1].commands).max() > 1e-3
    expert = ExpertPolicy(tasks, Kinematics(build_model()), 0.05)
    with pytest.raises(TypeError, match="ExpertPolicy"):
        run_recorded(expert, tasks, config, planned=refreshed)


def test_the_expert_follows_far_better_than_an_arm_that_stands_still() -> None:
    config = ClosedLoopConfig(episodes=1, duration_s=4.0, settle_s=2.0)
    tasks = [make_task("follow", 7)]
    kinematics = Kinematics(build_model())
    expert = summary(run(ExpertPolicy(tasks, kinematics, 0.05), tasks, config), config.settle_s)
    still = summary(still_errors(tasks, config, kinematics), config.settle_s)
    assert expert["mean_m"] < 0.02 < still["mean_m"]


@pytest.mark.parametrize(("name", "duration_s"), [("reach", 3.0), ("push", 8.0)])
def test_the_expert_does_every_task_under_the_delays(name: str, duration_s: float) -> None:
    config = ClosedLoopConfig(task=name, episodes=1, duration_s=duration_s)
    tasks = [make_task(name, 3)]
    kinematics = Kinematics(build_model())
    errors = run(ExpertPolicy(tasks, kinematics, 0.05), tasks, config)
    still = still_errors(tasks, config, kinematics)
    assert tasks[0].rule.judge(tick_times(config), errors[0], still[0]).success
    assert not tasks[0].rule.judge(tick_times(config), still[0], still[0]).success
    assert still[0, 0] == pytest.approx(errors[0, 0], abs=0.01)


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
        policy = ModelPolicy(CHECKPOINT, camera, episodes=config.episodes)
        errors = run(policy, tasks, config, starts)
    # At rest above a ball at rest; an arm that had run away would be decimetres off.
    assert errors[:, -100:].mean(axis=1).max() < 0.06


def test_the_trained_policy_touches_the_ball_and_rests_there() -> None:
    config = ClosedLoopConfig(task="reach", episodes=3, first_seed=200, duration_s=3.0)
    tasks = [make_task("reach", config.first_seed + n) for n in range(config.episodes)]
    with Camera(build_model(), width=RENDER_SIZE, height=RENDER_SIZE) as camera:
        policy = ModelPolicy(
            CHECKPOINT.with_name("physis_tiny_reach.safetensors"), camera, episodes=config.episodes
        )
        errors = run(policy, tasks, config)
    assert errors[:, 0].min() > 0.05
    assert errors[:, -50:].max() < 0.02


@pytest.mark.parametrize(
    ("field", "value"),
    [("episodes", 0), ("duration_s", 1.0), ("response_s", -0.1), ("period_s", 0.001)],
)
def test_bad_settings_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(UserError, match=field.removesuffix("_s")):
        ClosedLoopConfig(**{field: value})  # type: ignore[arg-type]
