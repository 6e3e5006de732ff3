"""What a run's logs say about time, as plain samples: of one run, or of several put together. Pure.

Percentiles of several runs are those of all their samples, never of the runs' percentiles.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from physis_core.observe.percentiles import percentiles_of
from physis_core.observe.rowlog import RowTable

Column = npt.NDArray[np.float64]
Rows = npt.NDArray[np.bool_]
NS_PER_MS = 1e6


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


def samples_of(
    chunks: RowTable, servo: RowTable, *, from_s: float, until_s: float = math.inf
) -> RunSamples:
    """The logs of physis_core.observe.report from `from_s` to `until_s` (steady clock)."""
    steady_chunk = (chunks["t_s"] >= from_s) & (chunks["t_s"] <= until_s)
    steady_servo = (servo["t_s"] >= from_s) & (servo["t_s"] <= until_s)
    taken = steady_chunk & (chunks["accepted"] > 0)
    handed = taken & (chunks["handoff_ns"] > 0)

    def ms(newer: str, older: str, rows: Rows) -> Column:
        return np.asarray((chunks[newer][rows] - chunks[older][rows]) / NS_PER_MS)

    exits = chunks["exit_ns"][taken]
    epochs = chunks["epoch"][taken]
    same_epoch = epochs[1:] == epochs[:-1]
    captures = chunks["capture_oldest_ns"][taken]
    played = steady_servo & (servo["underrun"] == 0)
    missed = chunks["exit_ns"][steady_chunk] > chunks["deadline_ns"][steady_chunk]
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
        underruns=int(np.count_nonzero(servo["underrun"][steady_servo])),
        deadline_misses=int(np.count_nonzero(missed)),
    )


def pooled(runs: Sequence[RunSamples]) -> RunSamples:
    """All samples of all runs; counts and durations are sums. `runs` must not be empty."""
    put_together: dict[str, Any] = {}
    for field in fields(RunSamples):
        values = [getattr(run, field.name) for run in runs]
        if isinstance(values[0], np.ndarray):
            put_together[field.name] = np.concatenate(values)
        else:
            put_together[field.name] = sum(values)
    return RunSamples(**put_together)


def time_figures(samples: RunSamples, *, sensor_hz: float) -> dict[str, Any]:
    """The parts of a report (DESIGN section 8) that speak of time, from interval to misses."""

    def rate_hz(count: int) -> float:
        return count / samples.elapsed_s if samples.elapsed_s else math.nan

    return {
        "output_interval_ms": _percentiles(samples.interval_ms),
        "response_latency_ms": _percentiles(samples.response_ms),
        "action_age_ms": {
            "handoff": _percentiles(samples.age_handoff_ms),
            "servo": _percentiles(samples.age_servo_ms),
        },
        "parts_ms": {
            "capture": _percentiles(samples.capture_ms),
            "queue": _percentiles(samples.queue_ms),
            "response": _percentiles(samples.response_ms),
            "handoff": _percentiles(samples.handoff_ms),
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


def _percentiles(values: Column) -> dict[str, Any]:
    return asdict(percentiles_of(values))
