"""What a worker reports of itself: its queues, and all that it recorded since it was last asked.

And the record of a run, which the front makes of all reports.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from physis_core.cluster.messages import Stats
from physis_core.observe.recorder import TASK_DTYPE, TaskLog
from physis_core.observe.trace import RunTrace, chunk_rows, merge_tasks
from physis_core.types import Array, FinishedChunk
from physis_core.worker.device import Device
from physis_core.worker.links.link import LinkSender
from physis_core.worker.stages import StageSlot, StreamSide


def queue_lengths(sides: Iterable[StreamSide]) -> dict[int, int]:
    """Waiting chunks by device."""
    queues: dict[int, int] = {}
    for slot in _slots(sides):
        index = slot.device.index
        queues[index] = queues.get(index, 0) + len(slot.fifo)
    return queues


def places_taken(sides: Iterable[StreamSide], credits: int) -> int:
    """Places before other devices that chunks have and have not given back; 0 when all is quiet."""
    return sum(credits - slot.credits for slot in _slots(sides) if slot.bounded)


def recorded(log: TaskLog) -> tuple[dict[str, Array], int]:
    """Task records since the last call, as bytes, and how many were lost."""
    tasks, lost = log.take()
    return {"tasks": tasks.view("u1")}, lost


def edge_counters(
    edge: tuple[int, int], sender: LinkSender, sides: Iterable[StreamSide]
) -> dict[str, int | float]:
    waited_s = sum(slot.blocked_s for slot in _slots(sides) if slot.link is sender)
    return {
        "source": edge[0],
        "target": edge[1],
        "messages": sender.messages,
        "bytes": sender.bytes_sent,
        "errors": sender.errors,
        "credit_wait_s": waited_s,
    }


def device_counters(device: Device, sides: Iterable[StreamSide]) -> dict[str, int | float | None]:
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
    answers: Mapping[int, Stats], delivered: Sequence[tuple[int, FinishedChunk]]
) -> RunTrace:
    """All workers' full reports, and (stream handle, chunk) as they were delivered."""
    return RunTrace(
        tasks=merge_tasks(
            [np.asarray(stats.records["tasks"]).view(TASK_DTYPE) for stats in answers.values()]
        ),
        chunks=chunk_rows(delivered),
        edges=tuple(edge for stats in answers.values() for edge in stats.edges),
        devices=tuple(
            {**counters, "worker": worker}
            for worker, stats in answers.items()
            for counters in stats.devices
        ),
        records_lost=sum(stats.records_lost for stats in answers.values()),
    )
