"""`physis bench links`: the overhead of one hop between two processes, against bare gloo.

A hop lasts from the end of the computation in one process to its start in the other, with one chunk
in flight so that the receiver is always idle. It contains sending, receiving, waking the event loop
and dispatch. The baseline sends the same number of bytes with a bare gloo send and receive, after
the same compute time in the sender. Every process is bound to its own core, because the operating
system may otherwise put both on one for a while.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import Progress

from physis_core.deployment.deployment import simple_deployment
from physis_core.model.loading import load_spec
from physis_core.model.registry import ModelRef
from physis_core.observe.figures import Figure, print_figures, repeated, result
from physis_core.worker.links.link import PayloadLayout
from physis_lab.bench.arguments import require_at_least
from physis_lab.bench.engine.peer_gloo import one_way_s
from physis_lab.session.engine_run import free_stream, run_streams

Seconds = npt.NDArray[np.float64]

TOKENS = (16, 64, 256)
DIM = 256
AIM = 2.0
TIMEOUT_S = 300.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--chunks", type=int, default=300, help="hops timed in each run")
    parser.add_argument("--repeat", type=int, default=5, help="runs behind each spread")


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    require_at_least(args, chunks=10, repeat=1)
    models = [_model(tokens) for tokens in TOKENS]
    sizes = [_message_bytes(model) for model in models]
    ours: list[list[float]] = [[] for _ in sizes]
    bare: list[list[float]] = [[] for _ in sizes]
    with Progress(console=console) as progress:
        task = progress.add_task("links", total=args.repeat * (len(sizes) + 1))
        for _ in range(args.repeat):
            gaps_s = []
            for own, model, size in zip(ours, models, sizes, strict=True):
                progress.update(task, description=f"hop of {size / 1024:.0f} KiB")
                hops_s, compute_s = _hops_s(model, args.chunks)
                own.append(float(np.median(hops_s)))
                gaps_s.append(float(np.median(compute_s)))
                progress.advance(task)
            progress.update(task, description="bare gloo")
            for own, times in zip(
                bare,
                one_way_s(sizes, gaps_s=gaps_s, exchanges=args.chunks, timeout_s=TIMEOUT_S),
                strict=True,
            ):
                own.append(float(np.median(times)))
            progress.advance(task)
    figures: dict[str, Figure] = {}
    worst = [max(o[i] / b[i] for o, b in zip(ours, bare, strict=True)) for i in range(args.repeat)]
    figures["links.hop_vs_gloo"] = repeated(worst, "x bare gloo, worst size", aim=AIM)
    for size, own, theirs in zip(sizes, ours, bare, strict=True):
        name = f"{size // 1024}KiB"
        ratios = [o / b for o, b in zip(own, theirs, strict=True)]
        figures[f"links.hop_vs_gloo_{name}"] = repeated(ratios, "x bare gloo")
        figures[f"links.hop_us_{name}"] = repeated([1e6 * o for o in own], "us")
        figures[f"links.bare_gloo_us_{name}"] = repeated([1e6 * b for b in theirs], "us")
    print_figures("One hop between two processes of this host", figures, console)
    config = {"chunks": args.chunks, "repeat": args.repeat, "message_bytes": sizes}
    return result(figures, config)


def _model(tokens: int) -> ModelRef:
    config = {"steps": 1, "blocks": 2, "tokens": tokens, "dim": DIM, "heads": 4}
    return ModelRef(family="synthetic", config={**config, "window_chunks": 1})


def _message_bytes(model: ModelRef) -> int:
    """Size of envelope and hidden state between block 0 and block 1."""
    return PayloadLayout([load_spec(model)]).bytes_for([(0, 1)])


def _hops_s(model: ModelRef, chunks: int) -> tuple[Seconds, Seconds]:
    """Seconds of each hop, and of the computation before it."""
    deployment = simple_deployment(model, partition="block", devices=2, workers=2, bind_cores=True)
    run = run_streams(
        deployment, [free_stream(max_in_flight=1)], chunks=chunks + 20, timeout_s=TIMEOUT_S
    )
    tasks = run.trace.tasks
    left = {int(t["chunk"]): float(t["end_s"]) for t in tasks if t["stage"] == 0}
    hops = [float(t["start_s"]) - left[int(t["chunk"])] for t in tasks if t["stage"] == 1]
    compute = [float(t["end_s"] - t["start_s"]) for t in tasks if t["stage"] == 0]
    return np.array(hops[20:]), np.array(compute[20:])
