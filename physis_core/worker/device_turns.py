"""What the devices of one worker do, batch by batch: start what may start, hand on what is done.

Belongs to the worker's loop and runs in its thread. Nothing here waits.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from physis_core.cluster.host_clock import HostClock
from physis_core.cluster.messages import ChunkExit, ChunkRetired, ToEngine
from physis_core.observe.recorder import TaskLog
from physis_core.pipeline.dispatch import decide
from physis_core.worker.device import Device
from physis_core.worker.links.envelope import InFlight
from physis_core.worker.links.link import LinkReceiver
from physis_core.worker.snapshot_copies import SnapshotCopies
from physis_core.worker.stages import StageSlot, StreamSide
from physis_core.worker.tensor_arrays import payload_arrays

LOG_CAPACITY = 1 << 16


class DeviceTurns:
    """Args:
    reply: called with what the front should know.
    fail: called with a stream's side and the error that ends it.
    receivers: by edge; the loop fills it.
    keep_latents: a finished chunk's clean latent goes to the front beside its outputs.
    copies: takes the copies of the KV; None where there are no snapshots.

    `timers` holds (time, number, device) of what is due; `dirty` the devices that may have
    something to start; `launched` those whose batch is computing beside this thread.
    """

    def __init__(
        self,
        *,
        max_batch: int,
        keep_latents: bool,
        copies: SnapshotCopies | None,
        clock: HostClock,
        receivers: Mapping[tuple[int, int], LinkReceiver],
        reply: Callable[[ToEngine], object],
        fail: Callable[[StreamSide, Exception], None],
    ) -> None:
        self.timers: list[tuple[float, int, Device]] = []
        self.dirty: list[Device] = []
        self.launched: list[Device] = []
        self.log = TaskLog(LOG_CAPACITY)
        self.stalled: dict[int, float] = {}
        """Device -> until when it starts nothing (fault injection)."""
        self.small_batches: int | None = None
        """Set while the engine is overloaded; see `decide`."""
        self._timer_number = 0
        self._max_batch = max_batch
        self._keep_latents = keep_latents
        self._copies = copies
        self._clock = clock
        self._receivers = receivers
        self._reply = reply
        self._fail = fail

    def touch(self, device: Device) -> None:
        if not device.dirty:
            device.dirty = True
            self.dirty.append(device)

    def settle(self, now_s: float) -> None:
        """Forget the devices that have nothing to start, so that nobody is woken to find that."""
        self.dirty[:] = [device for device in self.dirty if self._wants_turn(device, now_s)]

    @staticmethod
    def _wants_turn(device: Device, now_s: float) -> bool:
        device.dirty = any(slot.ready(now_s) for slot in device.waiting)
        return device.dirty

    def fire(self, now_s: float) -> None:
        """Whatever is due: emulated batches end, devices that waited look again."""
        timers = self.timers
        while timers and timers[0][0] <= now_s:
            _, _, device = heapq.heappop(timers)
            if device.running and device.emulated and device.ends_s <= now_s:
                self._finish(device, device.running, device.started_s, device.ends_s, now_s)
            else:
                self.touch(device)
            now_s = self._clock.now_s()

    def start(self, device: Device, now_s: float) -> None:
        waiting = device.waiting
        if len(waiting) > device.most_waiting:
            device.most_waiting = len(waiting)
        ready = [slot.fifo[0] for slot in waiting if slot.ready(now_s)]
        if not ready:
            return
        if self.stalled and self.stalled.get(device.index, 0.0) > now_s:
            self._arm(device, self.stalled[device.index])
            return
        tasks: Sequence[Any] = decide(
            ready,
            device.costs,
            now_s,
            max_batch=self._max_batch,
            low_priority_max_batch=self.small_batches,
        )
        for task in tasks:
            slot = task.slot
            slot.fifo.popleft()
            if not slot.fifo:
                waiting.remove(slot)
            assert task.seq == slot.next_seq, "chunks run in order"
            if slot.bounded:
                slot.credits -= 1
            source = slot.source
            if source is not None:
                source.credits += 1
                source.credited_s = now_s
                self.touch(source.device)
            elif slot.source_link is not None:
                slot.source_link.give_credit(task.stream, task.epoch, task.stage)
        device.batches += 1
        device.started_s = now_s
        if device.emulated:
            first = tasks[0]
            seconds = device.costs.predict_s(first.block, len(tasks))
            if device.noise is not None:
                seconds *= device.noise.factor(first.seq, first.stage)
            device.running = tuple(tasks)
            device.started_s = max(
                _device_start_s(device, tasks), self.stalled.get(device.index, 0.0)
            )
            device.ends_s = device.started_s + seconds
            self._arm(device, device.ends_s)
            return
        for receiver in self._receivers.values():
            # The senders may go on while this one computes.
            receiver.flush()
        # Giving credits is a part of the way here, not of the computing.
        device.started_s = self._clock.now_s()
        self._compute(device, tasks, device.started_s)

    def _arm(self, device: Device, time_s: float) -> None:
        self._timer_number += 1
        heapq.heappush(self.timers, (time_s, self._timer_number, device))

    def _compute(self, device: Device, tasks: Sequence[Any], start_s: float) -> None:
        assert device.executor is not None
        try:
            failures = device.executor.run(tasks)
        except Exception as error:  # noqa: BLE001
            # Nobody knows whose KV is whole after an error inside a block: its streams end, no
            # other.
            for task in tasks:
                self._fail(task.slot.side, error)
            self.touch(device)
            return
        if failures:
            failed = {id(task) for task, _ in failures}
            for task, why in failures:
                assert task.slot is not None
                self._fail(task.slot.side, why)
            tasks = [task for task in tasks if id(task) not in failed]
            if not tasks:
                self.touch(device)
                return
        if device.executor.asynchronous:
            device.running = tuple(tasks)
            device.launched = device.executor.launched()
            self.launched.append(device)
            return
        self._computed(device, tasks, start_s, self._clock.now_s())

    def _computed(self, device: Device, tasks: Sequence[Any], start_s: float, end_s: float) -> None:
        if device.learned is not None:
            device.learned.observe(tasks[0].block, len(tasks), end_s - start_s)
        self._finish(device, tasks, start_s, end_s, end_s)

    def poll(self, now_s: float) -> None:
        """Finish what GPUs have done since the last look."""
        for device in list(self.launched):
            assert device.launched is not None
            try:
                if not device.launched.query():
                    continue
            except RuntimeError as error:
                for task in device.running:
                    self._fail(task.slot.side, error)  # type: ignore[union-attr]
                device.running = ()
                self.touch(device)
            else:
                self._computed(device, device.running, device.started_s, now_s)
            self.launched.remove(device)
            device.launched = None

    def _finish(
        self,
        device: Device,
        tasks: Sequence[Any],
        start_s: float,
        end_s: float,
        now_s: float,
    ) -> None:
        device.running = ()
        device.busy_s += end_s - start_s
        add = self.log.add
        size, batch, index = len(tasks), device.batches, device.index
        copies = self._copies
        to_copy: list[tuple[InFlight, StageSlot]] = []
        for task in tasks:
            slot: StageSlot = task.slot
            if slot.dead:
                continue
            slot.next_seq += 1
            if copies is not None and slot.writes and (task.seq + 1) % copies.every == 0:
                to_copy.append((task, slot))
            came_s = task.sent_s
            if slot.link is not None:
                # First of all: the next device waits for it.
                task.sent_s = self._clock.now_s()
                slot.link.send(task, slot.stage + 1)
            add(
                task.stream,
                task.epoch,
                task.chunk_id,
                slot.stage,
                index,
                batch,
                size,
                slot.source_device,
                task.touches[-1],
                came_s,
                task.ready_s,
                start_s,
                end_s,
            )
            if slot.exits and task.chunk_id >= 0:
                self._exit(task, now_s)
            following = slot.next
            if following is not None:
                task.sent_s = end_s
                self.enqueue(task, following, now_s)
            elif slot.link is None:
                self._reply(ChunkRetired(stream=task.stream, epoch=task.epoch, seq=task.seq))
        for task, slot in to_copy:
            # After everything that others wait for, and before the next chunk.
            copies.take(task, slot)  # type: ignore[union-attr]
        if not device.dirty:
            device.dirty = True
            self.dirty.append(device)

    def enqueue(self, task: InFlight, slot: StageSlot, now_s: float) -> None:
        task.slot = slot
        task.stage = slot.stage
        task.step = slot.step
        task.block = slot.block
        task.remaining_s = slot.remaining_s
        task.ready_s = now_s
        device = slot.device
        if not slot.fifo:
            device.waiting.append(slot)
        slot.fifo.append(task)
        if not device.dirty and not device.running:
            device.dirty = True
            self.dirty.append(device)

    def _exit(self, task: InFlight, end_s: float) -> None:
        outputs = {name: value.cpu().numpy() for name, value in (task.outputs or {}).items()}
        task.outputs = None
        self._reply(
            ChunkExit(
                stream=task.stream,
                epoch=task.epoch,
                seq=task.seq,
                touches=task.touches,
                exit_s=end_s,
                outputs=outputs,
                latent=payload_arrays(task.payload) if self._keep_latents else {},
            )
        )


def _device_start_s(device: Device, tasks: Sequence[Any]) -> float:
    """When an emulated device would have begun: as a GPU does with what was launched ahead, it goes
    on at the end of its last batch, where all that it needed was there; this loop is only told
    later.

    Handing chunks on, credits and decisions keep the loop's own, later times.
    """
    start_s = device.ends_s
    for task in tasks:
        start_s = max(start_s, task.ready_s, task.slot.credited_s)
    return start_s
