"""The report of a run: what came out, how often, how old, how late, and what the arm did with it.

Pure: tables in, one plain object out. Interval, latency and age stand side by side and are never
merged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from physis_core.observe.rowlog import RowTable
from physis_core.observe.run_samples import samples_of, time_figures


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
    return {
        **time_figures(samples_of(chunks, servo, from_s=origin_s + warmup_s), sensor_hz=sensor_hz),
        "dropped": dropped,
        "warmup_s": warmup_s,
        "task": dict(task),
        "safety": dict(safety),
        "config": dict(config),
        "machine": dict(machine),
    }


def print_report(report: Mapping[str, Any], console: Console) -> None:
    """The report as a person reads it: every number with its meaning."""
    print_times(report, console)
    for title, part in (("Task", report["task"]), ("Safety", report["safety"])):
        console.print(
            f"{title}: " + ", ".join(f"{k} {_short(v)}" for k, v in part.items()),
            markup=False,
            highlight=False,
        )


def print_times(report: Mapping[str, Any], console: Console) -> None:
    """The part that speaks of time: percentiles, rates, misses."""
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


def _short(value: object) -> str:
    if isinstance(value, Mapping):
        return " / ".join(f"{k} {_short(v)}" for k, v in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)
