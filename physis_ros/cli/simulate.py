"""`physis simulate`: the plan's streams on a virtual clock, through the engine's own scheduling
code."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from physis_core.deployment.file import is_deployment, load_deployment
from physis_core.observe.result_file import check_folder
from physis_core.observe.tables import print_table
from physis_core.plan.config import load_plan
from physis_core.plan.deployed import simulate_deployed
from physis_core.plan.simulation import simulate, simulation_of
from physis_core.types import UserError

SUMMARY = "simulate a plan: noise, stalls, arriving streams; show tails, misses and refusals"
MOST_ROWS = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", type=Path, help="YAML: a plan (config/plan) or a deployment of `physis plan --out`"
    )
    parser.add_argument("--seconds", type=float, help="simulated time; replaces the file's")
    parser.add_argument("--seed", type=int, help="replaces the file's")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw the run")


def run(args: argparse.Namespace) -> dict[str, Any]:
    if args.seconds is not None and not 0.0 < args.seconds < math.inf:
        raise UserError("seconds", args.seconds, "must be positive and finite")
    if args.seed is not None and args.seed < 0:
        raise UserError("seed", args.seed, "must not be negative")
    check_folder("plot", args.plot)
    if is_deployment(args.file):
        planned = load_deployment(args.file)
        outcome = simulate_deployed(planned, seconds=args.seconds, seed=args.seed)
    else:
        plan = load_plan(args.file)
        outcome = simulate(simulation_of(plan, seconds=args.seconds, seed=args.seed))
    console = Console()
    _print(outcome, console)
    if args.plot is not None:
        from physis_core.observe.plots import plot_simulation

        plot_simulation(outcome, args.plot)
        console.print(f"picture: {args.plot}")
    return {"ok": True, **outcome}


def _print(outcome: Mapping[str, Any], console: Console) -> None:
    streams = outcome["streams"]
    headings = (
        *("stream", "period ms", "chunks", "interval p50 / p99 / p99.9 ms"),
        *("response p50 / p99 ms", "age p99 ms", "missed", "dropped"),
    )
    rows = map(_cells, streams[:MOST_ROWS])
    print_table(console, "streams after the warm-up", headings, rows, left=("stream",))
    if len(streams) > MOST_ROWS:
        console.print(f"  {len(streams)} streams in all; --json has every one")
    every = outcome["all_streams"]
    ratio = every["interval_over_period"]
    batches = outcome["batches"]
    busiest = max(outcome["devices"], key=lambda d: d["busy_share"])
    pace = (
        f"interval over period: p50 {ratio['p50']:.4g}, p99 {ratio['p99']:.4g},"
        f" p99.9 {ratio['p999']:.4g}, max {ratio['max']:.4g}"
    )
    kept = (
        f"{every['chunks']} chunks, {every['deadline_misses']} missed, {every['dropped']} dropped"
    )
    batching = (
        f"batches: mean size {batches.get('mean_size', 0.0):.3g},"
        f" {batches.get('across_streams', 0)} across streams,"
        f" {batches.get('gain_s', 0.0):.3g} device-seconds gained"
    )
    load = f"busiest device {busiest['device']}: {100 * busiest['busy_share']:.0f}% busy"
    admission = (
        f"admitted {outcome['admitted']}, refused {len(outcome['refused'])}"
        f" ({100 * outcome['refusal_rate']:.1f}%), most open at once {outcome['most_open']}"
    )
    speed = (
        f"{outcome['tasks']} tasks in {outcome['cpu_s']:.2f} s of one core"
        f" ({outcome['tasks_per_s']:.0f} tasks/s)"
    )
    most = {
        field: max(100.0 * look[field] for look in outcome["fragmentation"])
        for field in ("stranded_memory", "stranded_time")
    }
    stranded = (
        f"fragmentation: at most {most['stranded_memory']:.0f}% of the pool's memory and"
        f" {most['stranded_time']:.0f}% of its time free but unusable for the smallest rank"
    )
    for line in (pace, kept, batching, load, stranded, admission, speed):
        console.print(f"  {line}", highlight=False)
    for refusal in outcome["refused"][:3]:
        console.print(
            f"  refused {refusal['stream']} at {refusal['at_s']:.3g} s: {refusal['reason']};"
            f" nearest: {refusal['nearest']}",
            highlight=False,
        )
    for event in outcome["overload"][:5]:
        console.print(
            f"  {event['level']} from {event['at_s']:.3g} s, device {event['device']}",
            highlight=False,
        )


def _cells(row: Mapping[str, Any]) -> tuple[object, ...]:
    interval, response = row["output_interval_ms"], row["response_latency_ms"]
    return (
        row["stream"],
        "free" if row["period_ms"] is None else f"{row['period_ms']:.4g}",
        row["chunks"],
        f"{interval['p50']:.4g} / {interval['p99']:.4g} / {interval['p999']:.4g}",
        f"{response['p50']:.4g} / {response['p99']:.4g}",
        f"{row['action_age_handoff_ms']['p99']:.4g}",
        row["deadline_misses"],
        sum(row["dropped"].values()),
    )
