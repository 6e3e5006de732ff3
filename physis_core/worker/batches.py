"""Batches of one worker: scheduled, run, and their chunks sent on when they end."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping

from physis_core.cluster.host_clock import HostClock
from physis_core.cluster.messages import ChunkExit, ChunkRetired, ToEngine
from physis_core.observe.recorder import TaskLog
from physis_core.pipeline.pipeline import Batch, Pipeline, WaitUntil
from physis_core.pipeline.stages import Device, Goes, InFlight, Slot
from physis_core.worker.executors import LocalDevice
from physis_core.worker.links.table import LinkTable
from physis_core.worker.snapshot_copies import SnapshotCopies
from physis_core.worker.streams import WorkerStreams
from physis_core.worker.tensor_arrays import payload_arrays

LOG_CAPACITY = 1 << 16


class Batches:
    """Belongs to the worker's loop and runs in its thread. Nothing here waits.

    Args:
        keep_latents: a finished chunk's clean latent goes to the engine beside its outputs.
        copies: takes copies of the KV; None where there are no snapshots.
        reply: called with what the engine should know.
        fail: called with a stream's handle and the error that ends it.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        devices: Mapping[int, LocalDevice],
        streams: WorkerStreams,
        links: LinkTable,
        *,
        keep_latents: bool,
        copies: SnapshotCopies | None,
        clock: HostClock,
        reply: Callable[[ToEngine], object],
        fail: Callable[[int, Exception], None],
    ) -> None:
        self.log = TaskLog(LOG_CAPACITY)
        self._timers: list[tuple[float, int, Device]] = []
        """(when to look, number, device)."""
        self._timer_number = 0
        self._pipeline = pipeline
        self._devices = devices
        self._streams = streams
        self._links = links
        self._keep_latents = keep_latents
        self._copies = copies
        self._clock = clock
        self._reply = reply
        self._fail = fail

    @property
    def next_look_s(self) -> float:
        """When `collect` has something to do; infinite: not before something comes in."""
        return self._timers[0][0] if self._timers else math.inf

    def collect(self, now_s: float) -> None:
        """Finish the batches that ended, and look again at devices whose stall is over."""
        timers = self._timers
        while timers and timers[0][0] <= now_s:
            device = heapq.heappop(timers)[2]
            if device.running:
                self._finish_if_ended(device, self._clock.now_s())
            else:
                self._pipeline.touch(device)

    def schedule(self, device: Device) -> Batch | None:
        """The device's next batch, taken out of its queues; None: it has none now."""
        batch = self._pipeline.start(device, self._clock.now_s())
        if isinstance(batch, WaitUntil):
            self._look_at(device, batch.time_s)
            return None
        return batch

    def run(self, device: Device, batch: Batch) -> None:
        """Give the batch to the device's executor; a CPU has computed it when this returns."""
        for credit in batch.credits:
            self._links.give(credit)
        if batch.credits:
            # Before the computation: the senders may go on meanwhile.
            self._links.flush()
        executor = self._devices[device.index].executor
        try:
            failures = executor.launch(device, self._streams.tensors, self._clock.now_s())
        except Exception as error:  # noqa: BLE001
            # After an error inside a block no KV of its streams can be relied on: they end.
            self._fail_batch(device, error)
            return
        for task, why in failures:
            self._fail(task.stream, why)
        now_s = self._clock.now_s()
        if executor.look_s(now_s) <= now_s:
            self._finish_if_ended(device, now_s)
        else:
            self._look_at(device, executor.look_s(now_s))

    # -- inside -----------------------------------------------------------------------------------

    def _look_at(self, device: Device, time_s: float) -> None:
        self._timer_number += 1
        heapq.heappush(self._timers, (time_s, self._timer_number, device))

    def _fail_batch(self, device: Device, error: Exception) -> None:
        for stream in {task.stream for task in device.running}:
            self._fail(stream, error)
        self._pipeline.finish(device, device.started_s)
        self._pipeline.touch(device)

    def _finish_if_ended(self, device: Device, now_s: float) -> None:
        executor = self._devices[device.index].executor
        try:
            end_s = executor.ended_s(device, now_s)
        except RuntimeError as error:
            self._fail_batch(device, error)
            return
        if end_s is None:
            self._look_at(device, executor.look_s(now_s))
        else:
            self._finish(device, end_s, now_s)

    def _finish(self, device: Device, end_s: float, now_s: float) -> None:
        pipeline, copies, log = self._pipeline, self._copies, self.log
        size = len(device.running)
        start_s = device.started_s
        to_copy: list[tuple[InFlight, Slot]] = []
        for task in pipeline.finish(device, end_s):
            slot = task.slot
            came_s, ready_s, task.sent_s = task.sent_s, task.ready_s, end_s
            goes = pipeline.move_on(task, now_s)
            if goes is Goes.LINK:
                # Before all else: the next device waits for it.
                task.sent_s = self._clock.now_s()
                self._links.send(task, slot.link)
            log.add(
                task.stream,
                task.epoch,
                task.chunk_id,
                slot.stage,
                device.index,
                device.batches,
                size,
                slot.source_device,
                task.touches[-1],
                came_s,
                ready_s,
                start_s,
                end_s,
            )
            if copies is not None and slot.writes and (task.seq + 1) % copies.every == 0:
                to_copy.append((task, slot))
            if slot.exits and task.chunk_id >= 0:
                self._exit(task, now_s)
            if goes is Goes.OUT:
                self._reply(ChunkRetired(stream=task.stream, epoch=task.epoch, seq=task.seq))
        if copies is not None:
            for task, slot in to_copy:
                # After everything that others wait for, and before the next chunk.
                tensors = self._streams.tensors[task.stream]
                copies.take(task, slot.stage, tensors.kv.get(slot.stage))
        pipeline.touch(device)

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
