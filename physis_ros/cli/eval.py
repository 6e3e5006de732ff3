"""`physis eval`: a policy over seeded episodes, its success with confidence intervals.

The fast mode: arm, camera and model in one process on simulated time, with the delays that are
given. `physis demo` is one episode through the real nodes.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from rich.console import Console

from physis_core.arm.tasks import TASKS
from physis_core.learn.closed_loop import ClosedLoopConfig
from physis_core.learn.evaluation import evaluate_fast
from physis_ros.checkpoint_file import checkpoint_path

SUMMARY = "a policy over seeded episodes in the fast closed loop: success, error, intervals"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    defaults = ClosedLoopConfig()
    parser.add_argument(
        "--checkpoint", default="physis_tiny_follow", help="a path, or a name in checkpoints/"
    )
    parser.add_argument("--task", default=defaults.task, help=f"one of {', '.join(TASKS)}")
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--seed", type=int, default=defaults.first_seed, help="of the first one")
    parser.add_argument("--duration-s", type=float, default=14.0, help="of each episode")
    parser.add_argument(
        "--response-ms", type=float, default=1e3 * defaults.response_s, help="response latency"
    )
    parser.add_argument(
        "--period-ms", type=float, default=1e3 * defaults.period_s, help="time between chunks"
    )


def run(args: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(1)
    report = evaluate_fast(
        checkpoint_path(args.checkpoint),
        ClosedLoopConfig(
            task=args.task,
            episodes=args.episodes,
            first_seed=args.seed,
            duration_s=args.duration_s,
            response_s=args.response_ms / 1e3,
            period_s=args.period_ms / 1e3,
        ),
    )
    task, console = report["task"], Console(highlight=False, soft_wrap=True)
    low, high = task["success_ci95"]
    console.print(
        f"{task['name']}: success {task['success']:.2f} (95% {low:.2f} to {high:.2f}) over"
        f" {task['episodes']} episodes of {args.duration_s:g} s"
    )
    console.print(
        f"mean error {1e3 * task['error_m_mean']:.1f} mm (+-{1e3 * task['error_m_mean_ci95']:.1f}),"
        f" median {1e3 * task['error_m_p50']:.1f} mm, p95 {1e3 * task['error_m_p95']:.1f} mm"
    )
    console.print(
        f"expert under the same delays {1e3 * task['expert_error_m_mean']:.1f} mm, standing still"
        f" {1e3 * task['still_error_m_mean']:.1f} mm; error / still {task['error_over_still']:.3f}"
    )
    age = report["action_age_ms"]["servo"]
    console.print(
        f"output interval {report['output_interval_ms']['p50']:.0f} ms, response latency"
        f" {report['response_latency_ms']['p50']:.0f} ms, action age at the servo"
        f" {age['p50']:.0f} ms (p99 {age['p99']:.0f}), on simulated time"
    )
    return report
