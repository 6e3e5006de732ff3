"""One picture of a simulated run: intervals, device load, fragmentation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


def plot_run(outcome: Mapping[str, Any], path: Path) -> None:
    """Per stream the interval's percentiles over its period; per device its load; fragmentation
    over time.
    """
    figure = Figure(figsize=(11, 7), layout="constrained")
    axes: Any = figure.subplots(3, 1)
    streams = [s for s in outcome["streams"] if s["period_ms"] is not None and s["chunks"] > 1]
    position = range(len(streams))
    for field, marker in (("p50", "."), ("p99", "_"), ("p999", "x"), ("max", "+")):
        values = [s["output_interval_ms"][field] / s["period_ms"] for s in streams]
        axes[0].plot(position, values, marker, label=field)
    axes[0].axhline(1.0, color="0.6", lw=0.8)
    axes[0].set_xlabel("stream")
    axes[0].set_ylabel("output interval\nover period")
    axes[0].legend(frameon=False, ncols=4, fontsize="small")
    devices = outcome["devices"]
    axes[1].bar([d["device"] for d in devices], [100 * d["busy_share"] for d in devices])
    axes[1].set_xlabel("device")
    axes[1].set_ylabel("busy [%]")
    history = outcome["fragmentation"]
    times = [f["at_s"] for f in history]
    for field in ("stranded_memory", "stranded_time"):
        axes[2].step(times, [100 * f[field] for f in history], where="post", label=field)
    axes[2].set_xlabel("simulated time [s]")
    axes[2].set_ylabel("free but of no use\n[% of the pool]")
    axes[2].legend(frameon=False, fontsize="small")
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure).print_figure(path, dpi=110)
