"""The record of one run, merged from engine and workers: every task and every delivered chunk."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from physis_core.observe.recorder import TASK_DTYPE, Tasks
from physis_core.types import FinishedChunk, UserError

CHUNK_DTYPE = np.dtype(
    [
        ("stream", "<u4"),
        ("epoch", "<u4"),
        ("chunk", "<u8"),
        ("release_s", "<f8"),
        ("entry_s", "<f8"),
        ("exit_s", "<f8"),
        ("deadline_s", "<f8"),
        ("delivered_s", "<f8"),
        ("capture_oldest_ns", "<i8"),
        ("capture_newest_ns", "<i8"),
        ("receipt_ns", "<i8"),
        ("observations", "<u4"),
    ]
)
"""One delivered chunk. `observations` counts those that it used; stamps are of the oldest one."""


_VISIT = ("stage", "device", "source", "sent_s", "ready_s", "start_s", "end_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """What one stage did for one chunk. Seconds of the engine's steady clock."""

    stage: int
    device: int
    source: int
    batch_size: int
    sent_s: float
    ready_s: float
    start_s: float
    end_s: float

    @property
    def hop_s(self) -> float:
        """In transit from the previous stage; 0 within a device."""
        return max(0.0, self.ready_s - self.sent_s)

    @property
    def queue_s(self) -> float:
        return self.start_s - self.ready_s

    @property
    def compute_s(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTrace:
    """`tasks` [n] of `TASK_DTYPE` in the order of their ends, `chunks` [m] of `CHUNK_DTYPE`.

    `edges` and `devices` are the workers' counters: one mapping per edge (source, target, messages,
    bytes, errors) and per device (device, worker, batches, busy_s, weight_bytes, kv_bytes, ...).
    """

    tasks: Tasks
    chunks: Tasks
    edges: tuple[Mapping[str, Any], ...]
    devices: tuple[Mapping[str, Any], ...]
    records_lost: int

    def visits_of(self, stream: int, epoch: int, chunk: int) -> tuple[Visit, ...]:
        """The stages of one chunk, in order."""
        tasks = self.tasks
        mine = tasks[
            (tasks["stream"] == stream) & (tasks["epoch"] == epoch) & (tasks["chunk"] == chunk)
        ]
        return tuple(
            Visit(batch_size=task["size"].item(), **{name: task[name].item() for name in _VISIT})
            for task in np.sort(mine, order="stage")
        )

    def batches(self) -> Iterator[Tasks]:
        """The task records of each batch."""
        order = np.lexsort((self.tasks["batch"], self.tasks["device"]))
        tasks = self.tasks[order]
        if not len(tasks):
            return
        new = (np.diff(tasks["batch"].astype(np.int64)) != 0) | (
            np.diff(tasks["device"].astype(np.int64)) != 0
        )
        yield from np.split(tasks, np.flatnonzero(new) + 1)

    def save(self, path: Path | str) -> None:
        """One compressed .npz without pickled objects."""
        counters = {"edges": list(self.edges), "devices": list(self.devices)}
        np.savez_compressed(
            path,
            tasks=self.tasks,
            chunks=self.chunks,
            counters=np.frombuffer(json.dumps(counters).encode(), np.uint8),
            records_lost=np.array(self.records_lost),
        )

    @classmethod
    def load(cls, path: Path | str) -> RunTrace:
        """Raises UserError where the file is not a trace."""
        try:
            with np.load(path, allow_pickle=False) as saved:
                counters = json.loads(saved["counters"].tobytes())
                trace = cls(
                    tasks=saved["tasks"],
                    chunks=saved["chunks"],
                    edges=tuple(counters["edges"]),
                    devices=tuple(counters["devices"]),
                    records_lost=int(saved["records_lost"]),
                )
        except (OSError, ValueError, KeyError) as error:
            raise UserError("trace", str(path), f"is not a trace ({error})") from None
        if trace.tasks.dtype != TASK_DTYPE or trace.chunks.dtype != CHUNK_DTYPE:
            raise UserError("trace", str(path), "was written by another version")
        return trace


def merge_tasks(parts: Sequence[Tasks]) -> Tasks:
    """Records of several workers as one array, in the order of their ends."""
    if not parts:
        return np.empty(0, TASK_DTYPE)
    tasks = np.concatenate(parts)
    return tasks[np.argsort(tasks["end_s"], kind="stable")]


def chunk_rows(delivered: Sequence[tuple[int, FinishedChunk]]) -> Tasks:
    """(stream handle, chunk) pairs as rows of `CHUNK_DTYPE`."""
    rows = np.empty(len(delivered), CHUNK_DTYPE)
    for i, (stream, chunk) in enumerate(delivered):
        oldest = min(chunk.observations, key=lambda o: o.capture_oldest_ns)
        rows[i] = (
            stream,
            chunk.epoch,
            chunk.chunk_id,
            chunk.release_s,
            chunk.entry_s,
            chunk.exit_s,
            chunk.deadline_s,
            chunk.delivered_s,
            oldest.capture_oldest_ns,
            oldest.capture_newest_ns,
            oldest.receipt_ns,
            len(chunk.observations),
        )
    return rows
