"""`physis bench scale`: many emulated stages on as many emulated devices, through the real queues.

This measures the engine's overhead: links, queues, dispatch, control and metrics are real, and only
the computation is replaced by waiting. The baseline is an ideal pipeline with the same credits,
slots and durations, and no overhead (`ideal_exits_s`).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import Progress

from physis_core.deployment.deployment import Deployment, simple_deployment
from physis_core.model.registry import ModelRef
from physis_core.observe.figures import Figure, print_figures, repeated, result
from physis_core.pipeline.emulation import DurationNoise
from physis_core.types import UserError
from physis_lab.bench.arguments import require_at_least
from physis_lab.session.engine_run import free_stream, run_streams

Seconds = npt.NDArray[np.float64]

STEPS = 4
NOISE = 0.05
KEEPS_UP = 1.10
STAGE_TIMES_MS = (20.0, 15.0, 10.0, 7.0, 5.0, 4.0, 3.0, 2.0, 1.5, 1.0)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--stages", type=int, default=200, help="a multiple of 4 (default 200)")
    parser.add_argument("--chunks", type=int, default=1000, help="after the fill (default 1000)")
    parser.add_argument("--stage-ms", type=float, default=20.0, help="duration of a stage")
    parser.add_argument("--repeat", type=int, default=3, help="runs behind each spread")
    parser.add_argument(
        "--workers", type=int, default=1, help="processes that host the devices; 0: this process"
    )


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    if args.stages < STEPS or args.stages % STEPS:
        raise UserError("stages", args.stages, f"must be a multiple of {STEPS}")
    require_at_least(args, chunks=1, repeat=1)
    if not 0.1 <= args.stage_ms <= 1000.0:
        raise UserError("stage_ms", args.stage_ms, "must be from 0.1 to 1000")
    stage_s = args.stage_ms / 1e3
    below = [t for t in STAGE_TIMES_MS if t <= args.stage_ms]
    steps = args.repeat * 2 + len(below)
    with Progress(console=console) as progress:
        task = progress.add_task("emulated stages", total=steps)

        def measure(seconds: float, noise: float, seed: int, chunks: int) -> tuple[Any, Deployment]:
            progress.update(task, description=f"{seconds * 1e3:g} ms per stage, noise {noise:g}")
            deployment = _deployment(args.stages, args.workers, seconds, noise, seed)
            total = args.stages + chunks
            limit_s = 60.0 + 4.0 * (total + args.stages) * seconds
            run = run_streams(deployment, [free_stream()], chunks=total, timeout_s=limit_s)
            progress.advance(task)
            return run.streams[0], deployment

        quiet = [measure(stage_s, 0.0, 0, args.chunks)[0] for _ in range(args.repeat)]
        noisy = [measure(stage_s, NOISE, seed, args.chunks) for seed in range(args.repeat)]
        ladder = []
        for stage_ms in below:
            own = measure(stage_ms / 1e3, 0.0, 0, args.chunks)[0].steady(args.stages)
            ladder.append((stage_ms, float(np.median(own.intervals_s)) / (stage_ms / 1e3)))
            if ladder[-1][1] > 2.0:
                progress.update(task, total=steps - len(below) + len(ladder))
                break

    steady = [one.steady(args.stages) for one in quiet]
    against_ideal = []
    for one, deployment in noisy:
        ideal = ideal_exits_s(
            stages=args.stages,
            chunks=args.stages + args.chunks,
            duration_s=_durations(deployment, stage_s),
            credits=deployment.credits,
            slots=args.stages + 1,
        )
        ours = one.steady(args.stages)
        span = ideal[-1] - ideal[args.stages]
        against_ideal.append(float((ours.exit_s[-1] - ours.exit_s[0]) / span))
    kept = [stage_ms for stage_ms, ratio in ladder if ratio <= KEEPS_UP]
    figures = {
        "scale.interval_ratio_p50": repeated(
            [float(np.median(s.intervals_s)) / stage_s for s in steady], "x stage", aim=1.03
        ),
        "scale.interval_ratio_p99": repeated(
            [float(np.percentile(s.intervals_s, 99)) / stage_s for s in steady],
            "x stage",
            aim=1.10,
        ),
        "scale.response_ratio": repeated(
            [float(np.median(s.responses_s)) / (stage_s * args.stages) for s in steady],
            "x sum of stages",
            aim=1.05,
        ),
        "scale.noise_vs_ideal": repeated(against_ideal, "x ideal", aim=1.03),
        "scale.smallest_stage_ms": Figure(
            value=min(kept) if kept else float("inf"), unit="ms", aim=5.0
        ),
    }
    for stage_ms, ratio in ladder:
        figures[f"scale.interval_ratio_at_{stage_ms:g}ms"] = Figure(value=ratio, unit="x stage")
    print_figures(f"{args.stages} emulated stages on as many devices", figures, console)
    config = {
        "stages": args.stages,
        "chunks": args.chunks,
        "stage_ms": args.stage_ms,
        "noise": NOISE,
        "credits": noisy[0][1].credits,
        "workers": args.workers,
        "repeat": args.repeat,
        "note": "emulated devices; real queues, links, dispatch and metrics",
    }
    return result(figures, config)


def ideal_exits_s(
    *,
    stages: int,
    chunks: int,
    duration_s: Callable[[int, int], float],
    credits: int,
    slots: int,
) -> Seconds:
    """Exit time of each chunk from a pipeline without overhead, [chunks] s.

    A max-plus recursion. Chunk c starts at stage s when it has left s - 1, chunk c - 1 has left s,
    and chunk c - credits has started at s + 1, which frees a place in the queue behind s. Chunk c
    enters when chunk c - slots has left the last stage.
    """
    start = np.zeros((chunks, stages + 1))
    exit_s = np.zeros(chunks)
    before = np.zeros(stages)
    for c in range(chunks):
        at = exit_s[c - slots] if c >= slots else 0.0
        room = start[c - credits] if c >= credits else None
        own = start[c]
        for s in range(stages):
            begin = max(at, before[s])
            if room is not None and s + 1 < stages and room[s + 1] > begin:
                begin = room[s + 1]
            own[s] = begin
            at = begin + duration_s(c, s)
            before[s] = at
        exit_s[c] = at
    return exit_s


def _durations(deployment: Deployment, stage_s: float) -> Callable[[int, int], float]:
    noise = DurationNoise(deployment.noise, deployment.noise_seed)
    return lambda chunk, stage: stage_s * noise.factor(chunk, stage)


def _deployment(stages: int, workers: int, stage_s: float, noise: float, seed: int) -> Deployment:
    blocks = stages // STEPS
    model = ModelRef(family="synthetic", config={"steps": STEPS, "blocks": blocks})
    return simple_deployment(
        model,
        partition="stage",
        devices=stages,
        workers=workers,
        device_kind="emulated",
        costs={block: {1: stage_s} for block in range(blocks)},
        noise=noise,
        noise_seed=seed,
    )
