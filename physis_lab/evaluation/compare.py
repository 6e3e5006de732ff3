"""Compare the fast loop with the real stack: the same seeds, with the delays that the stack had.

Each episode is run three times in the fast loop:

    own delays     every chunk has the capture time, lookahead and arrival time that it had in the
                   stack
    medians        one chunk per period, all with the run's median delays, which is all that a
                   report gives
    other noise    as `own delays`, with another noise seed of the model: the difference between two
                   runs of the same loop, against which the other differences are judged
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
from physis_lab.evaluation.chunk_execution import ChunkExecutor
from physis_lab.evaluation.chunk_schedule import PlannedChunk, periodic
from physis_lab.evaluation.closed_loop import (
    RENDER_SIZE,
    ClosedLoopConfig,
    run_recorded,
    still_errors,
    tick_times,
)
from physis_lab.evaluation.intervals import mean_interval, paired_difference
from physis_lab.evaluation.policies import ModelPolicy
from physis_lab.tasks.task import make_task

RUNS = ("own delays", "medians", "other noise")
OTHER_NOISE = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeScore:
    """What is compared of one episode: its mean error, success and jerk."""

    seed: int
    error_m: float
    success: bool
    jerk_measured: float


def compare(
    stack: Sequence[EpisodeScore],
    planned: Mapping[int, Sequence[PlannedChunk]],
    *,
    checkpoint: Path,
    task: str,
    duration_s: float,
    settle_s: float,
    period_s: float,
    executor: Callable[[Array], ChunkExecutor],
    advance: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Run every episode of `stack` in the fast loop, once per entry of RUNS; `planned` is by seed.

    Returns for each of RUNS: error_m and its 95% half width, success, jerk, and the paired
    differences stack - fast with their 95% half widths.
    """
    delays = medians(list(planned.values()))
    found: dict[str, list[EpisodeScore]] = {run: [] for run in RUNS}
    world = build_model(props=make_task(task, 0).props)
    with Camera(world, width=RENDER_SIZE, height=RENDER_SIZE) as camera:
        for episode in stack:
            for run in RUNS:
                config = ClosedLoopConfig(
                    task=task,
                    episodes=1,
                    first_seed=episode.seed,
                    duration_s=duration_s,
                    settle_s=settle_s,
                    period_s=period_s,
                )
                chunks = planned[episode.seed]
                if run == "medians":
                    chunks = periodic(
                        duration_s=duration_s,
                        period_s=period_s,
                        lookahead_s=delays["lookahead_s"],
                        handover_s=delays["arrives_s"] - delays["lookahead_s"],
                    )
                policy = ModelPolicy(
                    checkpoint,
                    camera,
                    episodes=1,
                    noise_seed=OTHER_NOISE if run == "other noise" else 0,
                )
                found[run].append(play_fast(policy, config, chunks, executor))
                advance()
    error_m, half_m = mean_interval(np.array([e.error_m for e in stack]))
    return {
        "stack": {
            "error_m": error_m,
            "error_m_ci95": half_m,
            "success": float(np.mean([e.success for e in stack])),
            "jerk_measured": float(np.mean([e.jerk_measured for e in stack])),
        },
        **{run: beside(stack, fast) for run, fast in found.items()},
        "noise": beside(found["own delays"], found["other noise"]),
        "median_delays_s": delays,
    }


def play_fast(
    policy: ModelPolicy,
    config: ClosedLoopConfig,
    planned: Sequence[PlannedChunk],
    executor: Callable[[Array], ChunkExecutor],
) -> EpisodeScore:
    """One episode (`config.first_seed`) of the fast loop with the given times."""
    tasks = [make_task(config.task, config.first_seed)]
    record = run_recorded(policy, tasks, config, planned=planned, executor=executor)
    still = still_errors(tasks, config, Kinematics(build_model(props=tasks[0].props)))
    at_s = tick_times(config)
    settled = at_s >= config.settle_s
    outcome = tasks[0].rule.judge(at_s, record.errors[0], still[0])
    return EpisodeScore(
        seed=config.first_seed,
        error_m=float(record.errors[0, settled].mean()),
        success=outcome.success,
        jerk_measured=rms_jerk(record.positions[0, settled], at_s[settled]),
    )


def medians(episodes: Sequence[Sequence[PlannedChunk]]) -> dict[str, float]:
    """Medians over all chunks: lookahead, and time from capture to the buffer [s]."""
    chunks = [chunk for episode in episodes for chunk in episode if chunk.captures_s[0] >= 0.0]
    lookahead_s = float(np.median([chunk.lookahead_s for chunk in chunks]))
    arrives_s = float(np.median([c.arrives_s - c.captures_s[-1] for c in chunks]))
    # The lookahead is a high quantile of capture to exit, so the median chunk may arrive earlier.
    return {"lookahead_s": lookahead_s, "arrives_s": arrives_s}


def beside(stack: Sequence[EpisodeScore], fast: Sequence[EpisodeScore]) -> dict[str, float]:
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
    for run in ("stack", *RUNS):
        row = found[run]
        apart = ""
        if run != "stack":
            apart = (
                f"{1e3 * row['stack_minus_fast_m']:+.2f}"
                f" (+-{1e3 * row['stack_minus_fast_m_ci95']:.2f})"
            )
        table.add_row(
            run if run == "stack" else f"fast, {run}",
            f"{1e3 * row['error_m']:.2f} +-{1e3 * row['error_m_ci95']:.2f}",
            f"{row['success']:.2f}",
            f"{row['jerk_measured']:.1f}",
            apart,
        )
    console.print(table)
    noise, delays = found["noise"], found["median_delays_s"]
    console.print(
        "Difference of two fast runs with different noise seeds:"
        f" {1e3 * noise['stack_minus_fast_m']:+.2f}"
        f" mm (+-{1e3 * noise['stack_minus_fast_m_ci95']:.2f}). Median delays:"
        f" lookahead {1e3 * delays['lookahead_s']:.0f} ms,"
        f" capture to buffer {1e3 * delays['arrives_s']:.0f} ms."
    )
