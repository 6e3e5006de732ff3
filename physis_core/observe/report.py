"""The time part of a run's report: from the buffer's logs to samples, and to figures. Pure.

Interval, latency and age stand side by side and are never merged. Percentiles of several runs are
those of all their samples, never of the runs' percentiles. `tables` prints a report.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from physis_core.observe.percentiles import percentiles_of
from physis_core.observe.rowlog import Column, RowTable

NS_PER_MS = 1e6

BUFFER_CHUNK_COLUMNS: Mapping[str, str] = {
    "t_s": "s steady",
    "epoch": "1",
    "chunk_id": "1",
    "exit_ns": "ns ROS",
    "capture_oldest_ns": "ns ROS",
    "capture_newest_ns": "ns ROS",
    "receipt_ns": "ns ROS",
    "entry_ns": "ns ROS",
    "deadline_ns": "ns ROS",
    "start_ns": "ns ROS",
    "handoff_ns": "ns ROS, 0 where never commanded",
    "accepted": "0/1",
}
BUFFER_SERVO_COLUMNS: Mapping[str, str] = {
    "t_s": "s steady",
    "ros_ns": "ns ROS",
    "age_ms": "ms, NaN in an underrun",
    "epoch": "1",
    "chunk_id": "1",
    "depth_s": "s",
    "underrun": "0/1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTables:
    """The logs of one run.

    chunks: one row per chunk that reached the buffer (columns of BUFFER_CHUNK_COLUMNS).
    servo: one row per servo tick of the buffer (columns of BUFFER_SERVO_COLUMNS).
    """

    chunks: RowTable
    servo: RowTable


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunSamples:
    """Samples of the steady state, in milliseconds, and its counts."""

    interval_ms: Column
    response_ms: Column
    age_handoff_ms: Column
    age_servo_ms: Column
    capture_ms: Column
    queue_ms: Column
    handoff_ms: Column
    elapsed_s: float
    chunks: int
    replans: int
    played: int
    """Servo ticks that had a valid point."""
    underruns: int
    deadline_misses: int


def deadline_misses_s(chunks: RowTable, *, from_s: float, until_s: float = math.inf) -> Column:
    """When the chunks came that were completed after their deadline (steady clock), in the log's
    order. A chunk that the buffer did not accept counts too."""
    steady = (chunks["t_s"] >= from_s) & (chunks["t_s"] <= until_s)
    return np.asarray(chunks["t_s"][steady & (chunks["exit_ns"] > chunks["deadline_ns"])])


def underruns_s(servo: RowTable, *, from_s: float, until_s: float = math.inf) -> Column:
    """The servo ticks without a valid point (steady clock)."""
    steady = (servo["t_s"] >= from_s) & (servo["t_s"] <= until_s)
    return np.asarray(servo["t_s"][steady & (servo["underrun"] > 0)])


def samples_of(
    chunks: RowTable, servo: RowTable, *, from_s: float, until_s: float = math.inf
) -> RunSamples:
    """The samples of the buffer's logs from `from_s` to `until_s` (steady clock)."""
    steady_chunk = (chunks["t_s"] >= from_s) & (chunks["t_s"] <= until_s)
    steady_servo = (servo["t_s"] >= from_s) & (servo["t_s"] <= until_s)
    taken = steady_chunk & (chunks["accepted"] > 0)
    handed = taken & (chunks["handoff_ns"] > 0)

    def ms(newer: str, older: str, rows: npt.NDArray[np.bool_]) -> Column:
        return np.asarray((chunks[newer][rows] - chunks[older][rows]) / NS_PER_MS)

    exits = chunks["exit_ns"][taken]
    epochs = chunks["epoch"][taken]
    same_epoch = epochs[1:] == epochs[:-1]
    captures = chunks["capture_oldest_ns"][taken]
    played = steady_servo & (servo["underrun"] == 0)
    return RunSamples(
        interval_ms=np.diff(exits)[same_epoch] / NS_PER_MS,
        response_ms=ms("exit_ns", "entry_ns", taken),
        age_handoff_ms=ms("handoff_ns", "capture_oldest_ns", handed),
        age_servo_ms=servo["age_ms"][played],
        capture_ms=ms("receipt_ns", "capture_oldest_ns", taken),
        queue_ms=ms("entry_ns", "receipt_ns", taken),
        handoff_ms=ms("handoff_ns", "exit_ns", handed),
        elapsed_s=float(np.ptp(servo["t_s"][steady_servo])) if steady_servo.any() else math.nan,
        chunks=int(np.count_nonzero(taken)),
        replans=int(np.count_nonzero(np.diff(captures) > 0)) if captures.size else 0,
        played=int(np.count_nonzero(played)),
        underruns=underruns_s(servo, from_s=from_s, until_s=until_s).size,
        deadline_misses=deadline_misses_s(chunks, from_s=from_s, until_s=until_s).size,
    )


def pooled(runs: Sequence[RunSamples]) -> RunSamples:
    """All samples of all runs; counts and durations are sums. `runs` must not be empty."""
    total: dict[str, Any] = {}
    for field in fields(RunSamples):
        values = [getattr(run, field.name) for run in runs]
        total[field.name] = (
            np.concatenate(values) if isinstance(values[0], np.ndarray) else sum(values)
        )
    return RunSamples(**total)


def time_figures(samples: RunSamples, *, sensor_hz: float) -> dict[str, Any]:
    """Intervals, latency, ages, rates and misses, under the names that every report uses."""

    def rate_hz(count: int) -> float:
        return count / samples.elapsed_s if samples.elapsed_s else math.nan

    def percentiles(values: Column) -> dict[str, Any]:
        return asdict(percentiles_of(values))

    response_ms = percentiles(samples.response_ms)
    return {
        "output_interval_ms": percentiles(samples.interval_ms),
        "response_latency_ms": response_ms,
        "action_age_ms": {
            "handoff": percentiles(samples.age_handoff_ms),
            "servo": percentiles(samples.age_servo_ms),
        },
        "parts_ms": {
            "capture": percentiles(samples.capture_ms),
            "queue": percentiles(samples.queue_ms),
            "response": response_ms,
            "handoff": percentiles(samples.handoff_ms),
        },
        "rates_hz": {
            "sensor": sensor_hz,
            "replan": rate_hz(samples.replans),
            "chunk": rate_hz(samples.chunks),
            "servo": rate_hz(samples.played),
        },
        "deadline_misses": samples.deadline_misses,
        "underruns": samples.underruns,
        "chunks": samples.chunks,
    }


def build_report(
    tables: RunTables,
    *,
    sensor_hz: float,
    task: Mapping[str, Any],
    safety: Mapping[str, Any],
    config: Mapping[str, Any],
    machine: Mapping[str, Any],
    warmup_s: float,
    dropped: int,
) -> dict[str, Any]:
    """The JSON object that `demo` and `eval` write.

    `warmup_s`: seconds from the start of the servo log until the steady state; what lies before is
    counted in `warmup_s` alone and left out of every percentile and rate.
    """
    chunks, servo = tables.chunks, tables.servo
    origin_s = float(servo["t_s"][0]) if servo.rows else math.nan
    return {
        **time_figures(samples_of(chunks, servo, from_s=origin_s + warmup_s), sensor_hz=sensor_hz),
        "dropped": dropped,
        "warmup_s": warmup_s,
        "task": dict(task),
        "safety": dict(safety),
        "config": dict(config),
        "machine": dict(machine),
    }
