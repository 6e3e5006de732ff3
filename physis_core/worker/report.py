"""What a worker reports of itself: its queues, and all that it recorded since it was last asked."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import structs

from physis_core.cluster.messages import GetStats, Stats
from physis_core.observe.recorder import TaskLog
from physis_core.pipeline.pipeline import Pipeline
from physis_core.worker.executors import LocalDevice
from physis_core.worker.links.table import LinkTable
from physis_core.worker.snapshot_copies import SnapshotCopies
from physis_core.worker.streams import StreamTensors


def stats_of(
    question: GetStats,
    now_s: float,
    pipeline: Pipeline,
    devices: Mapping[int, LocalDevice],
    tensors: Mapping[int, StreamTensors],
    links: LinkTable,
    log: TaskLog,
    copies: SnapshotCopies | None,
    late_dropped: int,
) -> Stats:
    """The answer of one worker, brief or full."""
    queues: dict[int, int] = {}
    for slot in pipeline.slots():
        index = slot.device.index
        queues[index] = queues.get(index, 0) + len(slot.fifo)
    brief = Stats(
        request=question.request,
        asked_s=question.asked_s,
        now_s=now_s,
        queues=queues,
        late_dropped=late_dropped,
    )
    if not question.full:
        return brief
    tasks, lost = log.take()
    return structs.replace(
        brief,
        records={"tasks": tasks.view("u1")},
        records_lost=lost,
        places_taken=pipeline.places_taken(),
        edges=_edge_counters(links, pipeline),
        devices=[_device_counters(device, pipeline, tensors) for device in devices.values()],
        snapshots={} if copies is None else copies.counters(),
    )


def _edge_counters(links: LinkTable, pipeline: Pipeline) -> list[dict[str, int | float]]:
    waited_s: dict[int, float] = {}
    for slot in pipeline.slots():
        waited_s[slot.link] = waited_s.get(slot.link, 0.0) + slot.blocked_s
    return [
        {
            "source": edge[0],
            "target": edge[1],
            "messages": sender.messages,
            "bytes": sender.bytes_sent,
            "errors": sender.errors,
            "credit_wait_s": waited_s.get(links.numbers[edge], 0.0),
        }
        for edge, sender in links.senders.items()
    ]


def _device_counters(
    device: LocalDevice, pipeline: Pipeline, tensors: Mapping[int, StreamTensors]
) -> dict[str, int | float | None]:
    state = device.state
    kv_bytes = sum(
        tensors[handle].kv_bytes(s.stage for s in stream.slots.values() if s.device is state)
        for handle, stream in pipeline.streams.items()
    )
    return {
        "device": state.index,
        "batches": state.batches,
        "busy_s": state.busy_s,
        "weight_bytes": device.weight_bytes,
        "kv_bytes": kv_bytes,
        "activation_bytes": state.most_waiting * device.activation_bytes,
        "workspace_bytes": device.executor.workspace_bytes(device.weight_bytes),
    }
