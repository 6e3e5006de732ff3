"""`physis bench wavefront`: draws the figure of docs/reference/engine.md from traces of real runs.

Two runs of one model with 2 denoising steps and 4 blocks: one on eight emulated devices with one
stage each, one on two worker processes that compute, with both steps of a block in one batch.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from physis_core.deployment.deployment import Deployment, simple_deployment
from physis_core.model.registry import ModelRef
from physis_core.observe.figures import Figure, print_figures, result
from physis_core.observe.wavefront import plot_wavefronts
from physis_core.types import UserError
from physis_lab.session.engine_run import free_stream, run_streams

STEPS, BLOCKS = 2, 4
EMULATED_S = 0.02
CHUNKS = 30
SHOWN = 9


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs/wavefront"),
        help="directory for the figure and the traces",
    )


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError("out", str(args.out), error.strerror or str(error)) from error
    model = ModelRef(
        family="synthetic",
        config={"steps": STEPS, "blocks": BLOCKS, "tokens": 64, "dim": 512, "heads": 8},
    )
    emulated = simple_deployment(
        model,
        partition="stage",
        devices=STEPS * BLOCKS,
        device_kind="emulated",
        workers=1,
        costs={block: {1: EMULATED_S} for block in range(BLOCKS)},
    )
    measured = simple_deployment(model, partition="block", devices=2, workers=2, max_batch=STEPS)
    panels = []
    figures: dict[str, Figure] = {}
    for name, title, deployment in (
        ("emulated", "one stage per device, 8 emulated devices, 20 ms per stage", emulated),
        ("measured", "block partition, 2 computing processes; thick frame: a batch", measured),
    ):
        tasks, interval_ms, response_ms = _run(deployment, args.out / f"{name}.npz")
        panels.append((title, tasks))
        figures[f"wavefront.{name}_interval"] = Figure(value=interval_ms, unit="ms")
        figures[f"wavefront.{name}_response"] = Figure(value=response_ms, unit="ms")
    plot_wavefronts(panels, args.out / "wavefront.png", blocks=BLOCKS, from_chunk=0, chunks=SHOWN)
    print_figures("Wavefront (interval is not latency)", figures, console)
    console.print(f"  {args.out / 'wavefront.png'}", markup=False, highlight=False)
    return result(figures, {"steps": STEPS, "blocks": BLOCKS, "chunks": CHUNKS})


def _run(deployment: Deployment, path: Path) -> tuple[Any, float, float]:
    run = run_streams(deployment, [free_stream()], chunks=CHUNKS, timeout_s=120.0)
    run.trace.save(path)
    steady = run.streams[0].steady(STEPS * BLOCKS)
    interval_ms = 1e3 * float(np.median(steady.intervals_s))
    return run.trace.tasks, interval_ms, 1e3 * float(np.median(steady.responses_s))
