"""The loss curve of a training run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np


def draw_curve(path: Path, losses: Sequence[tuple[float, float]]) -> None:
    """Losses (action, locate) per step, smoothed over 1 % of the run, as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    values = np.asarray(losses, dtype=np.float64)
    width = max(1, len(values) // 100)
    figure, axes = pyplot.subplots(figsize=(7, 4))
    for column, label in ((0, "action (joint std)²"), (1, "ball place (std)²")):
        smooth = np.convolve(values[:, column], np.ones(width) / width, mode="valid")
        axes.plot(np.arange(len(smooth)) + width, smooth, label=label)
    axes.set_yscale("log")
    axes.set_xlabel("step")
    axes.set_ylabel("mean square error")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
