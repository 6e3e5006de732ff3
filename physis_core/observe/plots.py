"""Pictures of a run, drawn without a screen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from physis_core.observe.report import RunTables
from physis_core.observe.rowlog import RowTable

Column = npt.NDArray[np.float64]

LEAD_S = 2.0

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
    """Output interval, age at servo ticks, misses and underruns, tracking error, over time.

    `arm` has columns t_s, error_m, still_error_m on the same steady clock; None leaves the last
    panel out. Starts LEAD_S before the first commanded point.
    """
    chunks, servo = tables.chunks, tables.servo
    panels = 3 if arm is None else 4
    figure = Figure(figsize=(11, 2.2 * panels + 0.8), layout="constrained")
    axes: Any = figure.subplots(panels, 1, sharex=True)
    played = np.flatnonzero(servo["underrun"] == 0)
    first_s = float(servo["t_s"][played[0]] if played.size else servo["t_s"][0])
    origin_s = max(first_s - LEAD_S, float(servo["t_s"][0]))
    warmup_s -= origin_s - float(servo["t_s"][0])
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

    missed = taken & (chunks["exit_ns"] > chunks["deadline_ns"])
    miss_t = np.sort(chunks["t_s"][missed] - origin_s)
    # Before the first point there was nothing to run out.
    under_t = np.sort(servo_t[(servo["underrun"] > 0) & (servo["t_s"] >= first_s)])
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
    axes[-1].set_xlabel("time [s]   (grey: warm-up, left out of the report)")
    axes[-1].set_xlim(0, end_s)
    save(figure, path)
