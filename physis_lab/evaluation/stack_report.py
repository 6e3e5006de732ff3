"""The report of episodes through the real stack (DESIGN section 8), with 95% intervals. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from physis_core.observe.report import pooled, time_figures
from physis_lab.evaluation.intervals import mean_interval, wilson
from physis_lab.evaluation.stack_episode import StackEpisode
from physis_lab.session.run_record import VERDICTS
from physis_lab.tasks.task import make_task


def stack_report(
    episodes: Sequence[StackEpisode],
    *,
    task: str,
    settle_s: float,
    config: Mapping[str, Any],
    machine: Mapping[str, Any],
) -> dict[str, Any]:
    """Times are over the samples of all episodes; each leaves out its first `settle_s`."""
    outcomes = [episode.outcome for episode in episodes]
    hits = sum(outcome.success for outcome in outcomes)
    low, high = wilson(hits, len(outcomes))
    errors = np.concatenate([episode.errors_m for episode in episodes])
    means = np.array([episode.errors_m.mean() for episode in episodes])
    still = np.array([episode.still_m.mean() for episode in episodes])
    times = [outcome.time_s for outcome in outcomes if outcome.time_s is not None]
    safety = [episode.safety for episode in episodes]
    return {
        "ok": True,
        **time_figures(
            pooled([episode.samples for episode in episodes]),
            sensor_hz=float(np.mean([episode.sensor_hz for episode in episodes])),
        ),
        "dropped": sum(episode.dropped for episode in episodes),
        "warmup_s": settle_s,
        "task": {
            "name": task,
            "episodes": len(episodes),
            "success": hits / len(outcomes),
            "success_ci95": [low, high],
            "success_means": make_task(task, 0).rule.says,
            "time_to_success_s_p50": float(np.median(times)) if times else None,
            "error_m_p50": float(np.median(errors)),
            "error_m_p95": float(np.quantile(errors, 0.95)),
            "error_m_mean": float(means.mean()),
            "error_m_mean_ci95": mean_interval(means)[1],
            "still_error_m_mean": float(still.mean()),
            "error_over_still": float(means.mean() / still.mean()),
            "errors_m": means.tolist(),
            "jerk_rad_s3": {
                side: _rms([getattr(episode, f"jerk_{side}") for episode in episodes])
                for side in ("commanded", "measured")
            },
            "limit_violations": sum(episode.limit_ticks for episode in episodes),
        },
        "safety": {
            "state": max((str(s["state"]) for s in safety), key=VERDICTS.index),
            "trips": sum(int(s["trips"]) for s in safety),
            "limited": sum(int(s["limited"]) for s in safety),
            "rejected": sum(int(s["rejected"]) for s in safety),
        },
        "episodes": [episode.row() for episode in episodes],
        "config": dict(config),
        "machine": dict(machine),
    }


def _rms(values: Sequence[float]) -> float:
    return float(np.sqrt(np.mean(np.square(values))))
