"""One stream's stages laid over devices: queues, places and what flows through them.

The same shape as the worker's: a chunk waits in the queue of its (stream, stage); the head of a
queue may start when the boundary to the next device has a free place.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence

from physis_core.pipeline.costs import Costs
from physis_core.pipeline.injector import Injector
from physis_core.pipeline.pacer import Pacer
from physis_core.pipeline.ready_task import BACKGROUND_PRIORITY, ReadyTask
from physis_core.sim.scenario import SimStream
from physis_core.sim.trace import EdgeTrace, StreamTrace


class Slot:
    """One (stream, stage): its queue, and where a chunk comes from and goes to."""

    __slots__ = (
        "block",
        "bounded",
        "credits",
        "device",
        "edge",
        "exits",
        "fifo",
        "gate",
        "next",
        "next_seq",
        "remaining_s",
        "run",
        "source",
        "stage",
        "step",
    )

    def __init__(self, run: OpenStream, device: Device, stage: int, step: int, block: int) -> None:
        self.run = run
        self.device = device
        self.stage = stage
        self.step = step
        self.block = block
        self.fifo: deque[Chunk] = deque()
        self.next_seq = 0
        self.credits = 0
        self.bounded = False
        self.exits = False
        self.gate: Slot | None = None
        self.next: Slot | None = None
        self.source: Slot | None = None
        self.edge: EdgeTrace | None = None
        self.remaining_s = 0.0


class Chunk(ReadyTask):
    """A chunk on its way; its own ready task, as in the worker."""

    __slots__ = ("chunk_id", "release_s", "sent_s", "slot")

    slot: Slot
    chunk_id: int
    release_s: float
    sent_s: float


class Device:
    __slots__ = (
        "batches",
        "busy_s",
        "dirty",
        "ends_s",
        "free_s",
        "index",
        "running",
        "stalled_until_s",
        "started_s",
        "waiting",
    )

    def __init__(self, index: int) -> None:
        self.index = index
        self.waiting: list[Slot] = []
        self.running: tuple[Chunk, ...] = ()
        self.started_s = 0.0
        self.ends_s = 0.0
        # Until then it is sending.
        self.free_s = 0.0
        self.stalled_until_s = -1.0
        self.dirty = False
        self.batches = 0
        self.busy_s = 0.0


class OpenStream:
    """One open stream."""

    __slots__ = (
        "closing",
        "handle",
        "injector",
        "pacer",
        "poll_s",
        "priority",
        "seq",
        "slots",
        "spec",
        "starved",
        "trace",
    )

    def __init__(
        self, spec: SimStream, handle: int, injector: Injector[float], pacer: Pacer
    ) -> None:
        self.spec = spec
        self.handle = handle
        self.priority = spec.priority - (0 if spec.period_s is not None else BACKGROUND_PRIORITY)
        self.injector = injector
        self.pacer = pacer
        self.slots: list[Slot] = []
        self.seq = 0
        self.poll_s = math.inf
        self.starved = False
        self.closing = False
        self.trace = StreamTrace(spec, handle, pacer)


def lay_out(
    run: OpenStream,
    devices: Sequence[Device],
    costs: Costs,
    boundary_credits: int,
    edge: Callable[[int, int], EdgeTrace],
) -> None:
    """Make the slots of a stream and join them."""
    spec, graph = run.spec, run.spec.graph
    blocks, last, slots = graph.blocks, graph.exit_index, run.slots
    for stage, device in enumerate(spec.device_of):
        step, block = divmod(stage, blocks)
        slots.append(Slot(run, devices[device], stage, step, spec.block_keys[block]))
    slots[last].exits = True
    rest_s = 0.0
    following: Slot | None = None
    for slot in reversed(slots):
        slot.remaining_s = rest_s
        if slot.stage <= last:
            rest_s += costs.predict_s(slot.block, 1)
        slot.next = following
        if following is not None and following.device is not slot.device:
            slot.bounded = True
            slot.credits = boundary_credits
            following.source = slot
            slot.edge = edge(slot.device.index, following.device.index)
        if graph.kv == "clean" and slot.step == 0:
            slot.gate = slots[(graph.passes - 1) * blocks + slot.stage]
        following = slot
