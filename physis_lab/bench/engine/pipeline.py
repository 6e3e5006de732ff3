"""`physis bench pipeline`: the five partitions, two processes against one, and a peer.

The peer is torch.distributed.pipelining. Its queues hold all chunks from the start, so it is
compared with the engine at two chunks in flight per device, the capacity of a link: once with
same-block batches, as the engine is deployed, and once without, stage for stage as the peer
computes. A third ratio is against the engine's default of one chunk more than devices, which keeps
chunks from waiting and aging.

Measured rows run real blocks in real processes, one per core. The other rows run the same engine on
emulated devices with the block times measured in this run; the table says which is which. Every
computing process, including the peer's, is bound to its own core.
"""

from __future__ import annotations

import argparse
import socket
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from physis_core.deployment.deployment import Deployment, simple_deployment
from physis_core.model.loading import load_spec
from physis_core.model.reference import ReferenceStream
from physis_core.model.registry import ModelRef
from physis_core.model.synthetic.config import SyntheticConfig
from physis_core.model.synthetic.model import SyntheticModel
from physis_core.observe.figures import Figure, print_figures, repeated, result
from physis_core.pipeline.partition import Partition, make_partition
from physis_lab.bench.arguments import require_at_least
from physis_lab.bench.engine.peer_torch import run_peer
from physis_lab.session.engine_run import (
    MODEL,
    StreamRun,
    free_stream,
    run_streams,
)

