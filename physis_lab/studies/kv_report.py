"""Tables and picture of the noisy-against-clean study, from the results of its cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from physis_core.observe.plots import save
from physis_core.types import Array
from physis_lab.evaluation.intervals import mean_interval, paired_difference, wilson
from physis_lab.studies.kv_cells import (
    PERIODS_S,
    RESPONSES_S,
    SCHEDULES,
    STEPS,
    WINDOWS,
    Cell,
    crossed_cells,
    hardware_cells,
    own_cells,
)

Results = Mapping[str, Mapping[str, Any]]

NOISY, CLEAN, STILL, SEQUENTIAL = "#0072B2", "#D55E00", "#999999", "#009E73"
"""Colour-blind safe (Okabe and Ito)."""


def cell_figures(result: Mapping[str, Any]) -> dict[str, Any]:
    """Mean error with its 95% interval over episodes; success with Wilson's."""
    mean_m, ci95_m = mean_interval(np.array(result["errors_m"]))
    hits = sum(result["successes"])
    return {
        "error_m": mean_m,
        "error_ci95_m": ci95_m,
        "success": hits / len(result["successes"]),
        "success_ci95": list(wilson(hits, len(result["successes"]))),
    }


def difference(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, float]:
    """Ours - theirs over the same episodes: error, and success in points."""
    error_m, error_ci95_m = paired_difference(
        np.array(ours["errors_m"]), np.array(theirs["errors_m"])
    )
    points, points_ci95 = paired_difference(
        100.0 * np.array(ours["successes"], dtype=np.float64),
        100.0 * np.array(theirs["successes"], dtype=np.float64),
    )
    return {
        "error_m": error_m,
        "error_ci95_m": error_ci95_m,
        "success_points": points,
        "success_points_ci95": points_ci95,
    }


def found_of(results: Results, blocks: int) -> dict[str, Any]:
    """All figures of the study. `clean_minus_noisy` is paired by episode."""

    def pair(**changes: float) -> dict[str, Any]:
        noisy, clean = (results[cell.name] for cell in own_cells(**changes))
        return {
            "noisy": cell_figures(noisy),
            "clean": cell_figures(clean),
            "clean_minus_noisy": difference(clean, noisy),
        }

    base = results[own_cells()[0].name]
    drifts: dict[str, Any] = {
        kv: {**results[f"drift_{kv}"], "trend": trend(results[f"drift_{kv}"])}
        for kv in ("noisy", "clean")
    }
    return {
        "still_m": float(np.mean(base["still_m"])),
        "steps": {str(n): pair(steps=n) for n in STEPS},
        "window": {str(n): pair(window_chunks=n) for n in WINDOWS},
        "period_s": {str(x): pair(period_s=x) for x in PERIODS_S},
        "crossed": {
            f"{cell.trained} run {cell.kv}": cell_figures(results[cell.name])
            for cell in crossed_cells()
        },
        "equal_hardware": {str(r): _hardware(results, r, blocks) for r in RESPONSES_S},
        "drift": drifts,
    }


def _hardware(results: Results, response_s: float, blocks: int) -> dict[str, Any]:
    chosen: dict[str, tuple[Cell, Mapping[str, Any]]] = {}
    for schedule, cells in hardware_cells(response_s, blocks).items():
        # With or without history, whichever has the smaller error: a user would choose that.
        best = min(cells, key=lambda cell: float(np.mean(results[cell.name]["errors_m"])))
        chosen[schedule] = (best, results[best.name])
    ours = chosen["pipelined noisy"][1]
    return {
        schedule: {
            "period_s": cell.period_s,
            "response_s": cell.response_s,
            "window_chunks": cell.window_chunks,
            **cell_figures(result),
            "minus_pipelined_noisy": difference(result, ours),
        }
        for schedule, (cell, result) in chosen.items()
    }


