"""The records of one run, read back and made into its report.

A run's directory holds what each process wrote while it ran:
`servo.rows`, `chunks.rows` (buffer_node), `arm.rows` (robot_sim_node), `front.frames`,
`status.jsonl` (recorder_node). Pure reading: works on the records of a run that was killed, too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from physis_core.observe.framelog import read_frames
from physis_core.observe.jerk import rms_jerk
from physis_core.observe.report import RunTables, build_report
from physis_core.observe.rowlog import RowTable, read_rows
from physis_core.types import UserError
from physis_lab.tasks.outcome import Rule, StaysNear
from physis_lab.tasks.task import make_task

VERDICTS = ("OK", "LIMIT", "HOLD", "STOP")
SETTLE_S = 1.0
"""After the first point is played: the KV window fills and the latency estimate settles."""

MOVED_RAD = 0.05
"""A joint that went further than this between its extremes has moved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    tables: RunTables
    arm: RowTable
    status: tuple[Mapping[str, Any], ...]
    camera_hz: float

    @property
    def warmup_s(self) -> float:
        """From the start of the buffer to the steady state.

        Raises:
            UserError: no chunk was ever played, or the run ended before it was steady.
        """
        servo = self.tables.servo
        played = np.flatnonzero(servo["underrun"] == 0)
        if played.size == 0:
            raise UserError(
                "run", "servo.rows", "no action was ever played: see the logs of the nodes"
            )
        warmup_s = float(servo["t_s"][played[0]] - servo["t_s"][0]) + SETTLE_S
        if servo["t_s"][0] + warmup_s >= servo["t_s"][-1]:
            raise UserError("duration", f"{warmup_s:.1f} s", "the run ended within its warm-up")
        return warmup_s

    def last(self, topic: str) -> Mapping[str, Any] | None:
        return next((s for s in reversed(self.status) if s["topic"] == topic), None)


def read_run(directory: Path) -> RunRecord:
    """Read a run's directory.

    Raises:
        UserError: a record is missing or is not what it should be.
    """
    stamps = [stamp_ns for stamp_ns, _ in read_frames(directory / "front.frames")]
    span_s = (stamps[-1] - stamps[0]) / 1e9 if len(stamps) > 1 else 0.0
    return RunRecord(
        tables=RunTables(
            chunks=read_rows(directory / "chunks.rows"), servo=read_rows(directory / "servo.rows")
        ),
        arm=read_rows(directory / "arm.rows"),
        status=tuple(read_json_lines(directory / "status.jsonl")),
        camera_hz=(len(stamps) - 1) / span_s if span_s else float("nan"),
    )


def report_of(
    record: RunRecord, *, config: Mapping[str, Any], machine: Mapping[str, Any]
) -> dict[str, Any]:
    """The JSON object of the run (DESIGN section 8)."""
    warmup_s = record.warmup_s
    stream = record.last("stream_status")
    return build_report(
        record.tables,
        sensor_hz=record.camera_hz,
        task=task_of(record.arm, from_s=float(record.tables.servo["t_s"][0]) + warmup_s),
        safety=safety_of(record.status),
        config=config,
        machine=machine,
        warmup_s=warmup_s,
        dropped=int(stream["dropped"]) + int(stream["gaps"]) if stream else 0,
    )


def task_of(arm: RowTable, *, from_s: float) -> dict[str, Any]:
    """How well the arm did, beside an arm that stands still on the same target path.

    A task that is over once it is done is judged by its own rule, from its beginning on.
    """
    rows = arm["t_s"] >= from_s
    if not rows.any():
        raise UserError("run", "arm.rows", "holds nothing of the steady state")
    error, still = arm["error_m"][rows], arm["still_error_m"][rows]
    share = float(error.mean() / still.mean())
    name = str(arm.meta.get("task", "follow"))
    rule = make_task(name, 0).rule
    # Such a task may be done before the steady state begins.
    played = rows if isinstance(rule, StaysNear) else arm["task_t_s"] > 0.0
    if not played.any():
        raise UserError("run", "arm.rows", "the task never began")
    travel = float(np.ptp(joint_paths(arm, "q")[played], axis=0).max())
    return {
        "name": name,
        **_success(arm, rule, played, share),
        "error_m_mean": float(error.mean()),
        "error_m_p50": float(np.median(error)),
        "error_m_p99": float(np.percentile(error, 99)),
        "still_error_m_mean": float(still.mean()),
        "error_share_of_still": share,
        "jerk_rad_s3": jerk_of(arm, rows),
        "moved": bool(travel > MOVED_RAD),
        "limit_violations": int(np.count_nonzero(arm["limit"][rows])),
    }


def _success(
    arm: RowTable, rule: Rule, played: npt.NDArray[np.bool_], share: float
) -> dict[str, Any]:
    if isinstance(rule, StaysNear):
        return {"success": bool(share <= rule.share)}
    columns = (arm[name][played] for name in ("task_t_s", "error_m", "still_error_m"))
    try:
        found = rule.judge(*columns)
    except ValueError as error:
        raise UserError("run", "arm.rows", str(error)) from error
    return {
        "success": found.success,
        "success_means": rule.says,
        "time_to_success_s": found.time_s,
        "error_m_end": found.error_m,
    }


def jerk_of(arm: RowTable, rows: npt.NDArray[np.bool_]) -> dict[str, float]:
    """rms jerk of the robot's record at the ticks `rows`, rad/s^3 (`physis_core.observe.jerk`):
    as the controller commanded it, and as the joints moved.
    """
    return {
        side: rms_jerk(joint_paths(arm, prefix)[rows], arm["t_s"][rows])
        for side, prefix in (("commanded", "cmd"), ("measured", "q"))
    }


def joint_paths(arm: RowTable, prefix: str) -> npt.NDArray[np.float64]:
    """Columns `prefix`0, `prefix`1, ... as [ticks, joints].

    Raises:
        UserError: the record has none.
    """
    count = 0
    while f"{prefix}{count}" in arm.columns:
        count += 1
    if not count:
        raise UserError("arm.rows", f"{prefix}0", "is no column of this record")
    return np.stack([arm[f"{prefix}{joint}"] for joint in range(count)], axis=1)


def safety_of(status: tuple[Mapping[str, Any], ...]) -> dict[str, Any]:
    """The state that safety was in while the stream played, the last reason, and its trips."""
    safety = [s for s in status if s["topic"] == "safety_status"]
    if not safety:
        raise UserError("run", "status.jsonl", "holds no safety_status")
    last = safety[-1]
    return {
        "state": VERDICTS[int(last["verdict"])],
        "reason": last["reason"],
        "trips": int(last["trips"]),
        "accepted": int(last["accepted"]),
        "limited": int(last["limited"]),
        "rejected": int(last["rejected"]),
        "loop_jitter_ms_p99": last["loop_jitter_ms"]["p99"],
        "lost_ticks": int(last["lost_ticks"]),
        "realtime": bool(last["realtime"]),
    }


def read_json_lines(path: Path) -> list[Mapping[str, Any]]:
    """JSON objects, one per line, without a last line that is not complete.

    Raises:
        UserError: another line is not JSON.
    """
    entries = []
    lines = path.read_text().splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        if not line.endswith("\n"):
            break  # still being written, or cut off by the end of its writer
        try:
            entries.append(json.loads(line))
        except ValueError:
            raise UserError(path.name, line[:60], f"line {number} is not JSON") from None
    return entries
