"""The event loop of one worker: it hosts devices, moves chunks from stage to stage and runs
batches.

One thread owns all of this state. Other threads only append to `inbox` and ring. A turn of the
loop: take what came in, finish what is done, start what may start, send credits, sleep until the
next event.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from physis_core.observe.recorder import TaskLog
from physis_core.runtime.control import Message, Wake, sleep_precisely
from physis_core.runtime.deployment import Deployment
from physis_core.runtime.device import Device
from physis_core.runtime.dispatch import RunBatch, WaitUntil, decide
from physis_core.runtime.envelope import InFlight
from physis_core.runtime.host_clock import HostClock
from physis_core.runtime.link import Credit, LinkReceiver, LinkSender
from physis_core.runtime.stages import StageSlot, StreamSide
from physis_core.runtime.worker_report import (
    device_counters,
    edge_counters,
    queue_lengths,
    recorded,
)
from physis_core.runtime.worker_streams import WorkerStreams
from physis_core.types import Array, UserError

_SPIN_S = 25e-6
"""Closer than this to an event the loop looks again and again: going to sleep takes longer."""

_POLL_S = 20e-6
"""Between two looks at a GPU that is at work."""

_MESSAGES_A_TURN = 64
LOG_CAPACITY = 1 << 16


class WorkerLoop:
    """Args:
    devices: by index, only this worker's.
    reply: called in the loop's thread with what the front should know.
    clock: gives the front's time.
    """

    def __init__(
        self,
        deployment: Deployment,
        devices: dict[int, Device],
        *,
        reply: Callable[[Message], None],
        clock: HostClock,
    ) -> None:
        self._clock = clock
        self.deployment = deployment
        self.devices = devices
        self.inbox: deque[tuple[str, Any]] = deque()
        self.wake = Wake()
        self.senders: dict[tuple[int, int], LinkSender] = {}
        self.receivers: dict[tuple[int, int], LinkReceiver] = {}
        self.log = TaskLog(LOG_CAPACITY)
        self.late_dropped = 0
        self._reply = reply
        self._timers: list[tuple[float, int, Device]] = []
        self._timer_number = 0
        self._dirty: list[Device] = []
        self._launched: list[Device] = []
        self._stalled: dict[int, float] = {}
        self._small_batches: int | None = None
        self._stop = False
        self._streams = WorkerStreams(
            deployment, devices, self.senders, self.receivers, self._touch
        )
        self._sides = self._streams.sides

    # -- other threads ----------------------------------------------------------------------------

    def post(self, kind: str, what: Any) -> None:
        """Hand something to the loop: ("message", Message), ("chunk", ...), ("credits", ...),
        ("lost", ...).
        """
        self.inbox.append((kind, what))
        self.wake.ring()

    # -- the loop ---------------------------------------------------------------------------------

    def run(self) -> None:
        """Until a `stop` message."""
        inbox = self.inbox
        timers = self._timers
        clock = self._clock.now_s
        sleep_precisely()
        while not self._stop:
            for _ in range(_MESSAGES_A_TURN):
                if not inbox:
                    break
                self._take(*inbox.popleft())
            now_s = clock()
            if self._launched:
                self._poll(now_s)
            while timers and timers[0][0] <= now_s:
                _, _, device = heapq.heappop(timers)
                if device.running and device.emulated and device.ends_s <= now_s:
                    self._finish(device, device.running, device.started_s, device.ends_s, now_s)
                else:
                    self._touch(device)
                now_s = clock()
            while self._dirty:
                device = self._dirty.pop()
                device.dirty = False
                if not device.running:
                    self._start(device, clock())
                if inbox:
                    # News may make the next choice a better one, and a stop must not wait.
                    break
            for receiver in self.receivers.values():
                receiver.flush()
            if inbox or self._dirty or self._stop:
                continue
            if self._launched:
                # Nobody rings when a GPU is done.
                self.wake.wait(_POLL_S)
                continue
            if not timers:
                self.wake.wait(-1.0)
                continue
            left_s = timers[0][0] - clock()
            if left_s > _SPIN_S:
                self.wake.wait(left_s - _SPIN_S)

    def _touch(self, device: Device) -> None:
        if not device.dirty:
            device.dirty = True
            self._dirty.append(device)

    def _start(self, device: Device, now_s: float) -> None:
        waiting = device.waiting
        if len(waiting) > device.most_waiting:
            device.most_waiting = len(waiting)
        ready = [slot.fifo[0] for slot in waiting if slot.ready(now_s)]
        if not ready:
            return
        if self._stalled and self._stalled.get(device.index, 0.0) > now_s:
            self._arm(device, self._stalled[device.index])
            return
        decision = decide(
            ready,
            device.costs,
            now_s,
            max_batch=self.deployment.max_batch,
            low_priority_max_batch=self._small_batches,
        )
        if type(decision) is WaitUntil:
            self._arm(device, decision.time_s)
            return
        assert type(decision) is RunBatch
        tasks: Sequence[Any] = decision.tasks
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
                self._touch(source.device)
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
                _device_start_s(device, tasks), self._stalled.get(device.index, 0.0)
            )
            device.ends_s = device.started_s + seconds
            self._arm(device, device.ends_s)
            return
        for receiver in self.receivers.values():
            # The senders may go on while this one computes.
            receiver.flush()
        self._compute(device, tasks, now_s)

    def _arm(self, device: Device, time_s: float) -> None:
        self._timer_number += 1
        heapq.heappush(self._timers, (time_s, self._timer_number, device))

    def _compute(self, device: Device, tasks: Sequence[Any], start_s: float) -> None:
        assert device.executor is not None
        try:
            failures = device.executor.run(tasks)
        except Exception as error:  # noqa: BLE001
            # Nobody knows whose KV is whole after an error inside a block: its streams end, no
            # other.
            for task in tasks:
                self._fail(task.slot.side, error)
            self._touch(device)
            return
        if failures:
            failed = {id(task) for task, _ in failures}
            for task, why in failures:
                assert task.slot is not None
                self._fail(task.slot.side, why)
            tasks = [task for task in tasks if id(task) not in failed]
            if not tasks:
                self._touch(device)
                return
        if device.executor.asynchronous:
            device.running = tuple(tasks)
            device.launched = device.executor.launched()
            self._launched.append(device)
            return
        self._computed(device, tasks, start_s, self._clock.now_s())

    def _computed(self, device: Device, tasks: Sequence[Any], start_s: float, end_s: float) -> None:
        if device.learned is not None:
            device.learned.observe(tasks[0].block, len(tasks), end_s - start_s)
        self._finish(device, tasks, start_s, end_s, end_s)

    def _poll(self, now_s: float) -> None:
        """Finish what GPUs have done since the last look."""
        for device in list(self._launched):
            assert device.launched is not None
            try:
                if not device.launched.query():
                    continue
            except RuntimeError as error:
                for task in device.running:
                    self._fail(task.slot.side, error)  # type: ignore[union-attr]
                device.running = ()
                self._touch(device)
            else:
                self._computed(device, device.running, device.started_s, now_s)
            self._launched.remove(device)
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
        for task in tasks:
            slot: StageSlot = task.slot
            if slot.dead:
                continue
            slot.next_seq += 1
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
            if slot.exits:
                self._exit(task, now_s)
            following = slot.next
            if following is not None:
                task.sent_s = end_s
                self._enqueue(task, following, now_s)
            elif slot.link is None:
                self._reply(
                    Message(
                        "retired", {"stream": task.stream, "epoch": task.epoch, "seq": task.seq}
                    )
                )
        if not device.dirty:
            device.dirty = True
            self._dirty.append(device)

    def _enqueue(self, task: InFlight, slot: StageSlot, now_s: float) -> None:
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
            self._dirty.append(device)

    def _exit(self, task: InFlight, end_s: float) -> None:
        outputs = {name: value.cpu().numpy() for name, value in (task.outputs or {}).items()}
        task.outputs = None
        self._reply(
            Message(
                "exit",
                {
                    "stream": task.stream,
                    "epoch": task.epoch,
                    "chunk": task.chunk_id,
                    "seq": task.seq,
                    "touches": task.touches,
                    "exit_s": end_s,
                },
                outputs,
            )
        )

    # -- news -------------------------------------------------------------------------------------

    def _take(self, kind: str, what: Any) -> None:
        if kind == "message":
            self._obey(what)
        elif kind == "chunk":
            self._arrive(what)
        elif kind == "credits":
            self._take_credits(what)
        else:
            assert kind == "lost", kind
            edge, reason = what
            self._reply(Message("edge_lost", {"edge": list(edge), "reason": reason}))

    def _arrive(self, chunk: InFlight) -> None:
        side = self._sides.get(chunk.stream)
        if side is not None and chunk.epoch > side.epoch:
            # The restart overtook its own message on the way through the pipeline.
            self._streams.restart(side, chunk.epoch)
        if side is None or chunk.epoch < side.epoch:
            self.late_dropped += 1
            return
        self._enqueue(chunk, side.slots[chunk.stage], self._clock.now_s())

    def _take_credits(self, credits: Sequence[Credit]) -> None:
        now_s = self._clock.now_s()
        for stream, epoch, stage in credits:
            side = self._sides.get(stream)
            if side is None or side.epoch != epoch:
                continue
            slot = side.slots[stage - 1]
            slot.credits += 1
            slot.credited_s = now_s
            self._touch(slot.device)

    def _obey(self, message: Message) -> None:
        fields = message.fields
        if message.kind == "release":
            self._release(fields, message.arrays)
        elif message.kind == "observe":
            side = self._sides.get(fields["stream"])
            if side is not None and side.epoch == fields["epoch"]:
                side.newest, side.newest_number = message.arrays, fields["number"]
        elif message.kind == "open":
            self._answer(fields, lambda: self._streams.open(fields))
        elif message.kind == "condition":
            self._answer(fields, lambda: self._streams.set_condition(fields))
        elif message.kind == "restart":
            self._answer(fields, lambda: self._streams.restart_by_message(fields))
        elif message.kind == "close":
            self._answer(fields, lambda: self._streams.close(fields["stream"]))
        elif message.kind == "stats":
            self._reply(self._stats(fields))
        elif message.kind == "clock":
            self._clock.shift(fields["shift_s"])
        elif message.kind == "overload":
            self._small_batches = fields["low_priority_max_batch"]
        elif message.kind == "stall":
            self._stalled[fields["device"]] = self._clock.now_s() + fields["seconds"]
        else:
            assert message.kind == "stop", message.kind
            self._stop = True

    def _answer(self, fields: dict[str, Any], act: Callable[[], None]) -> None:
        reason = ""
        try:
            act()
        except Exception as error:  # noqa: BLE001
            # Whatever one stream's wishes make a model raise refuses that wish, and stops nobody.
            reason = _reason(error)
        self._reply(Message("done", {"request": fields["request"], "reason": reason}))

    def _release(self, fields: dict[str, Any], observation: Any) -> None:
        side = self._sides.get(fields["stream"])
        if side is None or side.epoch != fields["epoch"]:
            self.late_dropped += 1
            return
        now_s = self._clock.now_s()
        slot = side.slots[0]
        chunk = InFlight(
            stream=side.handle,
            epoch=side.epoch,
            seq=fields["seq"],
            stage=0,
            block=0,
            step=0,
            deadline_s=fields["deadline_s"],
            ready_s=now_s,
            priority=side.priority,
            chunk_id=fields["chunk"],
            seed=side.seed,
            version=fields["version"],
            release_s=fields["release_s"],
            entry_s=fields["entry_s"],
            touches=(fields["number"],),
            observation=observation,
            sent_s=fields["sent_s"],
        )
        self._enqueue(chunk, slot, now_s)

    def _fail(self, side: StreamSide, error: Exception) -> None:
        if self._sides.get(side.handle) is not side:
            return
        self._streams.close(side.handle)
        fields = {"stream": side.handle, "epoch": side.epoch, "reason": _reason(error)}
        self._reply(Message("failed", fields))

    def _stats(self, fields: dict[str, Any]) -> Message:
        sides = self._sides.values()
        answer: dict[str, Any] = {
            "request": fields["request"],
            "asked_s": fields["asked_s"],
            "now_s": self._clock.now_s(),
            "queues": queue_lengths(sides),
            "late_dropped": self.late_dropped,
        }
        arrays: dict[str, Array] = {}
        if fields.get("full"):
            lost, arrays = recorded(self.log)
            answer.update(lost)
            answer["edges"] = [edge_counters(e, s, sides) for e, s in self.senders.items()]
            answer["devices"] = [device_counters(d, sides) for d in self.devices.values()]
        return Message("stats", answer, arrays)


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


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