def trend(drift: Mapping[str, Any]) -> dict[str, float]:
    """Last half over first half of a drift run: 1 means no drift.

    Errors are relative to those of an arm that does not move, because the ball's speed varies.
    """
    relative = np.array(drift["error_m"]) / np.array(drift["still_m"])
    half = max(1, len(relative) // 2)
    spread = np.array(drift["command_std_rad"])
    return {
        "error_late_over_early": float(relative[-half:].mean() / relative[:half].mean()),
        "command_std_late_over_early": float(spread[-half:].mean() / spread[:half].mean()),
    }


def print_tables(found: Mapping[str, Any]) -> None:
    print(f"standing still {1e3 * found['still_m']:.1f} mm; errors in mm, 95% over episodes")
    for group, title in (
        ("steps", "denoising steps D"),
        ("window", "window (chunks)"),
        ("period_s", "a chunk every (s)"),
    ):
        print(f"{title:>18s} {'noisy':>21s} {'clean':>21s} {'clean - noisy':>17s}")
        for key, row in found[group].items():
            apart = row["clean_minus_noisy"]
            print(
                f"{key:>18s} {_cell_text(row['noisy'])} {_cell_text(row['clean'])}"
                f" {1e3 * apart['error_m']:8.1f} +-{1e3 * apart['error_ci95_m']:5.1f}"
            )
    for name, figures in found["crossed"].items():
        print(f"{name:>18s} {_cell_text(figures)}")
    for response, schedules in found["equal_hardware"].items():
        for schedule, row in schedules.items():
            apart = row["minus_pipelined_noisy"]
            print(
                f"a chunk takes {response} s, {schedule:16s}: every {row['period_s']:.2f} s,"
                f" response {row['response_s']:.2f} s, window {row['window_chunks']}:"
                f" {_cell_text(row)}"
                f" ({apart['success_points']:+.1f} points)"
            )
    for kv, run in found["drift"].items():
        print(
            f"{run['chunks']} chunks, {kv}: error per part "
            + " ".join(f"{1e3 * x:.1f}" for x in run["error_m"])
            + f" mm; late over early {run['trend']['error_late_over_early']:.2f}, commands' spread"
            f" {run['trend']['command_std_late_over_early']:.2f}"
        )


def _cell_text(figures: Mapping[str, Any]) -> str:
    return (
        f"{1e3 * figures['error_m']:7.1f} +-{1e3 * figures['error_ci95_m']:5.1f}"
        f" {figures['success']:5.2f}"
    )


def draw(path: Path, found: Mapping[str, Any]) -> None:
    """Error over D, window, period and hardware; drift."""
    figure = Figure(figsize=(12, 6.6), layout="constrained")
    axes: Any = figure.subplots(2, 3)
    for axis, (group, label) in zip(
        axes.flat,
        (
            ("steps", "denoising steps D"),
            ("window", "window [chunks]"),
            ("period_s", "a chunk every [s]"),
        ),
        strict=False,
    ):
        at = np.arange(len(found[group]))
        for kv, colour, aside in (("noisy", NOISY, -0.06), ("clean", CLEAN, 0.06)):
            rows = [row[kv] for row in found[group].values()]
            _bars(axis, at + aside, rows, f"{kv} KV", colour)
        axis.set_xticks(at, list(found[group]))
        axis.set_xlabel(label)
    axes[0, 0].legend(frameon=False)
    _draw_hardware(axes[1, 0], axes[1, 1], found["equal_hardware"])
    drift = axes[1, 2]
    for kv, colour in (("noisy", NOISY), ("clean", CLEAN)):
        run = found["drift"][kv]
        part = run["chunks"] / len(run["error_m"])
        at = part * (0.5 + np.arange(len(run["error_m"])))
        drift.plot(at, 1e3 * np.array(run["error_m"]), "o-", ms=4, color=colour, label=f"{kv} KV")
    drift.set_xlabel("chunk of one stream")
    drift.set_ylabel("mean error [mm]")
    drift.legend(frameon=False)
    for axis in axes.flat:
        if axis is not axes[1, 1]:
            axis.set_ylim(0.0, 1.08 * axis.dataLim.y1)
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    save(figure, path)


def _draw_hardware(error: Any, success: Any, rows: Mapping[str, Any]) -> None:
    at = np.arange(len(rows))
    colours = dict(zip(SCHEDULES, (NOISY, SEQUENTIAL, CLEAN), strict=True))
    for number, schedule in enumerate(SCHEDULES):
        beside = at + 0.08 * (number - 1)
        figures = [row[schedule] for row in rows.values()]
        _bars(error, beside, figures, schedule, colours[schedule])
        share = np.array([f["success"] for f in figures])
        low, high = np.array([f["success_ci95"] for f in figures]).T
        # At 0 and 1 Wilson's bound equals the share; rounding may put it on the wrong side.
        apart = np.maximum(0.0, [share - low, high - share])
        success.errorbar(
            beside, share, yerr=apart, fmt="o", ms=4, capsize=2, color=colours[schedule]
        )
    error.legend(frameon=False, fontsize=8)
    for axis in (error, success):
        axis.set_xticks(at, list(rows))
        axis.set_xlabel("a chunk through all stages takes [s]")
    success.set_ylabel("success")
    success.set_ylim(-0.03, 1.03)


def _bars(
    axis: Any, at: Array, figures: Sequence[Mapping[str, Any]], label: str, colour: str
) -> None:
    axis.errorbar(
        at,
        [1e3 * f["error_m"] for f in figures],
        yerr=[1e3 * f["error_ci95_m"] for f in figures],
        fmt="o-",
        ms=4,
        lw=1.0,
        capsize=2,
        color=colour,
        label=label,
    )
    axis.set_ylabel("mean error [mm]")
