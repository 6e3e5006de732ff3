"""An episode read from records whose every number is known by construction."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from physis_core.observe.report import BUFFER_CHUNK_COLUMNS, BUFFER_SERVO_COLUMNS, RunTables
from physis_core.observe.result_file import result_text
from physis_core.observe.rowlog import RowTable
from physis_core.types import UserError
from physis_lab.evaluation.stack_episode import StackEpisode, episode_of, planned_from_row
from physis_lab.evaluation.stack_report import stack_report
from physis_lab.session.run_record import RunRecord
from physis_lab.tasks.task import make_task

MS = 1e6
BEGUN_S = 50.0
ROS_NS = 7_000 * 1e9
"""ROS time of steady time 0."""

SAFETY = {
    "topic": "safety_status", "verdict": 1, "reason": "", "trips": 2, "accepted": 90, "limited": 3,
    "rejected": 1, "loop_jitter_ms": {"p99": 0.4}, "lost_ticks": 0, "realtime": True,
}  # fmt: skip


def table(columns: dict[str, np.ndarray], rows: int, names: dict[str, str]) -> RowTable:
    return RowTable(
        columns={n: np.asarray(columns.get(n, np.zeros(rows)), float) for n in names},
        units=names,
        meta={},
    )


def record(error_m: float = 0.02) -> RunRecord:
    """Twenty seconds; the task begins at 50 s. Chunks every 100 ms are captured from 49.8 s on and
    reach the buffer 60 ms later; their lookahead is 90 ms."""
    tick_s = 0.008
    t_s = 45.0 + tick_s * np.arange(2500)
    task_s = np.where(t_s > BEGUN_S, t_s - BEGUN_S, 0.0)
    names = {"t_s": "s", "task_t_s": "s", "error_m": "m", "still_error_m": "m", "limit": "1"}
    joints = {f"{prefix}{j}": "rad" for prefix in ("q", "qd", "cmd", "cmdd") for j in range(6)}
    arm = table(
        {
            "t_s": t_s,
            "task_t_s": task_s,
            "error_m": np.where(task_s < 2.0, 1.0, error_m),
            "still_error_m": np.full(2500, 0.15),
            # The commanded shoulder follows a cubic of third derivative 6 rad/s^3.
            "cmd1": task_s**3,
        },
        2500,
        {**names, **joints},
    )
    servo_s = 45.0 + 0.01 * np.arange(2000)
    servo = table(
        {"t_s": servo_s, "ros_ns": ROS_NS + 1e9 * servo_s, "age_ms": np.full(2000, 120.0)},
        2000,
        dict(BUFFER_SERVO_COLUMNS),
    )
    captured_ns = ROS_NS + 1e9 * (49.8 + 0.1 * np.arange(150))
    chunks = table(
        {
            "t_s": (captured_ns - ROS_NS) / 1e9 + 0.061,
            "chunk_id": np.arange(150),
            "exit_ns": captured_ns + 55 * MS,
            "capture_oldest_ns": captured_ns,
            "capture_newest_ns": captured_ns,
            "receipt_ns": captured_ns + 3 * MS,
            "entry_ns": captured_ns + 5 * MS,
            "deadline_ns": captured_ns + 100 * MS,
            "start_ns": captured_ns + 90 * MS,
            "handoff_ns": captured_ns + 60 * MS,
            "accepted": np.ones(150),
        },
        150,
        dict(BUFFER_CHUNK_COLUMNS),
    )
    return RunRecord(
        tables=RunTables(chunks=chunks, servo=servo),
        arm=arm,
        status=({"topic": "stream_status", "dropped": 1, "gaps": 1}, SAFETY),
        camera_hz=30.0,
    )


def episode(seed: int = 7, error_m: float = 0.02) -> StackEpisode:
    return episode_of(
        record(error_m),
        make_task("follow", seed),
        seed=seed,
        duration_s=10.0,
        settle_s=2.0,
        start_s=9.0,
    )


def test_an_episode_counts_from_the_first_trajectory_and_leaves_its_settling_out() -> None:
    found = episode()
    assert found.outcome.success
    assert found.errors_m.mean() == pytest.approx(0.02)
    assert found.errors_m.size == pytest.approx(8.0 / 0.008, abs=1)
    assert found.samples.response_ms.size == pytest.approx(80, abs=1)
    assert found.jerk_commanded == pytest.approx(6.0 / np.sqrt(6.0), rel=1e-3)
    assert found.jerk_measured == pytest.approx(0.0, abs=1e-9)
    assert found.dropped == 2


def test_the_chunks_times_are_those_of_the_task_and_survive_json() -> None:
    planned = episode().planned
    assert planned[0].captures_s[0] == pytest.approx(-0.2, abs=1e-6)
    assert planned[0].lookahead_s == pytest.approx(0.09, abs=1e-6)
    assert planned[0].arrives_s == pytest.approx(-0.14, abs=1e-6)
    assert planned[-1].captures_s[0] <= 10.0
    rows = json.loads(result_text(episode().row()))["chunks"]
    assert planned_from_row(rows) == planned
    with pytest.raises(UserError, match="chunks"):
        planned_from_row([[1.0, 2.0]])


def test_a_record_that_is_too_short_or_never_began_says_so() -> None:
    whole = record()
    with pytest.raises(UserError, match=r"arm\.rows"):
        episode_of(
            whole, make_task("follow", 7), seed=7, duration_s=40.0, settle_s=2.0, start_s=1.0
        )
    columns = {**whole.arm.columns, "task_t_s": np.zeros(whole.arm.rows)}
    idle = replace(whole, arm=replace(whole.arm, columns=columns))
    with pytest.raises(UserError, match="no trajectory"):
        episode_of(idle, make_task("follow", 7), seed=7, duration_s=5.0, settle_s=2.0, start_s=1.0)


def test_the_report_of_several_episodes() -> None:
    report = stack_report(
        [episode(7, 0.02), episode(8, 0.10), episode(9, 0.01)],
        task="follow",
        settle_s=2.0,
        config={"mode": "stack"},
        machine={},
    )
    task = report["task"]
    assert task["success"] == pytest.approx(2 / 3)
    assert task["errors_m"] == pytest.approx([0.02, 0.10, 0.01])
    assert task["error_m_mean"] == pytest.approx(0.13 / 3)
    assert report["chunks"] == sum(row.samples.chunks for row in [episode()] * 3)
    assert report["safety"] == {"state": "LIMIT", "trips": 6, "limited": 9, "rejected": 3}
    assert report["response_latency_ms"]["p50"] == pytest.approx(50.0)
    assert [row["seed"] for row in report["episodes"]] == [7, 8, 9]
