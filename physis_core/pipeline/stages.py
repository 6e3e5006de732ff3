"""What a pipeline consists of: chunks in flight, stage slots with their queues, devices, streams.

Why this never deadlocks. Credits are counted per (stream, boundary between two stages on different
devices): at most `credits` chunks stand in the queue of stage s + 1 or are on their way to it, and
a task of stage s starts only with such a credit. The stages of a chunk therefore form a line, even
where the devices form a ring (`block` partition: last block back to the first). Take, of all
waiting chunks, one at the highest stage s of its stream. No chunk of that stream waits beyond s and
every task there ends, so all credits of s come back; its predecessors have left s, so it is the
head of its queue; devices serve one batch after another, so its device becomes free. It runs. By
induction all do. Leaving the last stage needs no credit. Credits shared by a whole ring would not
have this property.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from physis_core.pipeline.costs import Costs
from physis_core.pipeline.ready_task import ReadyTask
from physis_core.types import StageGraph

MAX_TOUCHES = 16
"""Observations that one chunk can record: one at entry and one for each later denoising step."""


@dataclass(slots=True, kw_only=True, eq=False)
class InFlight(ReadyTask):
    """A chunk in flight. It is its own ready task: one object moves from queue to queue.

    `stream` is the engine's handle of the stream. `stage`, `step`, `block`, `ready_s`,
    `remaining_s` and `slot` change at each hop, the rest belongs to the chunk. `touches` are the
    engine's numbers of the observations that the chunk used, in the order of use. `version` is that
    of its condition, `model` the number of its stream's model. `sent_s`: when it left the stage
    before, or the front. A `chunk_id` below 0 is a chunk of the past that runs again to rebuild
    lost KV. `payload`, `observation` and `outputs` belong to the driver; the pipeline does not look
    at them.
    """

    chunk_id: int
    seed: int = 0
    version: int = 0
    model: int = 0
    release_s: float = 0.0
    entry_s: float = 0.0
    touches: tuple[int, ...] = ()
    payload: Any = ()
    observation: Any = None
    outputs: Any = None
    sent_s: float = 0.0
    slot: Slot = field(init=False, repr=False)


class Goes(Enum):
    """Where a chunk goes after a stage."""

    QUEUE = "queue"
    """Into the queue of the next stage, which is in this pipeline."""
    LINK = "link"
    """Over a link to another device, from which the driver brings it to `Pipeline.arrive`."""
    OUT = "out"
    """Nowhere: this was the last stage."""


class Slot:
    """One (stream, epoch, stage) that runs here. Chunks wait in `fifo`; the head may run when
    `next_seq` has come to it.

    `credits` counts free places at the next stage and matters only where `bounded`. `gate` (clean
    KV) is the slot whose `next_seq` must have reached the chunk first. `link` is the number of the
    link to the next stage, `source_link` that of the link to which credits go back; `source` is the
    slot that gets its credit directly. `source_device`: of the stage before; -1 at the first.
    `writes`: its tasks leave KV behind for the next chunk. `exits`: the chunk is finished after it.
    `dead`: its stream was closed or restarted. `remaining_s`: predicted cost of all later stages
    until the exit. `credited_s`: when the newest credit came. `blocked_s`: how long its head waited
    for credits in all.
    """

    __slots__ = (
        "block",
        "blocked_s",
        "blocked_since_s",
        "bounded",
        "credited_s",
        "credits",
        "dead",
        "device",
        "exits",
        "fifo",
        "gate",
        "goes",
        "link",
        "next",
        "next_seq",
        "remaining_s",
        "source",
        "source_device",
        "source_link",
        "stage",
        "step",
        "stream",
        "writes",
    )

    def __init__(self, stream: Stream, device: Device, stage: int, step: int, block: int) -> None:
        self.stream = stream
        self.device = device
        self.stage = stage
        self.step = step
        self.block = block
        self.fifo: deque[InFlight] = deque()
        self.next_seq = 0
        self.credits = 0
        self.bounded = False
        self.credited_s = 0.0
        self.gate: Slot | None = None
        self.goes = Goes.OUT
        self.next: Slot | None = None
        self.link = -1
        self.source: Slot | None = None
        self.source_link = -1
        self.source_device = -1
        self.writes = False
        self.exits = False
        self.dead = False
        self.remaining_s = 0.0
        self.blocked_since_s = -1.0
        self.blocked_s = 0.0


class Device:
    """One device of the pipeline: `waiting` are the slots with a chunk in their queue, `running` is
    the batch under way.

    `costs` predict its batches. `most_waiting`: most slots that ever waited at once. `batches`
    counts those started, `busy_s` the seconds of those finished. Until `stalled_until_s` it starts
    nothing. `started_s`: when the running batch began; the driver sets it. `dirty`: it may have
    something to start.
    """

    __slots__ = (
        "batches",
        "busy_s",
        "costs",
        "dirty",
        "index",
        "most_waiting",
        "running",
        "stalled_until_s",
        "started_s",
        "waiting",
    )

    def __init__(self, index: int, costs: Costs) -> None:
        self.index = index
        self.costs = costs
        self.waiting: list[Slot] = []
        self.running: tuple[InFlight, ...] = ()
        self.started_s = 0.0
        self.stalled_until_s = 0.0
        self.dirty = False
        self.batches = 0
        self.busy_s = 0.0
        self.most_waiting = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where the stages of a stream run.

    `device_of[s]` for each stage of `graph`. `blocks[l]` names the weights of block l in the costs;
    `block_s[l]` are the predicted seconds of one of its tasks, also where other workers run it.
    `model` is the number of the stream's model, for the driver.
    """

    graph: StageGraph
    device_of: Sequence[int]
    blocks: Sequence[int]
    block_s: Sequence[float]
    model: int = 0


class Stream:
    """An open stream: its slots by stage, only of stages that run here. `versions` are the
    conditions that are known here; a chunk waits until its own one is.
    """

    __slots__ = ("epoch", "handle", "layout", "priority", "slots", "versions")

    def __init__(self, handle: int, epoch: int, priority: int, layout: Layout) -> None:
        self.handle = handle
        self.epoch = epoch
        self.priority = priority
        self.layout = layout
        self.slots: dict[int, Slot] = {}
        self.versions: set[int] = set()
