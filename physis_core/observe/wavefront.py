"""A picture of the wave front: which stage worked on which chunk when."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from physis_core.observe.plots import save
from physis_core.observe.recorder import Tasks

COLOURS = 10
"""Chunks differ by colour and number; colours repeat after this many."""


def draw_wavefront(axes: Axes, tasks: Tasks, *, blocks: int, title: str) -> None:
    """One bar per task: rows are stages (step, block), colour and number identify the chunk.

    `tasks` [n] of `TASK_DTYPE`, of one stream. A task that shared a batch has a thick frame.
    """
    origin_s = float(tasks["start_s"].min())
    palette = colormaps["tab10"]
    stages = int(tasks["stage"].max()) + 1
    span_ms = 1e3 * float(tasks["end_s"].max() - origin_s)
    for task in tasks:
        left_ms = 1e3 * float(task["start_s"] - origin_s)
        width_ms = 1e3 * float(task["end_s"] - task["start_s"])
        chunk, stage = int(task["chunk"]), int(task["stage"])
        together = int(task["size"]) > 1
        axes.add_patch(
            Rectangle(
                (left_ms, stage - 0.42),
                width_ms,
                0.84,
                facecolor=palette(chunk % COLOURS),
                edgecolor="black" if together else "white",
                linewidth=1.2 if together else 0.4,
            )
        )
        if width_ms > span_ms / 60:
            axes.text(
                left_ms + width_ms / 2, stage, str(chunk), ha="center", va="center", fontsize=6.5
            )
    axes.set_xlim(0, span_ms)
    axes.set_ylim(stages - 0.4, -0.6)
    axes.set_yticks(range(stages), [f"({s // blocks}, {s % blocks})" for s in range(stages)])
    axes.tick_params(axis="y", labelsize=7)
    axes.set_ylabel("stage (step, block)")
    axes.set_title(title, loc="left", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)


def plot_wavefronts(
    panels: list[tuple[str, Tasks]], path: Path, *, blocks: int, from_chunk: int, chunks: int
) -> None:
    """One panel per trace, each with the chunks `from_chunk` .. `from_chunk + chunks - 1` whole."""
    rows = sum(int(tasks["stage"].max()) + 1 for _, tasks in panels)
    figure = Figure(figsize=(11, 0.24 * rows + 0.9 * len(panels)), layout="constrained")
    axes: Any = np.atleast_1d(figure.subplots(len(panels), 1))
    for axis, (title, tasks) in zip(axes, panels, strict=True):
        chosen = (tasks["chunk"] >= from_chunk) & (tasks["chunk"] < from_chunk + chunks)
        draw_wavefront(axis, tasks[chosen], blocks=blocks, title=title)
    axes[-1].set_xlabel("time [ms]")
    save(figure, path)
