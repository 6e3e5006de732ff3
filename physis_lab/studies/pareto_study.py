"""How well the task is done over partitions and device counts, and the Pareto front.

    python -m physis_lab.studies.pareto_study \\
        --checkpoint checkpoints/physis_tiny_follow.safetensors --plot docs/images/pareto.png

For each partition and device count the engine runs the checkpoint's stages on emulated devices of
`--stage-ms` a stage (real queues, links and dispatch): first without a period, as fast as it can,
then with a period of 1.1 times that interval. The second run gives interval, response latency and
deadline misses. Then the policy does its task in the fast closed loop with that interval and
response. If the interval is shorter than in training, it does the task again with the trained one,
which shows what the more frequent output is worth.

A batch of n stages of one block takes stage_ms * (1 + batch_slope * (n - 1)). Slope 0 is a device
that only reads weights, slope 1 one on which batches gain nothing.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from physis_core.deployment.deployment import simple_deployment
from physis_core.model.loading import load_spec
from physis_core.model.registry import ModelRef
from physis_core.model.tiny.config import TinyConfig, read_config
from physis_core.observe.machine import machine
from physis_core.observe.plots import save
from physis_core.observe.result_file import write_result
from physis_core.types import UserError
from physis_lab.arm.camera import Camera
from physis_lab.arm.kinematics import Kinematics
from physis_lab.arm.scene import build_model
from physis_lab.evaluation.closed_loop import (
    RENDER_SIZE,
    ClosedLoopConfig,
    run_recorded,
    still_errors,
)
from physis_lab.evaluation.fast_report import judged
from physis_lab.evaluation.lookahead import LookaheadCapped
from physis_lab.evaluation.policies import ModelPolicy
from physis_lab.session.engine_run import EngineSession, free_stream
from physis_lab.tasks.task import make_task

MARGIN = 1.1
"""A stream's period over the interval that its devices reach: room for jitter."""

