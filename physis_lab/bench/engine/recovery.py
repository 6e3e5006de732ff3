"""`physis bench recovery`: what recovery from a lost worker costs, by snapshot and by rebuild.

Three parts, on one synthetic model. Normal operation: the chunk rate with a snapshot every n chunks
against none, and how much each snapshot copies and sends. After a loss: two processes share a
stream and a third runs another; one of the two is killed with kill -9, and the time to the first
chunk of the new epoch is split at the events that the engine records. Quality: how far a rebuilt
stream is from one that was never interrupted (`recovery_quality`), with `--checkpoint` also for a
trained policy.
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress

from physis_core.deployment.deployment import (
    ONLY_MODEL,
    Deployment,
    DeviceSpec,
    Route,
    simple_deployment,
)
from physis_core.engine.engine import Engine
from physis_core.engine.way_back import RecoveryRecord
from physis_core.model.loading import load, load_spec
from physis_core.model.reference import ReferenceStream
from physis_core.model.registry import ModelRef
from physis_core.observe.figures import Figure, print_figures, repeated, result
from physis_core.pipeline.partition import make_partition
from physis_core.types import FinishedChunk, Refused, UserError
from physis_lab.bench.arguments import require_at_least
from physis_lab.bench.engine.recovery_quality import synthetic_quality, trained_quality
from physis_lab.session.engine_run import free_stream, pause_between_runs, zero_observation

MODEL: Mapping[str, Any] = {
    "steps": 4,
    "blocks": 4,
    "tokens": 64,
    "dim": 256,
    "heads": 8,
    "window_chunks": 6,
}
EVERY = (1, 4, 16)
SEED = 5
TIMEOUT_S = 300.0
MIB = 2**20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--chunks", type=int, default=200, help="of each run without a loss")
    parser.add_argument("--repeat", type=int, default=3, help="runs behind each spread")
    parser.add_argument("--checkpoint", type=Path, help="physis-tiny policy, for quality in rad")
    parser.add_argument("--window", type=int, default=6, help="H: chunks of a KV window")


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    require_at_least(args, chunks=32, repeat=1, window=2)
    checkpoint: Path | None = args.checkpoint
    if checkpoint is not None and not checkpoint.is_file():
        raise UserError("checkpoint", str(checkpoint), "no such file")
    torch.set_num_threads(1)
    config = {**MODEL, "window_chunks": args.window}
    model = ModelRef(family="synthetic", config=config)
    figures: dict[str, Figure] = {}
    with Progress(console=console) as progress:
        task = progress.add_task("recovery", total=args.repeat * (len(EVERY) + 3) + 3)

        def at(what: str) -> None:
            progress.update(task, description=what, advance=1)

        figures.update(_in_normal_operation(model, args.chunks, args.repeat, at))
        for way in ("snapshot", "rebuild"):
            figures.update(_after_a_loss(model, way, args.repeat, at))
        for kv in ("noisy", "clean"):
            at(f"quality, kv {kv}")
            figures.update(synthetic_quality({**config, "kv": kv}))
        if checkpoint is not None:
            at("quality, trained")
            figures.update(trained_quality(checkpoint))
    print_figures("Recovery from a lost worker", figures, console)
    return result(
        figures,
        {
            "model": config,
            "checkpoint": None if checkpoint is None else checkpoint.name,
            "chunks": args.chunks,
            "repeat": args.repeat,
            "kv_bytes_per_stage": load_spec(model).kv_bytes,
            "workers": "2, and a third for the other stream; block partition",
        },
    )


class _Session:
    """A running engine and its chunks by (stream, epoch)."""

    def __init__(self, deployment: Deployment) -> None:
        self.chunks: dict[tuple[str, int], list[FinishedChunk]] = defaultdict(list)
        self._news = threading.Condition()
        self._failure = ""
        self.engine = Engine(deployment, on_chunk=self._on_chunk, on_event=self._on_event)

    def _on_chunk(self, chunk: FinishedChunk) -> None:
        with self._news:
            self.chunks[(chunk.stream_id, chunk.epoch)].append(chunk)
            self._news.notify_all()

    def _on_event(self, event: object) -> None:
        if getattr(event, "kind", "") == "stream_failed":
            with self._news:
                self._failure = str(event)
                self._news.notify_all()

    def until(self, stream_id: str, epoch: int, count: int) -> list[FinishedChunk]:
        own = self.chunks[(stream_id, epoch)]
        with self._news:
            came = self._news.wait_for(lambda: self._failure or len(own) >= count, TIMEOUT_S)
        if self._failure or not came:
            reason = self._failure or f"only {len(own)} of {count} chunks in {TIMEOUT_S:.0f} s"
            raise RuntimeError(f"stream {stream_id!r}, epoch {epoch}: {reason}")
        return own

    def open(self, stream_id: str, **options: Any) -> None:
        opened = self.engine.open_stream(free_stream(stream_id, seed=SEED, **options))
        if isinstance(opened, Refused):
            raise RuntimeError(f"stream {stream_id!r} was refused: {opened.reason}")
        self.engine.observe(stream_id, zero_observation(self.engine))

    def __enter__(self) -> _Session:
        self.engine.start(TIMEOUT_S)
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.close()
        pause_between_runs()


def _in_normal_operation(
    model: ModelRef, chunks: int, repeat: int, at: Callable[[str], None]
) -> dict[str, Figure]:
    """Intervals with and without snapshots, alternating; and the workers' copy counters."""
    intervals_ms: dict[int, list[float]] = defaultdict(list)
    counters: dict[int, list[dict[str, float]]] = defaultdict(list)
    for _ in range(repeat):
        for every in (0, *EVERY):
            at(f"a snapshot every {every} chunks" if every else "no snapshots")
            options: dict[str, Any] = {"partition": "block", "devices": 2, "workers": 2}
            if every:
                options.update(recovery="snapshot", snapshot_every=every)
            with _Session(simple_deployment(model, **options)) as session:
                session.open("bench")
                skip = 16
                exits = [c.exit_s for c in session.until("bench", 0, chunks + skip)]
                stats = session.engine.worker_stats()
            steady = np.diff(exits[skip : chunks + skip])
            intervals_ms[every].append(1e3 * float(np.mean(steady)))
            if every:
                own = [m.snapshots for m in stats.values()]
                counters[every].append(
                    {key: sum(o[key] for o in own) / len(exits) for key in own[0]}
                )
    figures = {"recovery.interval_without": repeated(intervals_ms[0], "ms")}
    for every in EVERY:
        name = f"recovery.every{every}"
        pairs = list(zip(intervals_ms[every], intervals_ms[0], strict=True))
        figures[f"{name}_interval_ratio"] = repeated([a / b for a, b in pairs], "x without")
        figures[f"{name}_cost"] = repeated([a - b for a, b in pairs], "ms per chunk")
        rows = counters[every]
        figures[f"{name}_bytes"] = repeated([r["bytes"] / MIB for r in rows], "MiB per chunk")
        figures[f"{name}_copy"] = repeated([1e3 * r["copy_s"] for r in rows], "ms per chunk")
        figures[f"{name}_send"] = repeated(
            [1e3 * r["send_s"] for r in rows], "ms per chunk, in parallel"
        )
        figures[f"{name}_skipped"] = repeated([r["skipped"] for r in rows], "copies per chunk")
    return figures


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loss:
    """One loss. `killed_s` is just before the kill. `bystander_s` and `before_s` are the longest
    intervals of the other stream after and before it.
    """

    killed_s: float
    record: RecoveryRecord
    bystander_s: float
    before_s: float
    difference: float


