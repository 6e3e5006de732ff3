"""The Pareto front and the period table as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from physis_core.observe.plots import save


def plot_tables(models: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Interval and response over device count, and what an output costs, one line per model."""
    figure = Figure(figsize=(11, 4), layout="constrained")
    axes: Any = figure.subplots(1, 3)
    panels = (
        ("output_interval_p99_ms", "output interval, p99 [ms]"),
        ("response_latency_ms", "response latency [ms]"),
        ("device_seconds_per_output", "device-seconds per on-time output"),
    )
    for name, model in models.items():
        rows = sorted(model["table"], key=lambda row: row["devices"])
        for axis, (field, _) in zip(axes, panels):
            style = "o" if model["pareto"] else "-"
            axis.plot(
                [r["devices"] for r in rows], [r[field] for r in rows], style, ms=3, label=name
            )
    for axis, (_, label) in zip(axes, panels):
        axis.set_xlabel("devices of one stream")
        axis.set_ylabel(label)
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False, fontsize="small")
    save(figure, path)
