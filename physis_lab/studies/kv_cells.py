"""The runs of the noisy-against-clean study, and the pace that equal hardware would allow. Pure.

A cell is one setting of one checkpoint in the fast closed loop. A cell that appears in several
tables is run once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from physis_core.types import KVMode

Schedule = Literal["pipelined noisy", "sequential noisy", "pipelined clean"]
SCHEDULES: tuple[Schedule, ...] = ("pipelined noisy", "sequential noisy", "pipelined clean")

STEPS = (1, 2, 4, 8)
WINDOWS = (1, 2, 4, 8)
PERIODS_S = (0.1, 0.2, 0.3)
RESPONSES_S = (0.1, 0.2, 0.4)
"""Time of one chunk through all its stages, without hops between devices."""

DENOISING_STEPS = 4
WINDOW_CHUNKS = 8
PERIOD_S = 0.1
RESPONSE_S = 0.15
HOP_S = 0.001
"""One hop between devices; longer than a link between two processes takes for such a chunk."""
TICK_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """`trained` names the checkpoint, `kv` how it is run; a chunk every `period_s`."""

    trained: KVMode
    kv: KVMode
    steps: int = DENOISING_STEPS
    window_chunks: int = WINDOW_CHUNKS
    period_s: float = PERIOD_S
    response_s: float = RESPONSE_S

    @property
    def name(self) -> str:
        """Name of its result file."""
        times = f"p{1e3 * self.period_s:.0f}_r{1e3 * self.response_s:.0f}"
        return f"{self.trained}_as_{self.kv}_d{self.steps}_w{self.window_chunks}_{times}"


def pace(schedule: Schedule, *, stages: int, response_s: float) -> tuple[float, float]:
    """The shortest output interval and the response latency of a schedule.

    All stages take t = `response_s` / `stages`, and each schedule gets as many devices as it can
    use. `pipelined noisy`: a device per stage, so a chunk every t and a hop between stages.
    `sequential noisy`: one device runs all stages of a chunk: a chunk every `stages` * t, no hops.
    `pipelined clean`: chunk c + 1 begins when the rerun of chunk c at level 0 has left the first
    block, after `stages` + 1 stages and as many hops.
    """
    stage_s = response_s / stages
    hops_s = (stages - 1) * HOP_S
    if schedule == "sequential noisy":
        return stages * stage_s, response_s
    if schedule == "pipelined noisy":
        return stage_s, response_s + hops_s
    # From the last stage of step D - 1 the chunk goes on to the first block of the rerun.
    return (stages + 1) * stage_s + hops_s + HOP_S, response_s + hops_s


def hardware_cells(response_s: float, blocks: int) -> dict[Schedule, tuple[Cell, ...]]:
    """The cells of each schedule where all stages of a chunk take `response_s`.

    No period is below PERIOD_S, the one of training. Where it is above, there is a second cell
    without history, because history may mislead at gaps of another length.
    """
    out: dict[Schedule, tuple[Cell, ...]] = {}
    for schedule in SCHEDULES:
        kv: KVMode = "clean" if schedule == "pipelined clean" else "noisy"
        interval_s, whole_s = pace(schedule, stages=DENOISING_STEPS * blocks, response_s=response_s)
        period_s = max(PERIOD_S, on_tick(interval_s))
        windows: Sequence[int] = (WINDOW_CHUNKS,) if period_s <= PERIOD_S else (WINDOW_CHUNKS, 1)
        out[schedule] = tuple(
            Cell(
                trained=kv,
                kv=kv,
                window_chunks=window,
                period_s=period_s,
                response_s=on_tick(whole_s),
            )
            for window in windows
        )
    return out


def on_tick(time_s: float) -> float:
    """The first servo tick at or after `time_s`."""
    return round(math.ceil(time_s / TICK_S - 1e-6) * TICK_S, 6)


def own_cells(**changes: float) -> tuple[Cell, Cell]:
    """Each checkpoint run as it was trained."""
    return (
        Cell(trained="noisy", kv="noisy", **changes),  # type: ignore[arg-type]
        Cell(trained="clean", kv="clean", **changes),  # type: ignore[arg-type]
    )


def crossed_cells() -> tuple[Cell, Cell]:
    """Each checkpoint run in the other KV mode."""
    return Cell(trained="noisy", kv="clean"), Cell(trained="clean", kv="noisy")


def all_cells(blocks: int) -> list[Cell]:
    """Every cell of the study, each once, the most important first."""
    cells = [*own_cells(), *crossed_cells()]
    for steps in STEPS:
        cells += own_cells(steps=steps)
    for window in WINDOWS:
        cells += own_cells(window_chunks=window)
    for response_s in RESPONSES_S:
        for group in hardware_cells(response_s, blocks).values():
            cells += group
    for period_s in PERIODS_S:
        cells += own_cells(period_s=period_s)
    return list(dict.fromkeys(cells))
