"""The report of a fast evaluation (DESIGN section 8).

Times are simulated: those that were asked for, not what this machine took. Buffer and safety
controller take part when the caller's executor contains them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from physis_core.observe.jerk import rms_jerk
from physis_core.observe.machine import machine
from physis_core.observe.percentiles import percentiles_of
from physis_core.types import Array, UserError
from physis_lab.arm.camera import Camera
from physis_lab.arm.kinematics import Kinematics
from physis_lab.arm.limits import UR5E_LIMITS, ArmLimits
from physis_lab.arm.scene import build_model
from physis_lab.evaluation.chunk_execution import ChunkExecutor
from physis_lab.evaluation.closed_loop import (
    RENDER_SIZE,
    SERVO_STEP_S,
    ClosedLoopConfig,
    LoopRecord,
    run,
    run_recorded,
    still_errors,
    summary,
    tick_times,
)
from physis_lab.evaluation.intervals import mean_interval, wilson
from physis_lab.evaluation.policies import ExpertPolicy, ModelPolicy
from physis_lab.tasks import TASKS
from physis_lab.tasks.outcome import Outcome, Rule, StaysNear
from physis_lab.tasks.task import Task, make_task


def evaluate_fast(
    checkpoint: Path,
    config: ClosedLoopConfig,
    executor: Callable[[Array], ChunkExecutor] | None = None,
) -> dict[str, Any]:
    """Run the model, the expert and a still arm on the same tasks, and report.

    Args:
        executor: makes what executes the model's chunks, as for `run_recorded`.

    Raises:
        UserError: task, delays or checkpoint do not fit.
    """
    if config.task not in TASKS:
        raise UserError("task", config.task, f"one of {', '.join(TASKS)}")
    tasks: list[Task] = [
        make_task(config.task, config.first_seed + n) for n in range(config.episodes)
    ]
    world = build_model(props=tasks[0].props)
    kinematics = Kinematics(world)
    with Camera(world, width=RENDER_SIZE, height=RENDER_SIZE) as camera:
        policy = ModelPolicy(checkpoint, camera, episodes=config.episodes)
        record = run_recorded(policy, tasks, config, executor=executor)
    expert = run(ExpertPolicy(tasks, kinematics, policy.step_s), tasks, config)
    still = still_errors(tasks, config, kinematics)
    rule = tasks[0].rule
    if isinstance(rule, StaysNear):
        rule = StaysNear(share=rule.share, settle_s=config.settle_s)
    found = report(config, record.errors, expert, still, str(checkpoint), rule)
    found["task"]["jerk_rad_s3"] = jerks(record, config)
    found["task"]["limit_ticks"] = limit_ticks(record, UR5E_LIMITS)
    return found


def jerks(record: LoopRecord, config: ClosedLoopConfig) -> dict[str, float]:
    """rms over episodes of the rms jerk after settling, rad/s^3."""
    at_s = tick_times(config)
    settled = at_s > config.settle_s

    def over_episodes(paths: Array) -> float:
        each = [rms_jerk(path[settled], at_s[settled]) for path in paths]
        return float(np.sqrt(np.mean(np.square(each))))

    return {
        "commanded": over_episodes(record.commands),
        "measured": over_episodes(record.positions),
    }


def limit_ticks(record: LoopRecord, limits: ArmLimits) -> dict[str, int]:
    """Ticks at which any joint exceeded a position or velocity limit, commanded and measured.

    Without the safety controller nothing bounds the commands. The first chunk alone is a step,
    because it starts where the arm would be if it had moved since the capture.
    """

    def beyond(paths: Array) -> int:
        out = (paths < limits.lower - 1e-6) | (paths > limits.upper + 1e-6)
        speed = np.abs(np.diff(paths, axis=1)) / SERVO_STEP_S
        out[:, 1:] |= speed > limits.velocity * 1.001
        return int(out.any(axis=2).sum())

    return {"commanded": beyond(record.commands), "measured": beyond(record.positions)}


def judged(
    rule: Rule, config: ClosedLoopConfig, errors: Array, still: Array
) -> tuple[list[Outcome], dict[str, Any]]:
    """Judge episodes by their distances `errors` [episodes, ticks] m; returns outcomes and figures.

    Mean, its 95% half width, median and 95th percentile are over the ticks after settling for a
    task without an end (`closed_loop.summary`), and over the episodes' errors for a task with one.

    Raises:
        UserError: episodes too short to be judged.
    """
    at_s = tick_times(config)
    try:
        outcomes = [rule.judge(at_s, *row) for row in zip(errors, still, strict=True)]
    except ValueError as error:
        raise UserError("duration", config.duration_s, str(error)) from error
    if isinstance(rule, StaysNear):
        figures: dict[str, Any] = dict(summary(errors, config.settle_s))
    else:
        each = np.array([outcome.error_m for outcome in outcomes])
        mean_m, half_m = mean_interval(each)
        figures = {
            "mean_m": mean_m,
            "mean_ci95_m": half_m,
            "median_m": float(np.median(each)),
            "p95_m": float(np.quantile(each, 0.95)),
            "worst_episode_m": float(each.max()),
        }
    times_s = [outcome.time_s for outcome in outcomes if outcome.time_s is not None]
    hits = sum(outcome.success for outcome in outcomes)
    figures["success"] = hits / len(outcomes)
    figures["success_ci95"] = list(wilson(hits, len(outcomes)))
    figures["time_s_p50"] = float(np.median(times_s)) if times_s else None
    figures["time_s_p95"] = float(np.quantile(times_s, 0.95)) if times_s else None
    return outcomes, figures


def report(
    config: ClosedLoopConfig,
    errors: Array,
    expert: Array,
    still: Array,
    checkpoint: str,
    rule: Rule,
) -> dict[str, Any]:
    """errors, expert, still: distances [episodes, ticks] m, a tick per SERVO_STEP_S.

    Raises:
        UserError: episodes too short to be judged.
    """
    settled = round(config.settle_s / SERVO_STEP_S)
    outcomes, found = judged(rule, config, errors, still)
    _, of_expert = judged(rule, config, expert, still)
    _, of_still = judged(rule, config, still, still)
    chunks = math.floor(config.duration_s / config.period_s)
    ticks = errors.shape[1] - settled
    zeros = np.zeros(chunks * config.episodes)
    # A chunk is in force until the next one exits, so its age grows by one period.
    ages_ms = 1e3 * (config.lookahead_s + np.mod(np.arange(ticks) * SERVO_STEP_S, config.period_s))
    return {
        "ok": True,
        "output_interval_ms": _percentiles(zeros[1:] + 1e3 * config.period_s),
        "response_latency_ms": _percentiles(zeros + 1e3 * config.response_s),
        "action_age_ms": {
            "handoff": _percentiles(zeros + 1e3 * (config.lookahead_s + config.handover_s)),
            "servo": _percentiles(ages_ms),
        },
        "parts_ms": {
            "capture": _percentiles(zeros + 1e3 * config.observation_age_s),
            "queue": _percentiles(zeros),
            "response": _percentiles(zeros + 1e3 * config.response_s),
            "handoff": _percentiles(zeros + 1e3 * config.handover_s),
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
            "success": found["success"],
            "success_ci95": found["success_ci95"],
            "success_means": rule.says,
            "time_to_success_s_p50": found["time_s_p50"],
            "error_m_p50": found["median_m"],
            "error_m_p95": found["p95_m"],
            "error_m_mean": found["mean_m"],
            "error_m_mean_ci95": found["mean_ci95_m"],
            "expert_error_m_mean": of_expert["mean_m"],
            "still_error_m_mean": of_still["mean_m"],
            "error_over_still": found["mean_m"] / of_still["mean_m"],
            "errors_m": [outcome.error_m for outcome in outcomes],
            "successes": [outcome.success for outcome in outcomes],
            "beside": {"model": found, "expert": of_expert, "still": of_still},
        },
        "safety": {"state": "not in the fast loop", "trips": 0},
        "config": {"mode": "fast", "checkpoint": checkpoint, **asdict(config)},
        "machine": machine(),
    }


def _percentiles(samples: Array) -> dict[str, Any]:
    return asdict(percentiles_of(samples))