SLOWEST_BLOCK_MS = 5.0
TIMEOUT_S = 600.0
FULL = 4
"""Chunks in flight that fill two devices: one computing and one waiting at each."""
BATCH = 2
"""Denoising steps of each block on one of two devices, and so the largest batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table: mean interval and median response of the steady state."""

    partition: str
    devices: int
    how: str
    interval_ms: float
    response_ms: float
    memory_mib: float
    """Of the device that holds most: the weights of its blocks and the KV of one stream."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--chunks", type=int, default=40, help="after the fill, in each run")
    parser.add_argument("--repeat", type=int, default=3, help="runs behind each spread")
    # A block then takes at least 5 ms on the machines that this was tried on.
    parser.add_argument("--tokens", type=int, default=80, help="tokens of a chunk")


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    require_at_least(args, chunks=8, repeat=1, tokens=1)
    torch.set_num_threads(1)
    config = {**MODEL, "tokens": args.tokens}
    model = ModelRef(family="synthetic", config=config)
    with Progress(console=console) as progress:
        task = progress.add_task("pipeline", total=5 * args.repeat + 3 + 5)

        def step(what: str) -> None:
            progress.update(task, description=what)
            progress.advance(task)

        alone, two, full, batched, peer = [], [], [], [], []
        rows: list[Row] = []
        for _ in range(args.repeat):
            step("one process, the reference")
            alone.append(_reference_rate_hz(config, args.chunks))
            step("two processes, partition stage")
            run_two = _measured(model, "stage", 2, args.chunks)
            two.append(run_two.rate_hz)
            step(f"two processes, {FULL} chunks in flight")
            run_full = _measured(model, "stage", 2, args.chunks, in_flight=FULL)
            full.append(run_full.rate_hz)
            step(f"two processes, {FULL} chunks in flight, batches of {BATCH}")
            run_batched = _measured(model, "stage", 2, args.chunks, in_flight=FULL, max_batch=BATCH)
            batched.append(run_batched.rate_hz)
            step("two processes, torch.distributed.pipelining")
            peer.append(_peer_rate_hz(config, args.chunks))
        rows.append(_row(model, "stage", 2, "measured", run_two))
        rows.append(_row(model, "stage", 2, f"measured, {FULL} in flight", run_full))
        how = f"measured, {FULL} in flight, batches of {BATCH}"
        rows.append(_row(model, "stage", 2, how, run_batched))
        for kind, devices in (("sequential", 1), ("step", 2), ("block", 2)):
            step(f"{devices} processes, partition {kind}")
            rows.append(
                _row(
                    model,
                    kind,
                    devices,
                    "measured",
                    _measured(model, kind, devices, args.chunks),
                )
            )
        costs = _block_costs_s(model)
        graph = load_spec(model).graph
        for kind, devices in (
            ("sequential", 1),
            ("step", graph.steps),
            ("block", graph.blocks),
            ("grouped", graph.stages // 2),
            ("stage", graph.stages),
        ):
            step(f"{devices} emulated devices, partition {kind}")
            rows.append(
                _row(
                    model,
                    kind,
                    devices,
                    "emulated",
                    _emulated(model, kind, devices, args.chunks, costs),
                )
            )
    slowest_ms = 1e3 * min(row[1] for row in costs.values())
    _print_rows(rows, console)
    pairs = list(zip(two, alone, strict=True))
    figures = {
        "pipeline.two_process_speedup": repeated(
            [ours / one for ours, one in pairs], "x", aim=1.8, better="higher"
        ),
        "pipeline.vs_torch_pipelining": repeated(
            [ours / theirs for ours, theirs in zip(batched, peer, strict=True)],
            "x",
            aim=1.0,
            better="higher",
        ),
        "pipeline.vs_torch_pipelining_unbatched": repeated(
            [ours / theirs for ours, theirs in zip(full, peer, strict=True)], "x"
        ),
        "pipeline.vs_torch_pipelining_free": repeated(
            [ours / theirs for ours, theirs in zip(two, peer, strict=True)], "x"
        ),
        "pipeline.reference_chunk_rate": repeated(alone, "chunk/s"),
        "pipeline.two_process_chunk_rate": repeated(two, "chunk/s"),
        "pipeline.two_process_chunk_rate_full": repeated(full, "chunk/s"),
        "pipeline.two_process_chunk_rate_batched": repeated(batched, "chunk/s"),
        "pipeline.torch_pipelining_chunk_rate": repeated(peer, "chunk/s"),
        "pipeline.block_ms": Figure(
            value=slowest_ms, unit="ms", aim=SLOWEST_BLOCK_MS, better="higher"
        ),
    }
    print_figures("Two single-threaded processes on one model", figures, console)
    outcome = result(figures, {"model": config, "chunks": args.chunks, "repeat": args.repeat})
    outcome["rows"] = [asdict(row) for row in rows]
    return outcome


def _reference_rate_hz(config: Mapping[str, Any], chunks: int) -> float:
    stream = ReferenceStream(SyntheticModel(SyntheticConfig(**config)), seed=0)
    observation = {"state": np.zeros(4, np.float32)}
    window = int(config["window_chunks"])
    for _ in range(window):
        stream.run_chunk({0: observation})
    begin_s = time.monotonic()
    for _ in range(chunks):
        stream.run_chunk({0: observation})
    return chunks / (time.monotonic() - begin_s)


def _measured(
    model: ModelRef,
    kind: str,
    devices: int,
    chunks: int,
    in_flight: int | None = None,
    max_batch: int | None = None,
) -> StreamRun:
    """`max_batch` defaults to 1, with `block` to the steps that share a device."""
    deployment = simple_deployment(
        model,
        partition=kind,
        devices=devices,
        workers=devices,
        bind_cores=True,
        max_batch=max_batch or (load_spec(model).steps if kind == "block" else 1),
    )
    return _steady_run(deployment, chunks, in_flight)


def _emulated(
    model: ModelRef,
    kind: str,
    devices: int,
    chunks: int,
    costs: Mapping[int, Mapping[int, float]],
) -> StreamRun:
    deployment = simple_deployment(
        model,
        partition=kind,
        devices=devices,
        workers=1,
        device_kind="emulated",
        costs=costs,
        max_batch=load_spec(model).steps if kind == "block" else 1,
    )
    return _steady_run(deployment, chunks)


def _steady_run(deployment: Deployment, chunks: int, in_flight: int | None = None) -> StreamRun:
    """The chunks after the pipeline and the KV windows are full."""
    (model,) = deployment.models.values()
    skip = max(len(deployment.devices), load_spec(model).window_chunks) + 2
    stream = free_stream(max_in_flight=in_flight)
    run = run_streams(deployment, [stream], chunks=chunks + skip, timeout_s=TIMEOUT_S)
    return run.streams[0].steady(skip)


def _block_costs_s(model: ModelRef) -> dict[int, dict[int, float]]:
    """Seconds by block and batch size up to D, as a worker measures them at start."""
    spec = load_spec(model)
    deployment = simple_deployment(model, workers=1, max_batch=spec.steps)
    run = run_streams(deployment, [free_stream()], chunks=2, timeout_s=TIMEOUT_S)
    return {block: dict(row) for block, row in run.costs_s.items()}


def _peer_rate_hz(config: Mapping[str, Any], chunks: int) -> float:
    skip = int(config["window_chunks"]) + 2
    peer = run_peer(config, ranks=2, chunks=chunks + skip, port=_free_port(), timeout_s=TIMEOUT_S)
    own = peer.done_s[skip:]
    return (len(own) - 1) / (own[-1] - own[0])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _row(model: ModelRef, kind: str, devices: int, how: str, run: StreamRun) -> Row:
    partition = make_partition(kind, load_spec(model).graph, devices)
    return Row(
        partition=kind,
        devices=partition.ranks,
        how=how,
        interval_ms=1e3 * float(np.mean(run.intervals_s)),
        response_ms=1e3 * float(np.median(run.responses_s)),
        memory_mib=_fullest_device_bytes(model, partition) / 2**20,
    )


def _fullest_device_bytes(model: ModelRef, partition: Partition) -> int:
    spec = load_spec(model)
    return max(
        sum(spec.block_weight_bytes[block] for block in partition.blocks_of(rank))
        + spec.kv_bytes * len(partition.stages_of(rank))
        for rank in range(partition.ranks)
    )


def _print_rows(rows: list[Row], console: Console) -> None:
    table = Table(title="Partitions (interval is not latency)", title_justify="left")
    for heading in ("partition", "devices", "how", "interval ms", "response ms", "MiB per device"):
        table.add_column(heading, justify="left" if heading in ("partition", "how") else "right")
    for row in rows:
        table.add_row(
            row.partition,
            str(row.devices),
            row.how,
            f"{row.interval_ms:.1f}",
            f"{row.response_ms:.1f}",
            f"{row.memory_mib:.1f}",
        )
    console.print(table)
