"""The fast evaluation of a policy, as the report of a run (DESIGN section 8).

Times are those of the simulation: what was asked for, not what this machine took. The safety
controller and the buffer are not in this loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from physis_core.arm.camera import Camera
from physis_core.arm.kinematics import Kinematics
from physis_core.arm.scene import build_model
from physis_core.arm.tasks import TASKS, Task, make_task
from physis_core.learn.closed_loop import (
    RENDER_SIZE,
    SERVO_STEP_S,
    ClosedLoopConfig,
    ExpertPolicy,
    LoopRecord,
    ModelPolicy,
    run,
    run_recorded,
    still_errors,
    summary,
)
from physis_core.learn.playing import Player
from physis_core.observe.jerk import rms_jerk
from physis_core.observe.machine import machine
from physis_core.observe.percentiles import percentiles_of
from physis_core.types import Array, UserError

FOLLOWED_SHARE = 1.0 / 6.0
"""An episode is a success where the mean error is at most this share of standing still."""


def wilson(hits: int, of: int) -> tuple[float, float]:
    """95% interval of a share (Wilson's score)."""
    z, share = 1.96, hits / of
    centre = (share + z * z / (2 * of)) / (1 + z * z / of)
    half = z * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of)) / (1 + z * z / of)
    return max(0.0, centre - half), min(1.0, centre + half)


def evaluate_fast(
    checkpoint: Path,
    config: ClosedLoopConfig,
    player: Callable[[Array], Player] | None = None,
) -> dict[str, Any]:
    """Raises UserError where task, delays or checkpoint do not fit.

    Args:
        player: what plays the model's chunks, as for `run_recorded`.
    """
    if config.task not in TASKS:
        raise UserError("task", config.task, f"one of {', '.join(TASKS)}")
    tasks: list[Task] = [
        make_task(config.task, config.first_seed + n) for n in range(config.episodes)
    ]
    world = build_model()
    kinematics = Kinematics(world)
    with Camera(world, width=RENDER_SIZE, height=RENDER_SIZE) as camera:
        policy = ModelPolicy(checkpoint, config, camera)
        record = run_recorded(policy, tasks, config, player=player)
    expert = run(ExpertPolicy(tasks, kinematics, policy.step_s), tasks, config)
    still = still_errors(tasks, config, kinematics)
    found = report(config, record.errors, expert, still, str(checkpoint))
    found["task"]["jerk_rad_s3"] = jerks(record, config.settle_s)
    return found


def jerks(record: LoopRecord, settle_s: float) -> dict[str, float]:
    """rms over episodes of the rms jerk after settling, rad/s^3."""
    at_s = SERVO_STEP_S * (1 + np.arange(record.errors.shape[1]))
    settled = at_s > settle_s

    def over_episodes(paths: Array) -> float:
        each = [rms_jerk(path[settled], at_s[settled]) for path in paths]
        return float(np.sqrt(np.mean(np.square(each))))

    return {
        "commanded": over_episodes(record.commands),
        "measured": over_episodes(record.positions),
    }


def report(
    config: ClosedLoopConfig, errors: Array, expert: Array, still: Array, checkpoint: str
) -> dict[str, Any]:
    """errors, expert, still: distances [episodes, ticks] m, a tick per SERVO_STEP_S."""
    settled = round(config.settle_s / SERVO_STEP_S)
    of_model, of_still = errors[:, settled:].mean(axis=1), still[:, settled:].mean(axis=1)
    followed = of_model <= FOLLOWED_SHARE * of_still
    low, high = wilson(int(followed.sum()), len(followed))
    found = summary(errors, config.settle_s)
    chunks = math.floor(config.duration_s / config.period_s)
    ticks = errors.shape[1] - settled
    nothing = np.zeros(chunks * config.episodes)
    # A chunk is in force from its exit until the next one's: its age grows by a period meanwhile.
    ages_ms = 1e3 * (config.lookahead_s + np.mod(np.arange(ticks) * SERVO_STEP_S, config.period_s))
    return {
        "ok": True,
        "output_interval_ms": _percentiles(nothing[1:] + 1e3 * config.period_s),
        "response_latency_ms": _percentiles(nothing + 1e3 * config.response_s),
        "action_age_ms": {
            "handoff": _percentiles(nothing + 1e3 * config.lookahead_s),
            "servo": _percentiles(ages_ms),
        },
        "parts_ms": {
            "capture": _percentiles(nothing + 1e3 * config.observation_age_s),
            "queue": _percentiles(nothing),
            "response": _percentiles(nothing + 1e3 * config.response_s),
            "handoff": _percentiles(nothing),
        },
        "rates_hz": {
            "sensor": 1.0 / config.period_s,
            "replan": 1.0 / config.period_s,
            "chunk": 1.0 / config.period_s,
            "servo": 1.0 / SERVO_STEP_S,
        },
        "deadline_misses": 0,
        "underruns": 0,
        "chunks": chunks * config.episodes,
        "dropped": 0,
        "warmup_s": config.settle_s,
        "task": {
            "name": config.task,
            "episodes": config.episodes,
            "success": float(followed.mean()),
            "success_ci95": [low, high],
            "success_means": f"mean error at most {FOLLOWED_SHARE:.3f} of standing still",
            "error_m_p50": found["median_m"],
            "error_m_p95": found["p95_m"],
            "error_m_mean": found["mean_m"],
            "error_m_mean_ci95": found["mean_ci95_m"],
            "expert_error_m_mean": summary(expert, config.settle_s)["mean_m"],
            "still_error_m_mean": float(of_still.mean()),
            "error_over_still": float(of_model.mean() / of_still.mean()),
            "errors_m": [float(x) for x in of_model],
        },
        "safety": {"state": "not in the fast loop", "trips": 0},
        "config": {"mode": "fast", "checkpoint": checkpoint, **asdict(config)},
        "machine": machine(),
    }


def _percentiles(samples: Array) -> dict[str, Any]:
    return asdict(percentiles_of(samples))
