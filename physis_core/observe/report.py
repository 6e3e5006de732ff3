"""The report of a run: what came out, how often, how old, how late, and what the arm did with it.

Pure: tables in, one plain object out. Interval, latency and age stand side by side and are never
merged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from physis_core.observe.percentiles import percentiles_of
from physis_core.observe.rowlog import RowTable

Column = npt.NDArray[np.float64]
Rows = npt.NDArray[np.bool_]
NS_PER_MS = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTables:
    """The logs of one run.

    chunks: one row per chunk that reached the buffer (columns of BUFFER_CHUNK_COLUMNS).
    servo: one row per servo tick of the buffer (columns of BUFFER_SERVO_COLUMNS).
    """

    chunks: RowTable
    servo: RowTable


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
    """The JSON object of DESIGN section 8.

    `warmup_s`: seconds from the start of the servo log until the steady state; what lies before is
    counted in `warmup_s` alone and left out of every percentile and rate.
    """
    chunks, servo = tables.chunks, tables.servo
    origin_s = float(servo["t_s"][0]) if servo.rows else math.nan
    steady_chunk = chunks["t_s"] >= origin_s + warmup_s
    steady_servo = servo["t_s"] >= origin_s + warmup_s
    taken = steady_chunk & (chunks["accepted"] > 0)
    handed = taken & (chunks["handoff_ns"] > 0)

    def ms(newer: str, older: str, rows: Rows) -> Column:
        return np.asarray((chunks[newer][rows] - chunks[older][rows]) / NS_PER_MS)

    elapsed_s = float(np.ptp(servo["t_s"][steady_servo])) if steady_servo.any() else math.nan
    exits = chunks["exit_ns"][taken]
    epochs = chunks["epoch"][taken]
    same_epoch = epochs[1:] == epochs[:-1]
    captures = chunks["capture_oldest_ns"][taken]
    replans = int(np.count_nonzero(np.diff(captures) > 0)) if captures.size else 0
    played = steady_servo & (servo["underrun"] == 0)
    missed = chunks["exit_ns"][steady_chunk] > chunks["deadline_ns"][steady_chunk]

    return {
        "output_interval_ms": _percentiles(np.diff(exits)[same_epoch] / NS_PER_MS),
        "response_latency_ms": _percentiles(ms("exit_ns", "entry_ns", taken)),
        "action_age_ms": {
            "handoff": _percentiles(ms("handoff_ns", "capture_oldest_ns", handed)),
            "servo": _percentiles(servo["age_ms"][played]),
        },
        "parts_ms": {
            "capture": _percentiles(ms("receipt_ns", "capture_oldest_ns", taken)),
            "queue": _percentiles(ms("entry_ns", "receipt_ns", taken)),
            "response": _percentiles(ms("exit_ns", "entry_ns", taken)),
            "handoff": _percentiles(ms("handoff_ns", "exit_ns", handed)),
        },
        "rates_hz": {
            "sensor": sensor_hz,
            "replan": replans / elapsed_s if elapsed_s else math.nan,
            "chunk": exits.size / elapsed_s if elapsed_s else math.nan,
            "servo": int(np.count_nonzero(played)) / elapsed_s if elapsed_s else math.nan,
        },
        "deadline_misses": int(np.count_nonzero(missed)),
        "underruns": int(np.count_nonzero(servo["underrun"][steady_servo])),
        "chunks": int(np.count_nonzero(taken)),
        "dropped": dropped,
        "warmup_s": warmup_s,
        "task": dict(task),
        "safety": dict(safety),
        "config": dict(config),
        "machine": dict(machine),
    }


def _percentiles(samples: Column) -> dict[str, Any]:
    return asdict(percentiles_of(samples))


def print_report(report: Mapping[str, Any], console: Console) -> None:
    """The report as a person reads it: every number with its meaning."""
    table = Table(title="Time, in milliseconds", title_justify="left")
    table.add_column("what")
    for heading in ("p50", "p99", "p99.9", "max", "samples"):
        table.add_column(heading, justify="right")
    age, parts = report["action_age_ms"], report["parts_ms"]
    rows = [
        ("output interval (between chunks; not a latency)", report["output_interval_ms"]),
        ("response latency (observation in, chunk out)", report["response_latency_ms"]),
        ("action age at hand-off", age["handoff"]),
        ("action age at every servo tick", age["servo"]),
        ("  part: capture (sensor stamp to receipt)", parts["capture"]),
        ("  part: queue (receipt to engine entry)", parts["queue"]),
        ("  part: response (entry to chunk exit)", parts["response"]),
        ("  part: handoff (exit to command out)", parts["handoff"]),
    ]
    for label, p in rows:
        table.add_row(label, *(f"{p[k]:.1f}" for k in ("p50", "p99", "p999", "max")), str(p["n"]))
    console.print(table)

    rates = report["rates_hz"]
    console.print(
        "Rates: "
        + ", ".join(
            f"{name} {rates[name]:.1f} Hz" for name in ("sensor", "replan", "chunk", "servo")
        )
    )
    console.print(
        f"Chunks {report['chunks']}, dropped {report['dropped']}, "
        f"deadline misses {report['deadline_misses']}, underruns {report['underruns']} "
        f"(after {report['warmup_s']:.1f} s of warm-up)"
    )
    task, safety = report["task"], report["safety"]
    console.print(
        "Task: " + ", ".join(f"{k} {_short(v)}" for k, v in task.items()),
        markup=False,
        highlight=False,
    )
    console.print(
        "Safety: " + ", ".join(f"{k} {_short(v)}" for k, v in safety.items()),
        markup=False,
        highlight=False,
    )


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
