"""One episode through the real stack, read from the records of its processes. Pure.

Task time starts with the first trajectory that the robot accepted, as in
`physis_lab.robot.simulated_robot`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from physis_core.observe.report import RunSamples, samples_of
from physis_core.observe.rowlog import RowTable, read_rows
from physis_core.types import Array, UserError
from physis_lab.evaluation.chunk_schedule import PlannedChunk
from physis_lab.session.run_record import RunRecord, jerk_of, safety_of
from physis_lab.tasks.outcome import Outcome
from physis_lab.tasks.task import Task


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StackEpisode:
    """Result of one seed. Distances in metres, over the ticks after settling."""

    seed: int
    outcome: Outcome
    errors_m: Array
    still_m: Array
    jerk_commanded: float
    jerk_measured: float
    limit_ticks: int
    samples: RunSamples
    planned: tuple[PlannedChunk, ...]
    dropped: int
    sensor_hz: float
    safety: Mapping[str, Any]
    start_s: float
    """Time from the start of the first process to the first trajectory."""

    def row(self) -> dict[str, Any]:
        """For JSON. `chunks` lets the fast loop reproduce the delays (`planned_from_row`)."""
        return {
            "seed": self.seed,
            **asdict(self.outcome),
            "error_m_mean": float(self.errors_m.mean()),
            "still_error_m_mean": float(self.still_m.mean()),
            "jerk_rad_s3": {"commanded": self.jerk_commanded, "measured": self.jerk_measured},
            "response_ms_p50": float(np.median(self.samples.response_ms)),
            "action_age_servo_ms_p50": float(np.median(self.samples.age_servo_ms)),
            "underruns": self.samples.underruns,
            "deadline_misses": self.samples.deadline_misses,
            "dropped": self.dropped,
            "limit_ticks": self.limit_ticks,
            "safety": dict(self.safety),
            "start_s": self.start_s,
            "chunks": [
                [chunk.captures_s[0], chunk.lookahead_s, chunk.arrives_s] for chunk in self.planned
            ],
        }


def task_time_s(arm: Path) -> float:
    """Task time at the end of the robot's record; 0 before the task began."""
    if not arm.exists() or arm.stat().st_size == 0:
        return 0.0
    table = read_rows(arm)
    return float(table["task_t_s"][-1]) if table.rows else 0.0


def episode_of(
    record: RunRecord, task: Task, *, seed: int, duration_s: float, settle_s: float, start_s: float
) -> StackEpisode:
    """Judge one recorded episode.

    Raises:
        UserError: the record is shorter than the episode, or holds no chunk.
    """
    arm = record.arm
    begun_s = _begun_s(arm)
    task_s = arm["t_s"] - begun_s
    counted = (task_s > 0.0) & (task_s <= duration_s + 1e-9)
    if not counted.any() or task_s[-1] < duration_s - 0.1:
        raise UserError("run", "arm.rows", f"ends {task_s[-1]:.1f} s after the task began")
    steady = counted & (task_s >= settle_s)
    samples = samples_of(
        record.tables.chunks,
        record.tables.servo,
        from_s=begun_s + settle_s,
        until_s=begun_s + duration_s,
    )
    if not samples.chunks or not samples.played:
        raise UserError("run", "chunks.rows", "holds no chunk that was executed after settling")
    stream, jerk = record.last("stream_status"), jerk_of(arm, steady)
    return StackEpisode(
        seed=seed,
        outcome=task.rule.judge(
            task_s[counted], arm["error_m"][counted], arm["still_error_m"][counted]
        ),
        errors_m=arm["error_m"][steady],
        still_m=arm["still_error_m"][steady],
        jerk_commanded=jerk["commanded"],
        jerk_measured=jerk["measured"],
        limit_ticks=int(np.count_nonzero(arm["limit"][counted])),
        samples=samples,
        planned=planned_of(record.tables.chunks, record.tables.servo, begun_s, duration_s),
        dropped=int(stream["dropped"]) + int(stream["gaps"]) if stream else 0,
        sensor_hz=record.camera_hz,
        safety=safety_of(record.status),
        start_s=start_s,
    )


def planned_of(
    chunks: RowTable, servo: RowTable, begun_s: float, duration_s: float
) -> tuple[PlannedChunk, ...]:
    """Capture time, lookahead and arrival at the buffer of every chunk, in task time.

    The buffer's ticks hold both clocks: the nearest tick converts a stamp to steady time.
    """
    out: list[PlannedChunk] = []
    order = np.argsort(chunks["chunk_id"] + 1e9 * chunks["epoch"], kind="stable")
    for row in order:
        captured_ns = float(chunks["capture_newest_ns"][row])
        captured_s = _steady_s(servo, captured_ns) - begun_s
        handoff_ns = float(chunks["handoff_ns"][row])
        # Refused, or replaced before its hand-off: its row was written at that moment.
        arrived_s = _steady_s(servo, handoff_ns) if handoff_ns > 0 else float(chunks["t_s"][row])
        arrives_s = arrived_s - begun_s
        if captured_s > duration_s or (out and captured_s < out[-1].captures_s[0]):
            continue
        if out and arrives_s < out[-1].arrives_s:
            arrives_s = out[-1].arrives_s
        out.append(
            PlannedChunk(
                captures_s=(captured_s,),
                lookahead_s=float(chunks["start_ns"][row] - captured_ns) * 1e-9,
                arrives_s=max(arrives_s, captured_s),
            )
        )
    return tuple(out)


def planned_from_row(rows: Sequence[Sequence[float]]) -> tuple[PlannedChunk, ...]:
    """Read the `chunks` of `StackEpisode.row`.

    Raises:
        UserError: not in the form that `row` writes.
    """
    try:
        return tuple(
            PlannedChunk(captures_s=(float(a),), lookahead_s=float(b), arrives_s=float(c))
            for a, b, c in rows
        )
    except (TypeError, ValueError) as error:
        reason = "is not [capture, lookahead, arrival] per chunk"
        raise UserError("chunks", str(rows)[:60], reason) from error


def _begun_s(arm: RowTable) -> float:
    """Steady time of the first accepted trajectory."""
    under_way = np.flatnonzero(arm["task_t_s"] > 0.0)
    if not under_way.size:
        raise UserError("run", "arm.rows", "no trajectory reached the robot")
    first = under_way[0]
    return float(arm["t_s"][first] - arm["task_t_s"][first])


def _steady_s(servo: RowTable, stamp_ns: float) -> float:
    index = int(np.clip(np.searchsorted(servo["ros_ns"], stamp_ns), 0, servo.rows - 1))
    return float(servo["t_s"][index]) + (stamp_ns - float(servo["ros_ns"][index])) * 1e-9
