import json
from pathlib import Path

import numpy as np
import pytest

from physis_core.observe.framelog import FrameLog
from physis_core.observe.report import BUFFER_CHUNK_COLUMNS, BUFFER_SERVO_COLUMNS
from physis_core.observe.rowlog import RowLog, read_rows
from physis_core.types import UserError
from physis_lab.session.run_record import read_run, report_of, task_of

MS = 1e6
SAFETY = {
    "topic": "safety_status",
    "verdict": 0,
    "reason": "",
    "trips": 0,
    "accepted": 90,
    "limited": 0,
    "rejected": 0,
    "loop_jitter_ms": {"p99": 0.4},
    "lost_ticks": 0,
    "realtime": True,
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Ten seconds at 100 ticks and 10 chunks a second; the first point is played after 2 s."""
    servo = RowLog(tmp_path / "servo.rows", BUFFER_SERVO_COLUMNS)
    arm = RowLog(
        tmp_path / "arm.rows",
        {
            "t_s": "s",
            "q0": "rad",
            "cmd0": "rad",
            "error_m": "m",
            "still_error_m": "m",
            "limit": "0/1",
        },
        meta={"task": "follow"},
    )
    for i in range(1000):
        under = i < 200
        servo.append(0.01 * i, 10 * MS * i, float("nan") if under else 150.0, 0, 0, 0.3, under)
        # What is commanded has a third derivative of 0.6 rad/s^3, what moves has none.
        arm.append(0.01 * i, 0.001 * i, 0.1 * (0.01 * i) ** 3, 0.1 if under else 0.015, 0.1, 0)
    chunks = RowLog(tmp_path / "chunks.rows", BUFFER_CHUNK_COLUMNS)
    for i in range(20, 100):
        t = 100 * MS * i
        row = {
            "t_s": 0.1 * i,
            "epoch": 0,
            "chunk_id": i,
            "exit_ns": t + 80 * MS,
            "capture_oldest_ns": t,
            "capture_newest_ns": t,
            "receipt_ns": t + 4 * MS,
            "entry_ns": t + 6 * MS,
            "deadline_ns": t + 100 * MS,
            "start_ns": t + 80 * MS,
            "handoff_ns": t + 85 * MS,
            "accepted": 1,
        }
        chunks.append(*(row[name] for name in BUFFER_CHUNK_COLUMNS))
    frames = FrameLog(tmp_path / "front.frames")
    for i in range(31):
        frames.append(int(100 * MS * i), np.zeros((8, 8, 3), np.uint8))
    for log in (servo, arm, chunks, frames):
        log.close()
    stream = {"topic": "stream_status", "dropped": 2, "gaps": 1}
    lines = [json.dumps(stream), json.dumps(SAFETY)]
    (tmp_path / "status.jsonl").write_text("\n".join(lines) + '\n{"topic": "safety_st')
    return tmp_path


def test_the_report_of_a_run_from_what_its_processes_wrote(run: Path) -> None:
    record = read_run(run)
    assert record.warmup_s == pytest.approx(3.0)
    report = report_of(record, config={}, machine={})
    assert report["rates_hz"]["sensor"] == pytest.approx(10.0)
    assert report["dropped"] == 3
    assert report["task"]["error_share_of_still"] == pytest.approx(0.15)
    assert report["task"]["success"] and report["task"]["moved"]
    assert report["task"]["jerk_rad_s3"]["commanded"] == pytest.approx(0.6)
    assert report["task"]["jerk_rad_s3"]["measured"] == pytest.approx(0.0, abs=1e-6)
    assert report["safety"]["state"] == "OK"
    assert report["response_latency_ms"]["p50"] == pytest.approx(74.0)


def test_says_what_is_missing(run: Path) -> None:
    (run / "status.jsonl").write_text(json.dumps({"topic": "stream_status"}) + "\n")
    record = read_run(run)
    with pytest.raises(UserError, match="no safety_status"):
        report_of(record, config={}, machine={})
    (run / "servo.rows").unlink()
    with pytest.raises(UserError, match="No such file"):
        read_run(run)


def test_a_run_in_which_nothing_was_played(run: Path) -> None:
    servo = RowLog(run / "servo.rows", BUFFER_SERVO_COLUMNS)
    servo.append(0.0, 0.0, float("nan"), 0, 0, 0.0, 1)
    servo.close()
    with pytest.raises(UserError, match="no action was ever played"):
        _ = read_run(run).warmup_s


def test_a_task_that_is_done_at_once_is_judged_from_its_beginning(tmp_path: Path) -> None:
    columns = ("t_s", "task_t_s", "q0", "cmd0", "error_m", "still_error_m", "limit")
    arm = RowLog(tmp_path / "arm.rows", dict.fromkeys(columns, ""), meta={"task": "reach"})
    for i in range(1000):
        t_s = 0.01 * i
        # The task's clock starts after 2 s; the arm is there half a second later and rests.
        task_s = max(0.0, t_s - 2.0)
        way = min(1.0, task_s / 0.5)
        arm.append(t_s, task_s, 0.4 * way, 0.4 * way, 0.2 * (1.0 - way), 0.2, 0)
    arm.close()
    task = task_of(read_rows(tmp_path / "arm.rows"), from_s=4.0)
    assert task["success"] and task["moved"]
    assert task["time_to_success_s"] == pytest.approx(0.45, abs=0.02)
    assert task["error_m_end"] == pytest.approx(0.0)
    assert "20 mm" in task["success_means"]
