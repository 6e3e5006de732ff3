"""`physis profile`: the time and memory of each block of a model on a device of this machine."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress

from physis_core.deployment.profile import BlockCost, ModelProfile
from physis_core.observe.result_file import check_folder
from physis_core.observe.tables import print_table
from physis_core.types import UserError
from physis_ros.node.model_file import configured_model, named_model

SUMMARY = "measure each block by batch size on one device; write the profile for plan and simulate"

ACTIVATION_FACTOR = 8.0
"""Workspace of a running task, in multiples of its hidden state; it is not measured."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="a file, a folder, a name in checkpoints/, or a family (default: the engine's model)",
    )
    parser.add_argument(
        "--config", default="{}", metavar="JSON", help="fields of the model's configuration"
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda:N")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch on a CPU")
    parser.add_argument("--batches", default="1,2,4,8", help="batch sizes, separated by commas")
    parser.add_argument("--repeat", type=int, default=50, help="runs of each block and size")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the profile (.yaml, .json)")


def run(args: argparse.Namespace) -> dict[str, Any]:
    import torch

    from physis_core.model.loading import checked_device, load
    from physis_core.observe.machine import machine
    from physis_core.worker.model_runner import ModelRunner
    from physis_core.worker.warmup import sample_blocks

    sizes = _sizes(args.batches)
    for name in ("repeat", "threads"):
        if getattr(args, name) < 1:
            raise UserError(name, getattr(args, name), "must be at least 1")
    if args.out is not None and args.out.suffix not in (".yaml", ".yml", ".json"):
        raise UserError("out", str(args.out), "must end in .yaml or .json")
    check_folder("out", args.out)
    torch.set_num_threads(args.threads)
    ref = named_model(args.model or configured_model())
    ref = dataclasses.replace(ref, config={**ref.config, **_config(args.config)})
    device = checked_device(args.device)
    runner = ModelRunner(load(ref, None, device), device)
    spec = runner.model.spec
    console = Console()
    with Progress(console=console) as progress:
        task = progress.add_task(f"{spec.name} on {device}", total=spec.blocks * len(sizes))
        samples = sample_blocks(
            runner,
            range(spec.blocks),
            sizes,
            repeats=args.repeat,
            progress=lambda: progress.advance(task),
        )
    profile = _profile(spec, samples, ref, args)
    if args.out is not None:
        profile.save(args.out)
    _print(profile, console)
    plain = profile.as_plain()
    return {"ok": True, "profile": plain, "machine": machine()}


def _profile(
    spec: Any, samples: dict[int, dict[int, list[float]]], ref: Any, args: argparse.Namespace
) -> ModelProfile:
    hidden_bytes = sum(part.bytes for part in spec.hidden)
    costs = tuple(
        BlockCost(
            weight_bytes=spec.block_weight_bytes[block],
            p50_s={size: float(np.median(seconds)) for size, seconds in row.items()},
            p99_s={size: float(np.percentile(seconds, 99)) for size, seconds in row.items()},
        )
        for block, row in samples.items()
    )
    return ModelProfile(
        name=spec.name,
        source="measured",
        device=args.device,
        steps=spec.steps,
        blocks=spec.blocks,
        kv=spec.kv,
        window_chunks=spec.window_chunks,
        sink_chunks=spec.sink_chunks,
        kv_bytes=spec.kv_bytes,
        decoder_kv_bytes=spec.decoder_kv_bytes,
        hidden_bytes=hidden_bytes,
        activation_bytes=ACTIVATION_FACTOR * hidden_bytes,
        shared_weight_bytes=spec.shared_weight_bytes,
        block_costs=costs,
        assumptions=(
            f"seconds: {args.repeat} runs of each block and batch size, KV windows full,"
            f" {args.threads} thread(s)",
            "block 0 includes the embedding and the last block the head, a decoder the mean over"
            " the steps of a chunk, of which only the last decodes; the observation encoder,"
            " which runs once per chunk, is not included",
            f"weights: {ref.checkpoint or 'random'}",
            f"activation_bytes: {ACTIVATION_FACTOR:g} x hidden state, not measured",
        ),
    )


def _sizes(text: str) -> list[int]:
    try:
        sizes = sorted({int(word) for word in text.split(",")})
    except ValueError:
        raise UserError("batches", text, "must be whole numbers separated by commas") from None
    if sizes[0] < 1 or sizes[-1] > 1024:
        raise UserError("batches", text, "must be from 1 to 1024")
    # A planner needs the cost of a single task.
    return sizes if sizes[0] == 1 else [1, *sizes]


def _config(text: str) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError("config", text, f"is not JSON ({error.msg})") from None
    if not isinstance(values, dict):
        raise UserError("config", text, "must be a JSON object")
    return values


def _print(profile: ModelProfile, console: Console) -> None:
    sizes = sorted(profile.block_costs[0].p50_s)
    print_table(
        console,
        f"{profile.name} on {profile.device}: ms per batch",
        ("block", *(f"B={n} p50 / p99" for n in sizes), "MiB"),
        (
            (
                block,
                *(f"{1e3 * cost.p50_s[n]:.2f} / {1e3 * cost.p99_s[n]:.2f}" for n in sizes),
                f"{cost.weight_bytes / 2**20:.2f}",
            )
            for block, cost in enumerate(profile.block_costs)
        ),
    )
    for assumption in profile.assumptions:
        console.print(f"  {assumption}", markup=False, highlight=False)
