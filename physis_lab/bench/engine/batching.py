"""`physis bench batching`: same-block batches against one task at a time, on one device.

With D chunks in flight on one device, the D steps of a block are ready together: a batch reads the
block's weights once. Without batching the same tasks run one by one. The outputs must be equal.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress

from physis_core.deployment.deployment import simple_deployment
from physis_core.model.loading import load_spec
from physis_core.model.registry import ModelRef
from physis_core.observe.figures import Figure, print_figures, repeated, result
from physis_lab.bench.arguments import require_at_least
from physis_lab.session.engine_run import (
    StreamRun,
    free_stream,
    run_streams,
)

STEPS = 4
AIM = 0.30
SAME = 1e-4
TIMEOUT_S = 600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--chunks", type=int, default=60, help="after the fill, in each run")
    parser.add_argument("--repeat", type=int, default=5, help="pairs of runs behind each spread")
    parser.add_argument("--tokens", type=int, default=4, help="tokens of a chunk")
    parser.add_argument("--dim", type=int, default=1024, help="width of the model")
    parser.add_argument("--blocks", type=int, default=6, help="transformer blocks")


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    require_at_least(args, chunks=8, repeat=1, tokens=1, dim=64, blocks=1)
    torch.set_num_threads(1)
    config = {
        "steps": STEPS,
        "blocks": args.blocks,
        "tokens": args.tokens,
        "dim": args.dim,
        "heads": 8,
        "window_chunks": 4,
    }
    model = ModelRef(family="synthetic", config=config)
    cuts, turns_ms, batched_ms, differences, sizes = [], [], [], [], []
    with Progress(console=console) as progress:
        task = progress.add_task("batching", total=2 * args.repeat)
        for _ in range(args.repeat):
            progress.update(task, description="one task at a time")
            turns, _size = _run(model, 1, args.chunks)
            progress.advance(task)
            progress.update(task, description="same-block batches")
            batched, size = _run(model, STEPS, args.chunks)
            progress.advance(task)
            turns_ms.append(1e3 / turns.rate_hz)
            batched_ms.append(1e3 / batched.rate_hz)
            cuts.append(1.0 - batched_ms[-1] / turns_ms[-1])
            differences.append(_largest_difference(turns, batched))
            sizes.append(size)
    figures = {
        "batching.interval_cut": repeated(cuts, "of the interval", aim=AIM, better="higher"),
        "batching.turns_interval": repeated(turns_ms, "ms"),
        "batching.batched_interval": repeated(batched_ms, "ms"),
        "batching.output_difference": Figure(
            value=max(differences), unit="largest, relative", aim=SAME
        ),
        "batching.mean_batch": repeated(sizes, "tasks"),
    }
    print_figures("One CPU device, D = 4", figures, console)
    return result(figures, {"model": config, "chunks": args.chunks, "repeat": args.repeat})


def _run(model: ModelRef, max_batch: int, chunks: int) -> tuple[StreamRun, float]:
    """The steady state of a run, and the mean number of tasks per batch."""
    spec = load_spec(model)
    skip = spec.window_chunks + spec.steps
    deployment = simple_deployment(model, workers=1, max_batch=max_batch)
    # The same number of chunks in flight in both, so that only the batching differs.
    stream = free_stream(max_in_flight=STEPS + 1)
    run = run_streams(deployment, [stream], chunks=chunks + skip, timeout_s=TIMEOUT_S)
    batches = sum(device["batches"] for device in run.trace.devices)
    tasks = len(run.streams[0].exit_s) * spec.graph.stages
    return run.streams[0].steady(skip), tasks / batches


def _largest_difference(a: StreamRun, b: StreamRun) -> float:
    """Over all chunks, relative to the largest output value."""
    worst = 0.0
    for one, other in zip(a.outputs, b.outputs, strict=True):
        for name, value in one.items():
            scale = float(np.abs(value).max())
            worst = max(worst, float(np.abs(value - other[name]).max()) / scale)
    return worst
