"""`physis bench world`: frames per second of the world model, with and without decoding.

One checkpoint, partition and set of workers; chunks enter as soon as a slot is free, for one world
and for two. The configurations alternate, so that slow phases of the machine affect all of them.
The checkpoint may also be a policy that predicts frames (`physis_tiny_wam`).
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from physis_core.deployment.deployment import simple_deployment
from physis_core.model.description import ModelDescription
from physis_core.model.registry import ModelRef, describe, find_model
from physis_core.observe.figures import Figure, print_figures, repeated, result
from physis_core.types import UserError
from physis_lab.bench.arguments import require_at_least
from physis_lab.session.engine_run import free_stream, run_streams

WARM_UP_CHUNKS = 10
TIMEOUT_S = 120.0
AIM_HZ = 30.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--checkpoint", type=Path, default=Path("checkpoints/physis_tiny_world.safetensors")
    )
    parser.add_argument("--partition", default="block")
    parser.add_argument("--workers", type=int, default=2, help="worker processes, one device each")
    parser.add_argument("--chunks", type=int, default=60, help="chunks per run, after the fill")
    parser.add_argument("--repeat", type=int, default=3)


def model_with_frames(checkpoint: Path) -> tuple[ModelRef, ModelDescription]:
    """Raises UserError if the file is not a model that generates frames."""
    ref = find_model(checkpoint)
    description = describe(ref)
    if description.frames is None:
        raise UserError("checkpoint", str(checkpoint), "is a model that generates no frames")
    return ref, description


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    require_at_least(args, workers=1, chunks=10, repeat=1)
    ref, description = model_with_frames(args.checkpoint)
    frames = description.frames
    assert frames is not None
    intervals: dict[tuple[bool, int], list[float]] = {}
    responses: dict[tuple[bool, int], list[float]] = {}
    for _ in range(args.repeat):
        for decode in (True, False):
            deployment = simple_deployment(
                replace(ref, config={"decode": decode}),
                partition=args.partition,
                devices=args.workers,
                workers=args.workers,
            )
            for worlds in (1, 2):
                done = run_streams(
                    deployment,
                    [free_stream(f"world{n}", seed=n) for n in range(worlds)],
                    chunks=WARM_UP_CHUNKS + args.chunks,
                    timeout_s=TIMEOUT_S,
                )
                steady = [stream.steady(WARM_UP_CHUNKS) for stream in done.streams]
                # Chunks of all worlds together per second.
                rate_hz = sum(stream.rate_hz for stream in steady)
                intervals.setdefault((decode, worlds), []).append(1.0 / rate_hz)
                answered = sorted(s for stream in steady for s in stream.responses_s)
                responses.setdefault((decode, worlds), []).append(answered[len(answered) // 2])
    figures: dict[str, Figure] = {}
    for (decode, worlds), found in sorted(intervals.items(), reverse=True):
        name = f"{'decoded' if decode else 'latents'}.{worlds}_world{'s' * (worlds > 1)}"
        figures[f"world.interval.{name}"] = repeated([1e3 * s for s in found], "ms")
        figures[f"world.frame_rate.{name}"] = repeated(
            [frames.count / s for s in found],
            "1/s",
            aim=AIM_HZ if decode and worlds == 1 and description.commands is not None else None,
            better="higher",
        )
        figures[f"world.response.{name}"] = repeated(
            [1e3 * s for s in responses[decode, worlds]], "ms"
        )
    drawn = f"{frames.count} x {frames.width} x {frames.height}"
    print_figures(f"{args.checkpoint.stem}: {drawn} per chunk", figures, console)
    return result(
        figures,
        {
            "checkpoint": str(args.checkpoint),
            "partition": args.partition,
            "workers": args.workers,
            "chunks": args.chunks,
            "repeat": args.repeat,
        },
    )
