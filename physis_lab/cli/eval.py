"""`physis eval`: evaluate a policy on seeded episodes; success with confidence intervals.

Fast mode: arm, camera, model, and the decisions of buffer and safety controller in one process on
simulated time, with given delays. With `--stack`: every episode runs through the real processes
(observation, engine with its workers, buffer, safety, simulated robot) with the delays of this
machine; `--compare` then repeats the same episodes in fast mode with the measured delays. Both
modes write the same report.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from physis_core.types import UserError

SUMMARY = "evaluate a policy on seeded episodes, in fast mode or through the real stack"

SETTLE_S = 2.0
"""The first seconds of each episode, left out of errors and percentiles in both modes."""

FAST_ALONE = ("response_ms", "handover_ms")
STACK_ALONE = ("compare", "out", "sets", "verbose")
ENDLESS_TASKS = ("follow", "follow_jumps")
SHORTER_S = 10.0
"""Default duration of these tasks through the stack, which takes real time."""

READ_FROM_REPORT = ("checkpoint", "task", "episodes", "seed", "duration_s", "period_ms")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--stack",
        action="store_true",
        help="run through the real processes instead of the fast loop",
    )
    parser.add_argument(
        "--checkpoint", help="a path, or a name in checkpoints/ (default: physis_tiny_TASK)"
    )
    parser.add_argument("--task", help="follow, follow_jumps, reach or push (default: follow)")
    parser.add_argument(
        "--episodes", type=int, help="number of episodes (default: 20, with --stack 8)", metavar="N"
    )
    parser.add_argument("--seed", type=int, help="seed of the first episode (default: 100)")
    parser.add_argument("--duration-s", type=float, help="of each episode (default: by task)")
    parser.add_argument(
        "--period-ms", type=float, help="time between chunks (default: the checkpoint's)"
    )
    fast = parser.add_argument_group("fast mode")
    fast.add_argument("--response-ms", type=float, help="response latency (default: 150)")
    fast.add_argument(
        "--handover-ms", type=float, help="from the engine's exit to the buffer (default: 5)"
    )
    fast.add_argument(
        "--like",
        type=Path,
        metavar="REPORT",
        help="repeat the episodes of this --stack report with its measured delays, and compare",
    )
    stack = parser.add_argument_group("through the stack")
    stack.add_argument(
        "--compare", action="store_true", help="repeat the episodes in fast mode and compare"
    )
    stack.add_argument(
        "--out", type=Path, metavar="DIR", help="records (default: runs/eval-DATE-TIME)"
    )
    stack.add_argument(
        "--set",
        action="append",
        dest="sets",
        metavar="NODE.PARAM=VALUE",
        help="set a node's parameter, e.g. engine_node.partition=step; may be repeated",
    )
    stack.add_argument("--verbose", action="store_true", help="print the output of the nodes")


def run(args: argparse.Namespace) -> dict[str, Any]:
    _check(args)
    # Heavy imports only after the arguments were checked.
    import torch
    from rich.console import Console

    torch.set_num_threads(1)
    console = Console(highlight=False, soft_wrap=True)
    if args.like is not None:
        return _like(args, console)
    return _stack(args, console) if args.stack else _fast(args, console)


def _check(args: argparse.Namespace) -> None:
    """Raises UserError for a number out of range, or an argument of the other mode."""
    from physis_lab.tasks.task import make_task

    if args.stack and args.like is not None:
        raise UserError("like", str(args.like), "runs in fast mode; remove --stack")
    _refuse(args, FAST_ALONE, args.stack, "is measured through the stack, not set")
    _refuse(args, STACK_ALONE, not args.stack, "needs --stack")
    _refuse(args, (*READ_FROM_REPORT, *FAST_ALONE), args.like is not None, "is read from --like")
    if args.seed is None:
        args.seed = 100
    if args.seed < 0:
        raise UserError("seed", args.seed, "must not be negative")
    args.task = "follow" if args.task is None else args.task
    task = make_task(args.task, args.seed)
    if args.checkpoint is None:
        # The policy of `follow` also serves `follow_jumps`.
        args.checkpoint = f"physis_tiny_{args.task.partition('_')[0]}"
    if args.episodes is None:
        args.episodes = 8 if args.stack else 20
    if args.duration_s is None:
        args.duration_s = (
            SHORTER_S if args.stack and task.name in ENDLESS_TASKS else task.duration_s
        )
    if not 1 <= args.episodes <= 10_000:
        raise UserError("episodes", args.episodes, "must be from 1 to 10000")
    if not (math.isfinite(args.duration_s) and 3.0 <= args.duration_s <= 600.0):
        raise UserError("duration_s", args.duration_s, "must be from 3 to 600")
    for name in ("response_ms", "handover_ms", "period_ms"):
        value = getattr(args, name)
        if value is not None and not 0.0 <= value <= 10_000.0:
            raise UserError(name, value, "must be from 0 to 10000")


def _refuse(args: argparse.Namespace, names: Sequence[str], wrong: bool, why: str) -> None:
    for name in names:
        value = getattr(args, name)
        if wrong and value is not None and value is not False:
            raise UserError(name, str(value) if isinstance(value, Path) else value, why)


def _fast(args: argparse.Namespace, console: Any) -> dict[str, Any]:
    from physis_core.types import Array
    from physis_lab.evaluation.closed_loop import ClosedLoopConfig
    from physis_lab.evaluation.fast_report import evaluate_fast
    from physis_lab.evaluation.robot_side import RobotSideExecutor, robot_side, side_figures
    from physis_ros.node.model_file import checkpoint_path, trained_period_s

    checkpoint = checkpoint_path(args.checkpoint)
    period_ms = args.period_ms
    if period_ms is None:
        period_ms = 1e3 * trained_period_s(str(checkpoint))
    config = ClosedLoopConfig(
        task=args.task,
        episodes=args.episodes,
        first_seed=args.seed,
        duration_s=args.duration_s,
        response_s=(150.0 if args.response_ms is None else args.response_ms) / 1e3,
        handover_s=(5.0 if args.handover_ms is None else args.handover_ms) / 1e3,
        period_s=period_ms / 1e3,
    )
    make, executors = robot_side(), []

    def executor(start: Array) -> RobotSideExecutor:
        executors.append(make(start))
        return executors[-1]

    report = evaluate_fast(checkpoint, config, executor)
    side = side_figures(executors, config.settle_s)
    report["action_age_ms"]["servo"] = side.pop("servo_age_ms")
    report.update(side)
    _print_safety(report, console)
    _print(report, args.duration_s, console)
    return report


def _stack(args: argparse.Namespace, console: Any) -> dict[str, Any]:
    from physis_core.observe.machine import machine
    from physis_core.observe.result_file import write_result
    from physis_lab.evaluation.stack_report import stack_report
    from physis_lab.evaluation.stack_run import StackRuns, run_episodes, stack_config
    from physis_ros.node.model_file import checkpoint_path

    checkpoint = checkpoint_path(args.checkpoint)
    out = args.out or Path("runs") / time.strftime("eval-%Y%m%d-%H%M%S")
    sets = [
        f"engine_node.model={checkpoint}",
        f"observation_node.model={checkpoint}",
        *(args.sets or []),
    ]
    if args.period_ms is not None:
        sets.insert(0, f"engine_node.period_s={args.period_ms / 1e3}")
    console.print(f"Records go to {out}", markup=False)
    asked = {
        "checkpoint": str(checkpoint),
        "task": args.task,
        "episodes": args.episodes,
        "first_seed": args.seed,
        "duration_s": args.duration_s,
        "settle_s": SETTLE_S,
        "sets": list(args.sets or []),
    }

    def report_of(runs: StackRuns) -> dict[str, Any]:
        report = stack_report(
            runs.episodes,
            task=args.task,
            settle_s=SETTLE_S,
            config=stack_config(runs, **asked),
            machine=machine(),
        )
        return {**report, "ok": False, "reason": runs.reason} if runs.reason else report

    runs = run_episodes(
        range(args.seed, args.seed + args.episodes),
        task=args.task,
        duration_s=args.duration_s,
        settle_s=SETTLE_S,
        out=out,
        sets=sets,
        console=console,
        verbose=args.verbose,
        # Written after each episode, so that an interrupted run keeps its results.
        finished=lambda runs: write_result(out / "report.json", report_of(runs)),
    )
    if not runs.episodes:
        console.print(f"physis eval: {runs.reason}; no episode was finished", markup=False)
        return {"ok": False, "reason": runs.reason}
    report = report_of(runs)
    if runs.reason:
        console.print(
            f"physis eval: {runs.reason}; {len(runs.episodes)} of {args.episodes} episodes count",
            markup=False,
        )
    _print_times(report, console)
    _print(report, args.duration_s, console)
    if args.compare and not runs.reason:
        report["comparison"] = _compare(report, checkpoint, console)
    write_result(out / "report.json", report)
    console.print(f"  {out / 'report.json'}", markup=False)
    return report


def _like(args: argparse.Namespace, console: Any) -> dict[str, Any]:
    from physis_ros.node.model_file import checkpoint_path

    try:
        report = json.loads(args.like.read_text())
        config = report["config"]
        if config["mode"] != "stack" or not report["episodes"]:
            raise KeyError("episodes")
    except OSError as error:
        raise UserError("like", str(args.like), error.strerror or str(error)) from error
    except (ValueError, KeyError, TypeError) as error:
        raise UserError("like", str(args.like), "is not a report of physis eval --stack") from error
    found = _compare(report, checkpoint_path(config["checkpoint"]), console)
    return {"ok": True, "comparison": found, "config": {**config, "mode": "like"}}


def _compare(report: Mapping[str, Any], checkpoint: Path, console: Any) -> dict[str, Any]:
    from rich.progress import Progress

    from physis_lab.evaluation.compare import RUNS, EpisodeScore, compare, print_comparison
    from physis_lab.evaluation.robot_side import robot_side
    from physis_lab.evaluation.stack_episode import planned_from_row

    config, rows = report["config"], report["episodes"]
    with Progress(console=console) as progress:
        bar = progress.add_task("same episodes in fast mode", total=len(rows) * len(RUNS))
        found = compare(
            [
                EpisodeScore(
                    seed=row["seed"],
                    error_m=row["error_m_mean"],
                    success=row["success"],
                    jerk_measured=row["jerk_rad_s3"]["measured"],
                )
                for row in rows
            ],
            {row["seed"]: planned_from_row(row["chunks"]) for row in rows},
            checkpoint=checkpoint,
            task=config["task"],
            duration_s=config["duration_s"],
            settle_s=config["settle_s"],
            period_s=config["period_ms"] / 1e3,
            executor=robot_side(config["buffer"], config["safety"]),
            advance=lambda: progress.advance(bar),
        )
    print_comparison(found, console)
    return found


def _print_times(report: Mapping[str, Any], console: Any) -> None:
    from physis_core.observe.tables import print_times

    print_times(report, console)
    _print_safety(report, console)


def _print_safety(report: Mapping[str, Any], console: Any) -> None:
    safety = report["safety"]
    console.print(
        f"Safety: worst final state {safety['state']}, trips {safety['trips']},"
        f" slowed down {safety['limited']}, rejected {safety['rejected']}"
    )


def _print(report: Mapping[str, Any], duration_s: float, console: Any) -> None:
    task = report["task"]
    low, high = task["success_ci95"]
    console.print(
        f"{task['name']}: success {task['success']:.2f} (95% {low:.2f} to {high:.2f}) over"
        f" {task['episodes']} episodes of {duration_s:g} s ({task['success_means']})"
    )
    console.print(
        f"mean error {1e3 * task['error_m_mean']:.1f} mm (+-{1e3 * task['error_m_mean_ci95']:.1f}),"
        f" median {1e3 * task['error_m_p50']:.1f} mm, p95 {1e3 * task['error_m_p95']:.1f} mm;"
        f" standing still {1e3 * task['still_error_m_mean']:.1f} mm; error / still"
        f" {task['error_over_still']:.3f}"
    )
    if "expert_error_m_mean" in task:
        console.print(f"expert with the same delays {1e3 * task['expert_error_m_mean']:.1f} mm")
    jerk = task["jerk_rad_s3"]
    console.print(
        f"jerk, rms over joints: commanded {jerk['commanded']:.1f}, measured"
        f" {jerk['measured']:.1f} rad/s^3"
    )
    age = report["action_age_ms"]["servo"]
    where = "measured" if report["config"]["mode"] == "stack" else "on simulated time"
    console.print(
        f"output interval {report['output_interval_ms']['p50']:.0f} ms, response latency"
        f" {report['response_latency_ms']['p50']:.0f} ms, action age at the servo"
        f" {age['p50']:.0f} ms (p99 {age['p99']:.0f}), {where}"
    )
