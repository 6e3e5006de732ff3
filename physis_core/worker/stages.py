"""One stream's stages on one worker: queues, turns and credits.

Why this never deadlocks. Credits are counted per (stream, stage boundary between two devices): at
most `credits` chunks stand in the queue of stage s + 1 or are on their way to it, and a task of
stage s starts only when it has such a place. A chunk's way is therefore a line, even where the
devices form a ring (`block` partition: last block back to the first): take, of all waiting chunks,
one at the highest stage s of its stream. Nothing of that stream waits beyond s, what computes there
ends, so every place of s + 1 comes free; its predecessors have left s, so it is its turn; devices
take turns by task, so its device comes free too. It runs; by induction all do. Leaving the last
stage needs no credit. Places for one ring in common would not have this property.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from physis_core.types import Refresh

if TYPE_CHECKING:
    from physis_core.worker.device import Device
    from physis_core.worker.links.envelope import InFlight
    from physis_core.worker.links.link import LinkReceiver, LinkSender


class StageSlot:
    """One (stream, epoch, stage). Chunks wait in `fifo`; the head runs when `next_seq` has come to
    it.

    `credits` counts free places at the next stage and is looked at only where `bounded`. `gate`
    (clean KV) is the slot whose `next_seq` must have reached the chunk first. Exactly one of
    `next`, `link`, and neither (last stage) says where a chunk goes; of `source`, `source_link` and
    neither where it came from.
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
        "kv",
        "link",
        "next",
        "next_seq",
        "remaining_s",
        "side",
        "source",
        "source_device",
        "source_link",
        "stage",
        "step",
        "writes",
    )

    def __init__(self, side: StreamSide, device: Device, stage: int, step: int, block: int) -> None:
        self.side = side
        self.device = device
        self.stage = stage
        self.step = step
        self.block = block
        self.fifo: deque[InFlight] = deque()
        self.next_seq = 0
        self.credits = 0
        self.bounded = False
        self.credited_s = 0.0
        self.gate: StageSlot | None = None
        self.next: StageSlot | None = None
        self.link: LinkSender | None = None
        self.source: StageSlot | None = None
        self.source_link: LinkReceiver | None = None
        self.source_device = -1
        self.kv: Any = None
        self.writes = False
        self.exits = False
        self.dead = False
        self.remaining_s = 0.0
        self.blocked_since_s = -1.0
        self.blocked_s = 0.0

    def ready(self, now_s: float) -> bool:
        """Whether the head of a non-empty queue may start. Keeps account of waits for credits."""
        if self.bounded:
            if self.credits <= 0:
                if self.blocked_since_s < 0.0:
                    self.blocked_since_s = now_s
                return False
            if self.blocked_since_s >= 0.0:
                self.blocked_s += now_s - self.blocked_since_s
                self.blocked_since_s = -1.0
        head = self.fifo[0]
        if self.gate is not None and self.gate.next_seq != head.seq:
            return False
        return head.version in self.side.conditions


class StreamSide:
    """What one worker knows of one stream."""

    __slots__ = (
        "block_s",
        "conditions",
        "epoch",
        "handle",
        "newest",
        "newest_number",
        "past",
        "priority",
        "refresh",
        "route",
        "seed",
        "slots",
    )

    def __init__(
        self, handle: int, route: int, epoch: int, seed: int, refresh: Refresh, priority: int
    ) -> None:
        self.handle = handle
        self.route = route
        self.epoch = epoch
        self.seed = seed
        self.refresh = refresh
        self.priority = priority
        self.block_s: Sequence[float] = ()
        """Seconds of one task of each block."""
        self.slots: dict[int, StageSlot] = {}
        self.conditions: dict[int, Any] = {}
        """version -> per device index the model's tensors"""
        self.newest: Mapping[str, Any] | None = None
        self.newest_number = 0
        self.past: dict[int, Any] = {}
        """chunk id below 0 -> its clean latent, at the workers where a denoising step begins"""
