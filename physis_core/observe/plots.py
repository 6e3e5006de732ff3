"""Pictures of a run, a plan and a simulation, drawn without a screen."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from physis_core.observe.report import RunTables, deadline_misses_s, underruns_s
from physis_core.observe.rowlog import RowTable

Column = npt.NDArray[np.float64]

# Colour-blind safe (Okabe and Ito); each has the same meaning in every picture.
INTERVAL, AGE, MISS, UNDERRUN, ERROR, STILL = (
    "#0072B2", "#D55E00", "#CC79A7", "#000000", "#009E73", "#999999",
)  # fmt: skip


def save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure).print_figure(path, dpi=110)


def plot_run(
    tables: RunTables, arm: RowTable | None, path: Path, *, period_ms: float, warmup_s: float
) -> None:
    """Draw `run_figure` into a file."""
    save(run_figure(tables, arm, period_ms=period_ms, warmup_s=warmup_s), path)


def run_figure(
    tables: RunTables, arm: RowTable | None, *, period_ms: float, warmup_s: float
) -> Figure:
    """Output interval, age at servo ticks, misses and underruns, tracking error, over time.

    `arm` has columns t_s, error_m, still_error_m on the same steady clock; None leaves the last
    panel out. Time 0 is the start of the servo log, as in the report: the first `warmup_s` are grey
    and nothing of them is counted.
    """
    chunks, servo = tables.chunks, tables.servo
    panels = 3 if arm is None else 4
    figure = Figure(figsize=(11, 2.2 * panels + 0.8), layout="constrained")
    axes: Any = figure.subplots(panels, 1, sharex=True)
    origin_s = float(servo["t_s"][0])
    steady_s = origin_s + warmup_s
    taken = chunks["accepted"] > 0
    chunk_t = chunks["t_s"][taken] - origin_s
    exits = chunks["exit_ns"][taken]
    same_epoch = np.diff(chunks["epoch"][taken]) == 0
    interval = np.diff(exits) / 1e6

    axes[0].plot(chunk_t[1:][same_epoch], interval[same_epoch], ".", ms=4, color=INTERVAL)
    axes[0].axhline(period_ms, color="0.6", lw=0.8, label=f"period {period_ms:g} ms")
    axes[0].set_ylabel("output\ninterval [ms]")
    axes[0].set_ylim(bottom=0)
    axes[0].legend(loc="upper right", frameon=False)
    axes[0].set_title(
        "Interval: time between chunks. Age: how old the command is that moves the robot.",
        loc="left", fontsize=10,
    )  # fmt: skip

    servo_t = servo["t_s"] - origin_s
    axes[1].plot(servo_t, servo["age_ms"], lw=0.8, color=AGE)
    axes[1].set_ylabel("action age at\nservo tick [ms]")
    axes[1].set_ylim(bottom=0)

    miss_t = np.sort(deadline_misses_s(chunks, from_s=steady_s) - origin_s)
    under_t = np.sort(underruns_s(servo, from_s=steady_s) - origin_s)
    end_s = float(servo_t[-1])
    for times, colour, label in (
        (miss_t, MISS, f"deadline misses ({miss_t.size})"),
        (under_t, UNDERRUN, f"underruns ({under_t.size})"),
    ):
        steps_t = np.concatenate(([0.0], times, [end_s]))
        count = np.concatenate(([0], np.arange(1, times.size + 1), [times.size]))
        axes[2].step(steps_t, count, where="post", color=colour, label=label)
    axes[2].set_ylabel("count\nso far")
    axes[2].set_ylim(bottom=0)
    axes[2].legend(loc="upper left", frameon=False)

    if arm is not None:
        arm_t = arm["t_s"] - origin_s
        axes[3].plot(arm_t, 1e3 * arm["still_error_m"], lw=1, color=STILL, label="standing still")
        axes[3].plot(arm_t, 1e3 * arm["error_m"], lw=1.2, color=ERROR, label="this arm")
        axes[3].set_ylabel("tracking\nerror [mm]")
        axes[3].set_ylim(bottom=0)
        axes[3].legend(loc="upper right", frameon=False)
    for axis in axes:
        axis.axvspan(0, warmup_s, color="0.93", zorder=-1)
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1].set_xlabel(f"time [s]   (grey: the first {warmup_s:.1f} s, left out of the report)")
    axes[-1].set_xlim(0, end_s)
    return figure


def plot_plan(models: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Interval, response and cost of an output over the number of devices, one line per model."""
    figure = Figure(figsize=(11, 4), layout="constrained")
    axes: Any = figure.subplots(1, 3)
    panels = (
        ("output_interval_p99_ms", "output interval, p99 [ms]"),
        ("response_latency_ms", "response latency [ms]"),
        ("device_seconds_per_output", "device-seconds per on-time output"),
    )
    for name, model in models.items():
        rows = sorted(model["table"], key=lambda row: row["devices"])
        devices = [row["devices"] for row in rows]
        style = "o" if model["pareto"] else "-"
        for axis, (field, _) in zip(axes, panels):
            axis.plot(devices, [row[field] for row in rows], style, ms=3, label=name)
    for axis, (_, label) in zip(axes, panels):
        axis.set(xlabel="devices of one stream", ylabel=label, xscale="log", yscale="log")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False, fontsize="small")
    save(figure, path)


def plot_simulation(outcome: Mapping[str, Any], path: Path) -> None:
    """Percentiles of each stream's interval, each device's load, and fragmentation over time."""
    figure = Figure(figsize=(11, 7), layout="constrained")
    axes: Any = figure.subplots(3, 1)
    streams = [s for s in outcome["streams"] if s["period_ms"] is not None and s["chunks"] > 1]
    position = range(len(streams))
    for field, marker in (("p50", "."), ("p99", "_"), ("p999", "x"), ("max", "+")):
        values = [s["output_interval_ms"][field] / s["period_ms"] for s in streams]
        axes[0].plot(position, values, marker, label=field)
    axes[0].axhline(1.0, color="0.6", lw=0.8)
    axes[0].set(xlabel="stream", ylabel="output interval\nover period")
    axes[0].legend(frameon=False, ncols=4, fontsize="small")
    devices = outcome["devices"]
    axes[1].bar([d["device"] for d in devices], [100 * d["busy_share"] for d in devices])
    axes[1].set(xlabel="device", ylabel="busy [%]")
    history = outcome["fragmentation"]
    times = [f["at_s"] for f in history]
    for field in ("stranded_memory", "stranded_time"):
        axes[2].step(times, [100 * f[field] for f in history], where="post", label=field)
    axes[2].set(xlabel="simulated time [s]", ylabel="free but unusable\n[% of the pool]")
    axes[2].legend(frameon=False, fontsize="small")
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    save(figure, path)
