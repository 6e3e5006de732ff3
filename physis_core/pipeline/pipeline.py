"""The pipeline as one pure state machine: which chunk waits where, what runs next, where it goes.

Worker and simulator drive the same object. The driver reports events (a chunk entered or arrived, a
credit came, a batch ended) with the time, and carries out what comes back: run a batch, give
credits, send a chunk over a link. Nothing in here computes, sends, sleeps or reads a clock.

    stream opened    open, restart, close
    chunk came in    enter, arrive, take_credit
    schedule         next_device, start          -> Batch | WaitUntil | None
    batch ended      finish, then for each task move_on -> Goes, then touch
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from physis_core.pipeline.dispatch import decide
from physis_core.pipeline.stages import Device, Goes, InFlight, Layout, Slot, Stream


class Credit(NamedTuple):
    """A freed place of `stage`, to be reported over link number `link` to the stage before."""

    link: int
    stream: int
    epoch: int
    stage: int


@dataclass(slots=True, eq=False)
class Batch:
    """Run `tasks` as one batch now, and give the credits that their start sets free."""

    tasks: tuple[InFlight, ...]
    credits: Sequence[Credit]


@dataclass(frozen=True, slots=True)
class WaitUntil:
    """The device is stalled: ask again at `time_s`."""

    time_s: float


class Pipeline:
    """Args:
    devices: those of this driver, by index.
    credits: chunks of one stream that may wait between two stages on different devices.
    max_batch: most tasks in one batch.
    eager: see `dispatch.decide`.
    credits_by_link: credits return over the link even where both its ends are in this pipeline.
    """

    def __init__(
        self,
        devices: Mapping[int, Device],
        *,
        credits: int,
        max_batch: int,
        eager: bool = False,
        credits_by_link: bool = False,
    ) -> None:
        self.devices = devices
        self.streams: dict[int, Stream] = {}
        self.low_priority_max_batch: int | None = None
        """Set while the engine is overloaded; see `dispatch.decide`."""
        self._credits = credits
        self._max_batch = max_batch
        self._eager = eager
        self._credits_by_link = credits_by_link
        self._links: dict[tuple[int, int], int] = {}
        self._link_count = 0
        self.dirty: list[Device] = []
        """Where something changed: `next_device` takes from it."""

    # -- links and streams ------------------------------------------------------------------------

    def add_link(self, source: int, target: int) -> int:
        """Chunks from device `source` to `target` take a link from now on; returns its number.

        A stream takes it over when it is opened or restarted: one that runs keeps the link before,
        so that no chunk of an interrupted epoch gets into the new one.
        """
        number = self._link_count
        self._link_count += 1
        self._links[(source, target)] = number
        return number

    def open(self, handle: int, *, epoch: int, priority: int, layout: Layout) -> Stream:
        """Raises KeyError where a stage leads to a device that is neither here nor behind a link.

        Nothing is opened then.
        """
        stream = Stream(handle, epoch, priority, layout)
        self._lay_out(stream)
        self.streams[handle] = stream
        return stream

    def restart(self, handle: int, epoch: int) -> None:
        """Begin an epoch: all chunks are dropped, all queues empty, all credits there."""
        stream = self.streams[handle]
        self._drop(stream)
        stream.epoch = epoch
        self._lay_out(stream)

    def close(self, handle: int) -> bool:
        """False where no such stream is open."""
        stream = self.streams.pop(handle, None)
        if stream is None:
            return False
        self._drop(stream)
        return True

    def slots(self) -> Iterator[Slot]:
        """Of all open streams."""
        return (slot for stream in self.streams.values() for slot in stream.slots.values())

    def places_taken(self) -> int:
        """Credits that are out; 0 when all is quiet."""
        return sum(self._credits - slot.credits for slot in self.slots() if slot.bounded)

    @staticmethod
    def _drop(stream: Stream) -> None:
        """Forget the stream's chunks; those of a batch under way are ignored when it ends."""
        for slot in stream.slots.values():
            slot.dead = True
            if slot.fifo:
                slot.device.waiting.remove(slot)
                slot.fifo.clear()

    def _lay_out(self, stream: Stream) -> None:
        """Make the slots of the stages that run here, and join them to what comes before and after.

        From the last stage to the first, because the predicted remaining cost adds up that way.
        """
        layout = stream.layout
        graph = layout.graph
        slots: dict[int, Slot] = {}
        rest_s = 0.0
        for stage in range(graph.stages - 1, -1, -1):
            step, block = divmod(stage, graph.blocks)
            device = self.devices.get(layout.device_of[stage])
            if device is not None:
                slot = Slot(stream, device, stage, step, layout.blocks[block])
                slot.remaining_s = rest_s
                slot.writes = graph.writes_kv(graph.stage(stage))
                slot.exits = stage == graph.exit_index
                self._lead_on(slot, slots)
                if graph.kv == "clean" and step == 0:
                    slot.gate = slots[(graph.passes - 1) * graph.blocks + stage]
                slots[stage] = slot
            if stage <= graph.exit_index:
                rest_s += layout.block_s[block]
        for slot in slots.values():
            self._lead_back(slot, slots)
        stream.slots = dict(sorted(slots.items()))

    def _lead_on(self, slot: Slot, slots: Mapping[int, Slot]) -> None:
        layout = slot.stream.layout
        following = slot.stage + 1
        if following == layout.graph.stages:
            return
        here, there = slot.device.index, layout.device_of[following]
        slot.next = slots.get(following)
        slot.goes = Goes.QUEUE
        if here != there:
            slot.bounded = True
            slot.credits = self._credits
            if slot.next is None or (here, there) in self._links:
                slot.goes = Goes.LINK
                slot.link = self._links[(here, there)]

    def _lead_back(self, slot: Slot, slots: Mapping[int, Slot]) -> None:
        if slot.stage == 0:
            return
        here, before = slot.device.index, slot.stream.layout.device_of[slot.stage - 1]
        slot.source_device = before
        if here == before:
            return
        source = slots.get(slot.stage - 1)
        if source is None or self._credits_by_link:
            slot.source_link = self._links[(before, here)]
        else:
            slot.source = source

    # -- chunks and credits -----------------------------------------------------------------------

    def enter(self, task: InFlight, now_s: float) -> bool:
        """A chunk that was released comes to the first stage. False: see `arrive`."""
        task.stage = 0
        return self.arrive(task, now_s)

    def arrive(self, task: InFlight, now_s: float) -> bool:
        """A chunk came over a link, bound for `task.stage`. False where it came too late: its
        stream is closed, or in another epoch.
        """
        stream = self.streams.get(task.stream)
        if stream is None or stream.epoch != task.epoch:
            return False
        self._enqueue(task, stream.slots[task.stage], now_s)
        return True

    def take_credit(self, stream: int, epoch: int, stage: int, now_s: float) -> None:
        """`stage`, on another device, has a free place again."""
        known = self.streams.get(stream)
        if known is None or known.epoch != epoch:
            return
        slot = known.slots[stage - 1]
        slot.credits += 1
        slot.credited_s = now_s
        self.touch(slot.device)

    def _enqueue(self, task: InFlight, slot: Slot, now_s: float) -> None:
        task.slot = slot
        task.stage = slot.stage
        task.step = slot.step
        task.block = slot.block
        task.remaining_s = slot.remaining_s
        task.ready_s = now_s
        device = slot.device
        fifo = slot.fifo
        if not fifo:
            device.waiting.append(slot)
        fifo.append(task)
        if not device.dirty and not device.running:
            device.dirty = True
            self.dirty.append(device)

    # -- batches ----------------------------------------------------------------------------------

    def touch(self, device: Device) -> None:
        """Something changed: the device may have something to start."""
        if not device.dirty:
            device.dirty = True
            self.dirty.append(device)

    def next_device(self) -> Device | None:
        """A free device with waiting chunks at which something changed, to be asked to `start`."""
        while self.dirty:
            device = self.dirty.pop()
            device.dirty = False
            if device.waiting and not device.running:
                return device
        return None

    def settle(self, now_s: float) -> None:
        """Forget the devices that have nothing to start, so that no thread wakes to find that."""
        for device in self.dirty:
            device.dirty = not device.running and bool(self._ready(device.waiting, now_s))
        self.dirty[:] = [device for device in self.dirty if device.dirty]

    def start(self, device: Device, now_s: float) -> Batch | WaitUntil | None:
        """Choose the device's next batch and take it out of the queues. None: nothing is ready."""
        waiting = device.waiting
        if len(waiting) > device.most_waiting:
            device.most_waiting = len(waiting)
        ready = self._ready(waiting, now_s)
        if not ready:
            return None
        if device.stalled_until_s > now_s:
            return WaitUntil(device.stalled_until_s)
        tasks: tuple[InFlight, ...]
        if len(ready) == 1:
            tasks = (ready[0],)
        else:
            tasks = decide(
                ready,
                device.costs,
                now_s,
                max_batch=self._max_batch,
                low_priority_max_batch=self.low_priority_max_batch,
                eager=self._eager,
            )
        credits: Sequence[Credit] = ()
        for task in tasks:
            slot = task.slot
            fifo = slot.fifo
            fifo.popleft()
            if not fifo:
                waiting.remove(slot)
            assert task.seq == slot.next_seq, "chunks run in order"
            if slot.bounded:
                slot.credits -= 1
            source = slot.source
            if source is not None:
                source.credits += 1
                source.credited_s = now_s
                other = source.device
                # A device without work, or at work, is looked at when that changes.
                if not other.dirty and other.waiting and not other.running:
                    other.dirty = True
                    self.dirty.append(other)
            elif slot.source_link >= 0:
                credit = Credit(slot.source_link, task.stream, task.epoch, slot.stage)
                credits = (*credits, credit)
        device.running = tasks
        device.batches += 1
        return Batch(tasks, credits)

    @staticmethod
    def _ready(waiting: list[Slot], now_s: float) -> list[InFlight]:
        """The heads of the queues that may start. Keeps account of waits for credits."""
        ready = []
        for slot in waiting:
            if slot.bounded:
                if slot.credits <= 0:
                    if slot.blocked_since_s < 0.0:
                        slot.blocked_since_s = now_s
                    continue
                if slot.blocked_since_s >= 0.0:
                    slot.blocked_s += now_s - slot.blocked_since_s
                    slot.blocked_since_s = -1.0
            head = slot.fifo[0]
            gate = slot.gate
            if gate is not None and gate.next_seq != head.seq:
                continue
            if head.version in slot.stream.versions:
                ready.append(head)
        return ready

    def finish(self, device: Device, end_s: float) -> list[InFlight]:
        """The running batch ended. Returns its tasks but those whose stream ended meanwhile.

        The driver calls `move_on` for each, and then `touch` for the device.
        """
        tasks = device.running
        device.running = ()
        device.busy_s += end_s - device.started_s
        return [task for task in tasks if not task.slot.dead]

    def move_on(self, task: InFlight, now_s: float) -> Goes:
        """Take a task that is done to its chunk's next stage. `LINK`: send it over link
        `task.slot.link`; `task.stage` is then the stage that it is bound for.
        """
        slot = task.slot
        slot.next_seq += 1
        if slot.link >= 0:
            task.stage = slot.stage + 1
        elif slot.next is not None:
            self._enqueue(task, slot.next, now_s)
        return slot.goes