NOISE = 0.05
TIMEOUT_S = 300.0
COLOURS = {
    "sequential": "#000000",
    "step": "#0072B2",
    "block": "#009E73",
    "grouped": "#E69F00",
    "stage": "#D55E00",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePoint:
    """What the engine did on `devices` emulated devices; medians of the steady state."""

    partition: str
    devices: int
    fastest_interval_ms: float
    interval_ms: float
    response_ms: float
    on_time: float
    """Share of chunks that kept their deadline."""
    device_s_per_output: float
    """Device-seconds per on-time output."""


def points_of(steps: int, blocks: int) -> tuple[tuple[str, int], ...]:
    """Partition and device count of each run; each placement once."""
    return (
        ("sequential", 1),
        ("step", 2),
        ("step", steps),
        ("block", 2),
        ("block", blocks),
        ("grouped", steps * blocks // 2),
        ("stage", steps * blocks),
    )


def measure(
    checkpoint: Path,
    kind: str,
    devices: int,
    *,
    stage_s: float,
    batch_slope: float,
    chunks: int,
) -> EnginePoint:
    """Two runs of the engine: without a period, then with MARGIN times the interval reached.

    Raises:
        RuntimeError: the engine did not finish in time.
    """
    model = ModelRef(family="tiny", checkpoint=str(checkpoint))
    spec = load_spec(model)
    batch = spec.steps if kind == "block" else 1
    costs = {
        block: {n: stage_s * (1.0 + batch_slope * (n - 1)) for n in range(1, batch + 1)}
        for block in range(spec.blocks)
    }
    deployment = simple_deployment(
        model,
        partition=kind,
        devices=devices,
        # In this process: emulated devices need no cores of their own.
        workers=0,
        device_kind="emulated",
        costs=costs,
        max_batch=batch,
        noise=NOISE,
    )
    ranks = len(deployment.devices)
    skip = ranks + spec.window_chunks
    with EngineSession(deployment, timeout_s=TIMEOUT_S) as session:
        free = session.run([free_stream("free")], chunks=chunks + skip)
        fastest_s = float(np.mean(free.streams[0].steady(skip).intervals_s))
        stream = free_stream(
            "paced",
            release="periodic",
            period_s=MARGIN * fastest_s,
            expected_response_s=stage_s * spec.steps * spec.blocks,
        )
        paced = session.run([stream], chunks=chunks + skip)
    steady = paced.streams[0].steady(skip)
    interval_s = float(np.mean(steady.intervals_s))
    on_time = float(np.mean(steady.exit_s <= steady.deadline_s))
    return EnginePoint(
        partition=kind,
        devices=ranks,
        fastest_interval_ms=1e3 * fastest_s,
        interval_ms=1e3 * interval_s,
        response_ms=1e3 * float(np.median(steady.responses_s)),
        on_time=on_time,
        device_s_per_output=ranks * interval_s / on_time if on_time else math.inf,
    )


def in_the_loop(
    checkpoint: Path, config: ClosedLoopConfig, points: Sequence[EnginePoint]
) -> tuple[list[dict[str, Any]], float]:
    """The task's outcome with each point's interval and response.

    Returns one row per point, and the mean error of an arm that does not move [m].
    """
    shape = read_config(checkpoint, TinyConfig)
    trained_s = shape.period_s
    tasks = [make_task(config.task, config.first_seed + n) for n in range(config.episodes)]
    world = build_model(props=tasks[0].props)
    still = still_errors(tasks, config, Kinematics(world))
    rows = []
    with Camera(world, width=RENDER_SIZE, height=RENDER_SIZE) as camera:

        def loop_at(period_s: float, response_s: float) -> dict[str, Any]:
            here = replace(config, period_s=period_s, response_s=response_s)
            model = ModelPolicy(checkpoint, camera, episodes=here.episodes)
            policy = LookaheadCapped(model, shape.lookahead_max_s)
            errors = run_recorded(policy, tasks, here).errors
            return judged(tasks[0].rule, here, errors, still)[1]

        for point in points:
            interval_s, response_s = point.interval_ms / 1e3, point.response_ms / 1e3
            as_it_is = loop_at(interval_s, response_s)
            trained = as_it_is
            if interval_s < trained_s:
                trained = loop_at(trained_s, response_s)
            rows.append({**asdict(point), "task": as_it_is, "task_at_trained_period": trained})
            print(
                f"{point.partition} {point.devices}: {point.interval_ms:.0f} ms,"
                f" {1e3 * as_it_is['mean_m']:.1f} mm",
                file=sys.stderr,
                flush=True,
            )
    for row, best in zip(rows, on_front(rows), strict=True):
        row["on_front"] = best
    return rows, judged(tasks[0].rule, config, still, still)[1]["mean_m"]


def on_front(rows: Sequence[dict[str, Any]]) -> list[bool]:
    """For each row, whether no other row dominates it."""
    return [not any(_dominates(other, row) for other in rows) for row in rows]


def _dominates(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """No more devices, no more error, and better in one of them."""
    a = (one["devices"], one["task"]["mean_m"])
    b = (other["devices"], other["task"]["mean_m"])
    return a[0] <= b[0] and a[1] <= b[1] and a != b


def draw(path: Path, rows: Sequence[dict[str, Any]], still_m: float) -> None:
    """Interval, response, error and cost over the device count; a ring marks the front."""
    figure = Figure(figsize=(13, 3.9), layout="constrained")
    axes: Any = figure.subplots(1, 4)
    for kind, colour in COLOURS.items():
        own = [row for row in rows if row["partition"] == kind]
        if not own:
            continue
        devices = [row["devices"] for row in own]
        for axis, field in ((axes[0], "interval_ms"), (axes[1], "response_ms")):
            axis.plot(devices, [row[field] for row in own], "o-", color=colour, label=kind)
        axes[2].errorbar(
            devices,
            [1e3 * row["task"]["mean_m"] for row in own],
            yerr=[1e3 * row["task"]["mean_ci95_m"] for row in own],
            fmt="o-",
            capsize=3,
            color=colour,
        )
        axes[3].plot(devices, [row["device_s_per_output"] for row in own], "o-", color=colour)
    front = sorted((row for row in rows if row["on_front"]), key=lambda row: row["devices"])
    axes[2].plot(
        [row["devices"] for row in front],
        [1e3 * row["task"]["mean_m"] for row in front],
        "o",
        ms=12,
        mfc="none",
        color="grey",
        label="Pareto front",
    )
    axes[2].axhline(1e3 * still_m / 6, color="grey", linestyle=":", label="success: still / 6")
    for axis, label in zip(
        axes,
        (
            "output interval [ms] (not a latency)",
            "response latency [ms]",
            "mean error [mm]",
            "device-seconds per on-time output",
        ),
        strict=True,
    ):
        axis.set_title(label, fontsize=10, loc="left")
        axis.set_xlabel("devices")
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False)
    axes[2].legend(frameon=False)
    save(figure, path)


def print_rows(rows: Sequence[dict[str, Any]]) -> None:
    print(
        f"{'partition':11s}{'devices':>8s}{'interval':>10s}{'response':>10s}{'on time':>9s}"
        f"{'dev s/out':>11s}{'error mm':>15s}{'success':>9s}{'at trained period':>19s}  front"
    )
    for row in rows:
        task, trained = row["task"], row["task_at_trained_period"]
        print(
            f"{row['partition']:11s}{row['devices']:8d}{row['interval_ms']:10.1f}"
            f"{row['response_ms']:10.1f}{row['on_time']:9.2f}{row['device_s_per_output']:11.3f}"
            f"{1e3 * task['mean_m']:9.1f} +-{1e3 * task['mean_ci95_m']:3.1f}"
            f"{task['success']:9.2f}{1e3 * trained['mean_m']:12.1f} +-"
            f"{1e3 * trained['mean_ci95_m']:3.1f}  {'*' if row['on_front'] else ''}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description="Task results over partitions and devices.")
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--stage-ms", type=float, default=20.0, help="of one emulated stage")
    parser.add_argument("--batch-slope", type=float, default=0.25)
    parser.add_argument("--chunks", type=int, default=40, help="after the fill, in each run")
    parser.add_argument("--task", default="follow")
    parser.add_argument("--episodes", type=int, default=8)
    parser.add_argument("--duration", type=float, default=12.0, help="seconds each")
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--json", type=Path, help="also write the result here")
    args = parser.parse_args()
    torch.set_num_threads(1)
    try:
        if not 1.0 <= args.stage_ms <= 1000.0:
            raise UserError("stage_ms", args.stage_ms, "must be from 1 to 1000")
        if not 0.0 <= args.batch_slope <= 1.0:
            raise UserError("batch_slope", args.batch_slope, "must be from 0 to 1")
        if args.chunks < 8:
            raise UserError("chunks", args.chunks, "must be at least 8")
        config = ClosedLoopConfig(
            task=args.task,
            episodes=args.episodes,
            duration_s=args.duration,
            first_seed=args.seed,
        )
        shape = read_config(args.checkpoint, TinyConfig)
        points = []
        for kind, devices in points_of(shape.steps, shape.blocks):
            print(f"engine: {kind}, {devices} devices", file=sys.stderr, flush=True)
            points.append(
                measure(
                    args.checkpoint,
                    kind,
                    devices,
                    stage_s=args.stage_ms / 1e3,
                    batch_slope=args.batch_slope,
                    chunks=args.chunks,
                )
            )
        rows, still_m = in_the_loop(args.checkpoint, config, points)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    print_rows(rows)
    print(f"standing still: {1e3 * still_m:.1f} mm")
    if args.plot:
        draw(args.plot, rows, still_m)
    if args.json:
        write_result(
            args.json,
            {
                "rows": rows,
                "still_error_m": still_m,
                "config": {
                    **asdict(config),
                    "stage_ms": args.stage_ms,
                    "batch_slope": args.batch_slope,
                    "noise": NOISE,
                    "margin": MARGIN,
                },
                "machine": machine(),
            },
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
