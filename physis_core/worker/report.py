"""What a worker reports of itself: its queues, and all that it recorded since it was last asked.

And the record of a run, which the front makes of all reports.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from physis_core.cluster.messages import Message
from physis_core.observe.recorder import TASK_DTYPE, TaskLog
from physis_core.observe.trace import RunTrace, chunk_rows, merge_tasks
from physis_core.pipeline.stages import StageSlot, StreamSide
from physis_core.types import Array, FinishedChunk
from physis_core.worker.device import Device
from physis_core.worker.links.link import LinkSender


def queue_lengths(sides: Iterable[StreamSide]) -> dict[str, int]:
    """Waiting chunks by device."""
    queues: dict[str, int] = {}
    for slot in _slots(sides):
        key = str(slot.device.index)
        queues[key] = queues.get(key, 0) + len(slot.fifo)
    return queues


def places_taken(sides: Iterable[StreamSide], credits: int) -> int:
    """Places before other devices that chunks have and have not given back; 0 when all is quiet."""
    return sum(credits - slot.credits for slot in _slots(sides) if slot.bounded)


def recorded(log: TaskLog) -> tuple[dict[str, Any], dict[str, Array]]:
    """Task records since the last call, as bytes, and how many were lost."""
    tasks, lost = log.take()
    return {"records_lost": lost}, {"tasks": tasks.view("u1")}


def edge_counters(
    edge: tuple[int, int], sender: LinkSender, sides: Iterable[StreamSide]
) -> dict[str, Any]:
    waited_s = sum(slot.blocked_s for slot in _slots(sides) if slot.link is sender)
    return {
        "source": edge[0],
        "target": edge[1],
        "messages": sender.messages,
        "bytes": sender.bytes_sent,
        "errors": sender.errors,
        "credit_wait_s": waited_s,
    }


def device_counters(device: Device, sides: Iterable[StreamSide]) -> dict[str, Any]:
    # Clean KV is one window for all steps of a block, and counts once.
    kv = {
        id(slot.kv): slot.kv.bytes
        for slot in _slots(sides)
        if slot.device is device and slot.kv is not None
    }
    return {
        "device": device.index,
        "batches": device.batches,
        "busy_s": device.busy_s,
        "weight_bytes": device.weight_bytes,
        "kv_bytes": sum(kv.values()),
        "activation_bytes": device.most_waiting * device.activation_bytes,
        "workspace_bytes": device.workspace_bytes(),
    }


def _slots(sides: Iterable[StreamSide]) -> Iterable[StageSlot]:
    return (slot for side in sides for slot in side.slots.values())


def gathered_trace(
    answers: Mapping[int, Message], delivered: Sequence[tuple[int, FinishedChunk]]
) -> RunTrace:
    """All workers' full reports, and (stream handle, chunk) as they were delivered."""
    return RunTrace(
        tasks=merge_tasks(
            [np.asarray(m.arrays["tasks"]).view(TASK_DTYPE) for m in answers.values()]
        ),
        chunks=chunk_rows(delivered),
        edges=tuple(e for m in answers.values() for e in m.fields["edges"]),
        devices=tuple(
            {**d, "worker": worker} for worker, m in answers.items() for d in m.fields["devices"]
        ),
        records_lost=sum(m.fields["records_lost"] for m in answers.values()),
    )