def _after_a_loss(
    model: ModelRef, way: str, repeat: int, at: Callable[[str], None]
) -> dict[str, Figure]:
    losses = []
    for _ in range(repeat):
        at(f"kill -9, recovery by {way}")
        losses.append(_lose(model, way))
    name = f"recovery.{way}"

    def ms(of: Callable[[_Loss], float]) -> Figure:
        return repeated([1e3 * of(loss) for loss in losses], "ms")

    return {
        f"{name}_to_first_chunk": ms(lambda x: x.record.first_exit_s - x.killed_s),
        f"{name}_heard": ms(lambda x: x.record.lost_s - x.killed_s),
        f"{name}_respawn": ms(lambda x: x.record.whole_s - x.record.lost_s),
        f"{name}_kv": ms(lambda x: x.record.ready_s - x.record.whole_s),
        f"{name}_run": ms(lambda x: x.record.first_exit_s - x.record.ready_s),
        f"{name}_sent": repeated([x.record.bytes / MIB for x in losses], "MiB"),
        f"{name}_other_stream": ms(lambda x: x.bystander_s),
        f"{name}_other_before": ms(lambda x: x.before_s),
        f"{name}_vs_reference": Figure(
            value=max(x.difference for x in losses), unit="largest difference", aim=0.0
        ),
    }


def _lose(model: ModelRef, way: str) -> _Loss:
    graph = load_spec(model).graph
    deployment = Deployment(
        models={ONLY_MODEL: model},
        devices=tuple(DeviceSpec(kind="cpu", worker=w) for w in range(3)),
        routes=(
            Route(partition=make_partition("block", graph, 2), device_of_rank=(0, 1)),
            Route(partition=make_partition("sequential", graph, 1), device_of_rank=(2,)),
        ),
        workers=3,
        recovery=way,  # type: ignore[arg-type]
        snapshot_every=4,
    )
    after = 2 * load_spec(model).window_chunks
    with _Session(deployment) as session:
        session.open("bystander", max_in_flight=1, route=1)
        session.until("bystander", 0, 10)
        session.open("lost")
        session.until("lost", 0, 40)
        killed_s = time.monotonic()
        os.kill(session.engine.worker_pids()[1], signal.SIGKILL)
        new = session.until("lost", 1, after)[:after]
        (record,) = session.engine.recoveries()
        exits = np.array([c.exit_s for c in session.chunks[("bystander", 0)]])
        if session.chunks[("bystander", 1)]:
            raise RuntimeError("a stream that did not use the lost worker changed its epoch")
    during = np.diff(exits[np.searchsorted(exits, killed_s) - 1 :])
    calm = np.diff(exits[exits <= killed_s])
    return _Loss(
        killed_s=killed_s,
        record=record,
        bystander_s=float(np.max(during)),
        before_s=float(np.max(calm)),
        difference=_off_reference(model, record, new),
    )


def _off_reference(model: ModelRef, record: RecoveryRecord, new: list[FinishedChunk]) -> float:
    """Largest difference of the chunks after a loss from a reference recovered the same way."""
    loaded = load(model)
    spec = loaded.spec
    seen = {name: np.zeros(s.shape, np.float32) for name, s in spec.observation.items()}
    if record.from_chunk is None:
        raise RuntimeError("the stream continued with empty KV")
    before = ReferenceStream(loaded, seed=SEED)
    past = []
    for _ in range(record.from_chunk[1] + 1):
        before.run_chunk({0: seen})
        past.append(before.clean)
    reference = ReferenceStream(loaded, seed=SEED, epoch=record.epoch)
    if record.by == "snapshot":
        reference.restore(before.snapshot())
    else:
        reference.rebuild(past[-record.chunks :])
    worst = 0.0
    for chunk in new:
        for name, value in reference.run_chunk({0: seen}, chunk.chunk_id).items():
            worst = max(worst, float(np.abs(chunk.outputs[name] - value.numpy()).max()))
    return worst
