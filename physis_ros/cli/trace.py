"""`physis trace`: where each chunk of a recorded run spent its time."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from physis_core.observe.result_file import check_folder
from physis_core.observe.run_figures import run_figures
from physis_core.observe.tables import print_table
from physis_core.observe.trace import RunTrace
from physis_core.types import UserError

SUMMARY = "show how a recorded run's chunks passed through stages and hops; draw the wave front"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="a trace, e.g. of `physis bench wavefront`")
    parser.add_argument("--blocks", type=int, required=True, help="transformer blocks of the model")
    parser.add_argument("--chunk", type=int, help="list the stages of this chunk")
    parser.add_argument("--stream", type=int, help="number of the stream in the trace")
    parser.add_argument("--epoch", type=int, default=0)
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw the wave front")


def run(args: argparse.Namespace) -> dict[str, Any]:
    check_folder("plot", args.plot)
    trace = RunTrace.load(args.file)
    if args.blocks < 1:
        raise UserError("blocks", args.blocks, "must be at least 1")
    if not len(trace.tasks):
        raise UserError("trace", str(args.file), "contains no task")
    known = sorted({int(s) for s in trace.tasks["stream"]})
    stream = known[0] if args.stream is None else args.stream
    if stream not in known:
        raise UserError("stream", stream, f"must be one of {', '.join(map(str, known))}")
    tasks = trace.tasks[(trace.tasks["stream"] == stream) & (trace.tasks["epoch"] == args.epoch)]
    if not len(tasks):
        raise UserError("epoch", args.epoch, f"the trace has none of stream {stream}")
    console = Console()
    result: dict[str, Any] = {"ok": True, **run_figures(trace, blocks=args.blocks)}
    if args.chunk is None:
        _print_stages(result, console)
    else:
        result["visits"] = _print_chunk(trace, stream, args, console)
    if args.plot is not None:
        from physis_core.observe.wavefront import plot_wavefronts

        chunks = np.unique(tasks["chunk"])
        # From the middle: after the fill, and few enough chunks to tell them apart.
        middle = int(chunks[len(chunks) // 2])
        stages = int(tasks["stage"].max()) + 1
        plot_wavefronts(
            [(f"stream {stream}", tasks)],
            args.plot,
            blocks=args.blocks,
            from_chunk=middle,
            chunks=min(stages + 2, 12),
        )
        console.print(f"  {args.plot}", markup=False, highlight=False)
    return result


def _print_stages(figures: dict[str, Any], console: Console) -> None:
    print_table(
        console,
        "Stages, milliseconds",
        ("stage", "devices", "compute p50", "p99", "queue p50", "p99"),
        (
            (
                f"({stage['step']}, {stage['block']})",
                ", ".join(map(str, stage["devices"])),
                *(
                    f"{stage[part][key]:.2f}"
                    for part in ("compute_ms", "queue_ms")
                    for key in ("p50", "p99")
                ),
            )
            for stage in figures["stages"]
        ),
    )


def _print_chunk(
    trace: RunTrace, stream: int, args: argparse.Namespace, console: Console
) -> list[dict[str, float]]:
    visits = trace.visits_of(stream, args.epoch, args.chunk)
    if not visits:
        raise UserError("chunk", args.chunk, "is not in the trace")
    origin_s = visits[0].ready_s
    rows: list[dict[str, float]] = [
        {
            "stage": visit.stage,
            "device": visit.device,
            "hop_ms": 1e3 * visit.hop_s,
            "queue_ms": 1e3 * visit.queue_s,
            "compute_ms": 1e3 * visit.compute_s,
            "batch": visit.batch_size,
            "done_ms": 1e3 * (visit.end_s - origin_s),
        }
        for visit in visits
    ]
    print_table(
        console,
        f"Stages of chunk {args.chunk}",
        ("stage", "device", "hop ms", "queue ms", "compute ms", "batch", "done at ms"),
        (
            (
                f"({row['stage'] // args.blocks}, {row['stage'] % args.blocks})",
                row["device"],
                *(f"{row[name]:.2f}" for name in ("hop_ms", "queue_ms", "compute_ms")),
                row["batch"],
                f"{row['done_ms']:.1f}",
            )
            for row in rows
        ),
    )
    return rows
