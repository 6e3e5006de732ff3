"""The fast loop beside the real stack: the same seeds, with the delays that the stack measured.

Three fast runs of each episode:

    own delays     each chunk is captured when the stack's was, is told what that one was told, and
                   reaches the buffer's timeline when that one did
    medians        a chunk every period, all with the run's median delays: what somebody knows who
                   has only a report
    other noise    as `own delays`, with another noise of the model: what differs between two runs
                   of one and the same loop, the yardstick of the others
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from physis_core.observe.jerk import rms_jerk
from physis_core.types import Array
from physis_lab.arm.camera import Camera
from physis_lab.arm.kinematics import Kinematics
from physis_lab.arm.scene import build_model
from physis_lab.evaluation.chunk_execution import Player
from physis_lab.evaluation.chunk_schedule import PlannedChunk, periodic
from physis_lab.evaluation.closed_loop import (
    RENDER_SIZE,
    ClosedLoopConfig,
    ModelPolicy,
    run_recorded,
    still_errors,
    tick_times,
)
from physis_lab.evaluation.intervals import mean_interval, paired_difference
from physis_lab.tasks.task import make_task

WAYS = ("own delays", "medians", "other noise")
OTHER_NOISE = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One episode as both sides are compared: its mean error, success and jerk."""

    seed: int
    error_m: float
    success: bool
    jerk_measured: float


def compare(
    stack: Sequence[Played],
    planned: Mapping[int, Sequence[PlannedChunk]],
    *,
    checkpoint: Path,
    task: str,
    duration_s: float,
    settle_s: float,
    period_s: float,
    player: Callable[[Array], Player],
    advance: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Play every episode of `stack` in the fast loop, each of WAYS; `planned` by seed.

    Returns, by way: error_m and its 95% half width, success, jerk, and the paired differences
    stack - fast with their 95% half widths.
    """
    delays = medians(list(planned.values()))
    found: dict[str, list[Played]] = {way: [] for way in WAYS}
    world = build_model(props=make_task(task, 0).props)
    with Camera(world, width=RENDER_SIZE, height=RENDER_SIZE) as camera:
        for episode in stack:
            for way in WAYS:
                config = ClosedLoopConfig(
                    task=task,
                    episodes=1,
                    first_seed=episode.seed,
                    duration_s=duration_s,
                    settle_s=settle_s,
                    period_s=period_s,
                    noise_seed=OTHER_NOISE if way == "other noise" else 0,
                )
                chunks = planned[episode.seed]
                if way == "medians":
                    chunks = periodic(
                        duration_s=duration_s,
                        period_s=period_s,
                        lookahead_s=delays["told_s"],
                        handover_s=delays["arrives_s"] - delays["told_s"],
                    )
                policy = ModelPolicy(checkpoint, config, camera)
                found[way].append(play_fast(policy, config, chunks, player))
                advance()
    error_m, half_m = mean_interval(np.array([e.error_m for e in stack]))
    return {
        "stack": {
            "error_m": error_m,
            "error_m_ci95": half_m,
            "success": float(np.mean([e.success for e in stack])),
            "jerk_measured": float(np.mean([e.jerk_measured for e in stack])),
        },
        **{way: beside(stack, fast) for way, fast in found.items()},
        "noise": beside(found["own delays"], found["other noise"]),
        "median_delays_s": delays,
    }


def play_fast(
    policy: ModelPolicy,
    config: ClosedLoopConfig,
    planned: Sequence[PlannedChunk],
    player: Callable[[Array], Player],
) -> Played:
    """One episode (`config.first_seed`) of the fast loop with the given times."""
    tasks = [make_task(config.task, config.first_seed)]
    record = run_recorded(policy, tasks, config, planned=planned, player=player)
    still = still_errors(tasks, config, Kinematics(build_model(props=tasks[0].props)))
    at_s = tick_times(config)
    settled = at_s >= config.settle_s
    outcome = tasks[0].rule.judge(at_s, record.errors[0], still[0])
    return Played(
        seed=config.first_seed,
        error_m=float(record.errors[0, settled].mean()),
        success=outcome.success,
        jerk_measured=rms_jerk(record.positions[0, settled], at_s[settled]),
    )


def medians(episodes: Sequence[Sequence[PlannedChunk]]) -> dict[str, float]:
    """Median lookahead told, and median time from capture to the buffer, of all chunks [s]."""
    chunks = [chunk for episode in episodes for chunk in episode if chunk.captures_s[0] >= 0.0]
    told_s = float(np.median([chunk.told_s for chunk in chunks]))
    arrives_s = float(np.median([c.arrives_s - c.captures_s[-1] for c in chunks]))
    # The lookahead is a high quantile of capture to exit: the median chunk may come before that.
    return {"told_s": told_s, "arrives_s": arrives_s}


def beside(stack: Sequence[Played], fast: Sequence[Played]) -> dict[str, float]:
    """Means of `fast`, and the paired differences stack - fast with their 95% half widths."""
    ours = np.array([e.error_m for e in stack])
    theirs = np.array([e.error_m for e in fast])
    error_m, half_m = mean_interval(theirs)
    difference_m, difference_half_m = paired_difference(ours, theirs)
    success = paired_difference(
        np.array([float(e.success) for e in stack]), np.array([float(e.success) for e in fast])
    )
    return {
        "error_m": error_m,
        "error_m_ci95": half_m,
        "success": float(np.mean([e.success for e in fast])),
        "jerk_measured": float(np.mean([e.jerk_measured for e in fast])),
        "stack_minus_fast_m": difference_m,
        "stack_minus_fast_m_ci95": difference_half_m,
        "stack_minus_fast_success": success[0],
        "stack_minus_fast_success_ci95": success[1],
    }


def print_comparison(found: Mapping[str, Any], console: Console) -> None:
    table = Table(title="The same episodes in the fast loop", title_justify="left")
    for heading in ("", "mean error mm", "success", "jerk rad/s^3", "stack - fast mm (95%)"):
        table.add_column(heading, justify="left" if not heading else "right")
    for way in ("stack", *WAYS):
        row = found[way]
        apart = ""
        if way != "stack":
            apart = (
                f"{1e3 * row['stack_minus_fast_m']:+.2f}"
                f" (+-{1e3 * row['stack_minus_fast_m_ci95']:.2f})"
            )
        table.add_row(
            way if way == "stack" else f"fast, {way}",
            f"{1e3 * row['error_m']:.2f} +-{1e3 * row['error_m_ci95']:.2f}",
            f"{row['success']:.2f}",
            f"{row['jerk_measured']:.1f}",
            apart,
        )
    console.print(table)
    noise, delays = found["noise"], found["median_delays_s"]
    console.print(
        "Two fast runs that differ in the model's noise alone:"
        f" {1e3 * noise['stack_minus_fast_m']:+.2f}"
        f" mm (+-{1e3 * noise['stack_minus_fast_m_ci95']:.2f}). Median delays:"
        f" told {1e3 * delays['told_s']:.0f} ms,"
        f" capture to buffer {1e3 * delays['arrives_s']:.0f} ms."
    )
