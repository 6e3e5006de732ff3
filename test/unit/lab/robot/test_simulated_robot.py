from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from physis_core.observe.rowlog import read_rows
from physis_core.types import UserError
from physis_lab.arm.judge import Passed
from physis_lab.arm.kinematics import HOME_RAD
from physis_lab.arm.limits import JOINT_NAMES
from physis_lab.arm.scene import build_model
from physis_lab.robot.simulated_robot import SimulatedRobot
from physis_lab.tasks.task import make_task
from physis_ros.robot.trajectory_controller import ControllerConfig, Trajectory, TrajectoryPoint

MODEL = build_model()
HOME = np.array(HOME_RAD)


def robot(record: Path | None = None, **kwargs: float) -> SimulatedRobot:
    return SimulatedRobot(
        MODEL,
        make_task("follow", 1),
        controller=ControllerConfig(joint_names=JOINT_NAMES, interpolate_from_desired_state=True),
        start_s=100.0,
        tick_s=kwargs.get("tick_s", 0.008),
        record=record,
    )


def to(position: np.ndarray, in_s: float) -> Trajectory:
    point = TrajectoryPoint(
        time_from_start_s=in_s, positions=tuple(position), velocities=(0.0,) * 6
    )
    return Trajectory(joint_names=JOINT_NAMES, points=(point,))


def test_stands_at_home_until_told() -> None:
    arm = robot()
    for _ in range(50):
        tick = arm.tick()
    assert tick.position == pytest.approx(HOME, abs=1e-4)
    assert tick.error_m == pytest.approx(tick.still_error_m, abs=1e-4)
    assert tick.holding


def test_the_ball_waits_for_the_first_trajectory_taken() -> None:
    arm = robot()
    waited = [arm.tick() for _ in range(50)]
    assert {tick.task_s for tick in waited} == {0.0}
    refused = to(HOME, 0.5)
    arm.offer(Trajectory(joint_names=("nobody",) * 6, points=refused.points), arrival_s=100.0)
    assert arm.tick().task_s == 0.0
    arm.offer(to(HOME, 0.5), arrival_s=100.0)
    ticks = [arm.tick() for _ in range(3)]
    assert [tick.task_s for tick in ticks] == pytest.approx([0.0, 0.008, 0.016])
    assert (waited[-1].target == waited[0].target).all()
    assert not np.array_equal(ticks[-1].target, waited[0].target)


def test_a_ball_that_does_not_wait_moves_at_once() -> None:
    arm = SimulatedRobot(
        MODEL,
        make_task("follow", 1),
        controller=ControllerConfig(joint_names=JOINT_NAMES, interpolate_from_desired_state=True),
        start_s=100.0,
        tick_s=0.008,
        task_waits=False,
    )
    assert [arm.tick().task_s for _ in range(3)] == pytest.approx([0.0, 0.008, 0.016])


def test_moves_where_it_is_told_and_records_it(tmp_path: Path) -> None:
    path = tmp_path / "arm.rows"
    arm = robot(path)
    arm.tick()
    arm.offer(to(HOME + 0.2, 0.5), arrival_s=100.01)
    ticks = [arm.tick() for _ in range(100)]
    assert ticks[-1].position == pytest.approx(HOME + 0.2, abs=1e-3)
    assert all(tick.passed == Passed.NONE for tick in ticks)
    arm.close()
    table = read_rows(path)
    assert table.rows == 101
    assert table.meta["task"] == "follow"
    assert table["t_s"][0] == pytest.approx(100.0)
    assert np.diff(table["t_s"]) == pytest.approx(0.008)
    assert table["accepted"][-1] == 1.0
    assert np.count_nonzero(table["limit"]) == 0
    error = [table[f"ee_{a}"] - table[f"target_{a}"] for a in "xyz"]
    error[2] = error[2] - 0.10
    assert table["error_m"] == pytest.approx(np.sqrt(np.square(error).sum(axis=0)), abs=1e-6)


def test_nan_leaves_the_arm_where_it_was_and_is_recorded() -> None:
    arm = robot()
    bad = HOME.copy()
    bad[3] = math.nan
    arm.offer(to(bad, 0.1), arrival_s=99.0)
    ticks = [arm.tick() for _ in range(50)]
    assert any(tick.passed & Passed.COMMAND_NOT_FINITE for tick in ticks)
    assert ticks[-1].position == pytest.approx(HOME, abs=1e-3)
    assert arm.limit_ticks > 0
    arm.offer(to(HOME + 0.1, 0.5), arrival_s=99.0)
    for _ in range(100):
        tick = arm.tick()
    assert tick.position == pytest.approx(HOME + 0.1, abs=1e-3)


def test_refusals_are_counted_with_their_reason() -> None:
    arm = robot()
    arm.offer(Trajectory(joint_names=JOINT_NAMES[:5], points=to(HOME, 0.1).points), 99.0)
    arm.tick()
    assert (arm.accepted, arm.refused) == (0, 1)
    assert "wrist_3_joint" in arm.last_refusal


def test_arrivals_count_from_the_tick_after_them() -> None:
    arm = robot()
    arm.offer(to(HOME + 0.1, 0.5), arrival_s=100.02)
    counts = []
    for _ in range(5):
        arm.tick()
        counts.append(arm.accepted)
    assert counts == [0, 0, 0, 1, 1]


def test_a_pause_of_the_host_skips_whole_ticks() -> None:
    arm = robot()
    arm.tick()
    arm.skip_to(103.0)
    assert 103.0 - 0.008 < arm.next_s <= 103.0
    assert arm.tick().passed == Passed.NONE


def test_tick_must_be_whole_steps() -> None:
    with pytest.raises(UserError, match="controller_hz"):
        robot(tick_s=0.0033)


def test_a_task_with_an_object_is_measured_by_the_object(tmp_path: Path) -> None:
    task = make_task("push", 3)
    arm = SimulatedRobot(
        build_model(props=task.props),
        task,
        controller=ControllerConfig(joint_names=JOINT_NAMES, interpolate_from_desired_state=True),
        start_s=0.0,
        tick_s=0.008,
        record=tmp_path / "arm.rows",
    )
    away = np.linalg.norm(task.goal(0.0) - task.object_start)
    assert arm.tick().error_m == pytest.approx(away, abs=1e-4)
    moved = task.goal(0.0) + (0.0, 0.03, 0.0)
    arm.plant.place_object(moved)
    for _ in range(5):
        tick = arm.tick()
    assert tick.error_m == pytest.approx(0.03, abs=2e-3)
    assert tick.still_error_m == pytest.approx(away, abs=1e-4)
    arm.close()
    table = read_rows(tmp_path / "arm.rows")
    assert table.meta["task"] == "push" and table["error_m"][-1] == pytest.approx(tick.error_m)
