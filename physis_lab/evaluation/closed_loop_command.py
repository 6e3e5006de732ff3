"""Evaluate a checkpoint in the fast closed loop, without buffer and safety controller.

    python -m physis_lab.evaluation.closed_loop_command \\
        --checkpoint checkpoints/physis_tiny_follow.safetensors

Beside the model's error stand that of the scripted expert, which knows the true state and the
ball's path but has the same delays, and that of an arm that stands still. `physis eval` is the same
loop with buffer and safety controller.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from physis_core.observe.result_file import write_result
from physis_core.types import UserError
from physis_lab.evaluation.closed_loop import ClosedLoopConfig
from physis_lab.evaluation.fast_report import evaluate_fast
from physis_lab.tasks import TASKS
from physis_lab.tasks.task import make_task


def main() -> int:
    defaults = ClosedLoopConfig()
    parser = argparse.ArgumentParser(description="Evaluate a checkpoint in the fast closed loop.")
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--task", default=defaults.task, help=f"one of {', '.join(TASKS)}")
    parser.add_argument("--episodes", type=int, default=defaults.episodes)
    parser.add_argument("--seed", type=int, default=defaults.first_seed, help="of the first one")
    parser.add_argument("--duration", type=float, help="seconds each (default: the task's)")
    parser.add_argument("--period", type=float, default=defaults.period_s, help="chunk period, s")
    parser.add_argument(
        "--response", type=float, default=defaults.response_s, help="response latency, s"
    )
    parser.add_argument("--json", type=Path, help="also write the report here")
    args = parser.parse_args()
    torch.set_num_threads(1)
    try:
        duration_s = args.duration
        if duration_s is None:
            duration_s = make_task(args.task, args.seed).duration_s
        report = evaluate_fast(
            args.checkpoint,
            ClosedLoopConfig(
                task=args.task,
                episodes=args.episodes,
                first_seed=args.seed,
                duration_s=duration_s,
                period_s=args.period,
                response_s=args.response,
            ),
        )
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    print(table(report["task"]))
    if args.json:
        write_result(args.json, report)
    return 0


def table(task: Mapping[str, Any]) -> str:
    """The task's part of a report as text."""
    low, high = task["success_ci95"]
    jerk, beyond = task["jerk_rad_s3"], task["limit_ticks"]
    lines = [
        f"{task['name']}, {task['episodes']} episodes; success: {task['success_means']}",
        f"success {task['success']:.2f} (95% {low:.2f} to {high:.2f}); jerk, rms:"
        f" {jerk['commanded']:.0f} rad/s3 commanded, {jerk['measured']:.0f} measured",
        f"{'':10s}{'mean':>9s}{'+-95%':>9s}{'median':>9s}{'p95':>9s}   (m)"
        f"{'success':>9s}{'time p50':>10s}   (s)",
    ]
    for who in ("model", "expert", "still"):
        row = task["beside"][who]
        time_s = "-" if row["time_s_p50"] is None else f"{row['time_s_p50']:.2f}"
        lines.append(
            f"{who:10s}{row['mean_m']:9.4f}{row['mean_ci95_m']:9.4f}{row['median_m']:9.4f}"
            f"{row['p95_m']:9.4f}      {row['success']:9.2f}{time_s:>10s}"
        )
    lines.append(
        f"model / still: {task['error_over_still']:.3f}; ticks beyond a position or velocity limit:"
        f" {beyond['commanded']} commanded (no safety here), {beyond['measured']} measured"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
