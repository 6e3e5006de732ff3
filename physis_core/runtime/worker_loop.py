"""The event loop of one worker: it hosts devices, moves chunks from stage to stage and runs batches.

One thread owns all of this state. Other threads only append to `inbox` and ring. A turn of the loop: take
what came in, finish what is done, start what may start, send credits, sleep until the next event.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from physis_core.observe.recorder import TaskLog
from physis_core.runtime.control import Message, Wake
from physis_core.runtime.deployment import Deployment
from physis_core.runtime.device import Device
from physis_core.runtime.dispatch import RunBatch, WaitUntil, decide
from physis_core.runtime.envelope import InFlight
from physis_core.runtime.link import Credit, LinkReceiver, LinkSender
from physis_core.runtime.stages import StageSlot, StreamSide
from physis_core.types import Array, UserError

_SPIN_S = 60e-6
"""Closer than this to an event the loop yields instead of sleeping: a sleep would end too late."""

_MESSAGES_A_TURN = 64
LOG_CAPACITY = 1 << 16


class WorkerLoop:
    """Args:
    devices: by index, only this worker's.
    reply: called in the loop's thread with what the front should know.
    """

    def __init__(
        self,
        deployment: Deployment,
        devices: dict[int, Device],
        *,
        reply: Callable[[Message], None],
    ) -> None:
        self.deployment = deployment
        self.devices = devices
        self.inbox: deque[tuple[str, Any]] = deque()
        self.wake = Wake()
        self.senders: dict[tuple[int, int], LinkSender] = {}
        self.receivers: dict[tuple[int, int], LinkReceiver] = {}
        self.log = TaskLog(LOG_CAPACITY)
        self.late_dropped = 0
        self._reply = reply
        self._graph = deployment.graph
        self._sides: dict[int, StreamSide] = {}
        self._timers: list[tuple[float, int, Device]] = []
        self._timer_number = 0
        self._dirty: list[Device] = []
        self._stalled: dict[int, float] = {}
        self._small_batches: int | None = None
        self._stop = False

    # -- other threads ----------------------------------------------------------------------------

    def post(self, kind: str, what: Any) -> None:
        """Hand something to the loop: ("message", Message), ("chunk", ...), ("credits", ...), ("lost", ...)."""
        self.inbox.append((kind, what))
        self.wake.ring()

    # -- the loop ---------------------------------------------------------------------------------

    def run(self) -> None:
        """Until a `stop` message."""
        inbox = self.inbox
        timers = self._timers
        clock = time.monotonic
        while not self._stop:
            for _ in range(_MESSAGES_A_TURN):
                if not inbox:
                    break
                self._take(*inbox.popleft())
            now_s = clock()
            while timers and timers[0][0] <= now_s:
                _, _, device = heapq.heappop(timers)
                if device.running and device.ends_s <= now_s:
                    self._finish(device, device.running, device.started_s, now_s)
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
            if not timers:
                self.wake.wait(-1.0)
                continue
            left_s = timers[0][0] - clock()
            if left_s > _SPIN_S:
                self.wake.wait(left_s - _SPIN_S)
            elif left_s > 0.0:
                time.sleep(0.0)

    def _touch(self, device: Device) -> None:
        if not device.dirty:
            device.dirty = True
            self._dirty.append(device)

    def _start(self, device: Device, now_s: float) -> None:
        ready = [slot.fifo[0] for slot in device.waiting if slot.ready()]
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
                device.waiting.remove(slot)
            assert task.seq == slot.next_seq, "chunks run in order"
            if slot.bounded:
                slot.credits -= 1
            source = slot.source
            if source is not None:
                source.credits += 1
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
            device.ends_s = now_s + seconds
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
        except Exception as error:
            # Nobody knows whose KV is whole after an error inside a block: its streams end, no other.
            for task in tasks:
                self._fail(task.slot.side, error)
            self._touch(device)
            return
        end_s = time.monotonic()
        block = tasks[0].block
        if failures:
            failed = {id(task) for task, _ in failures}
            for task, error in failures:
                self._fail(task.slot.side, error)
            tasks = [task for task in tasks if id(task) not in failed]
        elif device.learned is not None:
            device.learned.observe(block, len(tasks), end_s - start_s)
        self._finish(device, tasks, start_s, end_s)

    def _finish(
        self, device: Device, tasks: Sequence[Any], start_s: float, end_s: float
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
            add(
                task.stream,
                task.epoch,
                task.chunk_id,
                slot.stage,
                index,
                batch,
                size,
                slot.source_device,
                task.sent_s,
                task.ready_s,
                start_s,
                end_s,
            )
            if slot.exits:
                self._exit(task, end_s)
            following = slot.next
            if following is not None:
                task.sent_s = end_s
                self._enqueue(task, following, end_s)
            elif slot.link is not None:
                slot.link.send(task, slot.stage + 1)
            else:
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
        outputs = task.outputs if task.outputs is not None else {}
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
            self._restart(side, chunk.epoch)
        if side is None or chunk.epoch < side.epoch:
            self.late_dropped += 1
            return
        self._enqueue(chunk, side.slots[chunk.stage], time.monotonic())

    def _take_credits(self, credits: Sequence[Credit]) -> None:
        for stream, epoch, stage in credits:
            side = self._sides.get(stream)
            if side is None or side.epoch != epoch:
                continue
            slot = side.slots[stage - 1]
            slot.credits += 1
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
            self._answer(fields, lambda: self._open(fields))
        elif message.kind == "condition":
            self._answer(fields, lambda: self._set_condition(fields))
        elif message.kind == "restart":
            self._answer(fields, lambda: self._restart_by_message(fields))
        elif message.kind == "close":
            self._answer(fields, lambda: self._close(fields["stream"]))
        elif message.kind == "stats":
            self._reply(self._stats(fields))
        elif message.kind == "ping":
            self._reply(Message("pong", {**fields, "now_s": time.monotonic()}))
        elif message.kind == "overload":
            self._small_batches = fields["low_priority_max_batch"]
        elif message.kind == "stall":
            self._stalled[fields["device"]] = time.monotonic() + fields["seconds"]
        else:
            assert message.kind == "stop", message.kind
            self._stop = True

    def _answer(self, fields: dict[str, Any], act: Callable[[], None]) -> None:
        reason = ""
        try:
            act()
        except Exception as error:
            # Whatever one stream's wishes make a model raise refuses that wish, and stops nobody.
            reason = _reason(error)
        self._reply(Message("done", {"request": fields["request"], "reason": reason}))

    def _release(self, fields: dict[str, Any], observation: Any) -> None:
        side = self._sides.get(fields["stream"])
        if side is None or side.epoch != fields["epoch"]:
            self.late_dropped += 1
            return
        now_s = time.monotonic()
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

    # -- streams ----------------------------------------------------------------------------------

    def _open(self, fields: dict[str, Any]) -> None:
        side = StreamSide(
            fields["stream"],
            fields["route"],
            fields["epoch"],
            fields["seed"],
            fields["refresh"],
            fields["priority"],
        )
        side.conditions[0] = self._condition(fields["condition"])
        self._build_slots(side)
        self._sides[side.handle] = side

    def _condition(self, values: dict[str, Any]) -> dict[int, Any]:
        return {
            index: None if device.executor is None else device.executor.model.condition(values)
            for index, device in self.devices.items()
        }

    def _set_condition(self, fields: dict[str, Any]) -> None:
        side = self._sides.get(fields["stream"])
        if side is None:
            return
        made = self._condition(fields["condition"])
        for version in [v for v in side.conditions if v < fields["oldest_in_use"]]:
            del side.conditions[version]
        side.conditions[fields["version"]] = made

    def _restart_by_message(self, fields: dict[str, Any]) -> None:
        side = self._sides.get(fields["stream"])
        if side is not None and side.epoch < fields["epoch"]:
            self._restart(side, fields["epoch"])

    def _restart(self, side: StreamSide, epoch: int) -> None:
        self._drop(side)
        side.epoch = epoch
        side.newest, side.newest_number = None, 0
        kept = {slot.stage: slot.kv for slot in side.slots.values()}
        self._build_slots(side, kept)

    def _close(self, handle: int) -> None:
        side = self._sides.pop(handle, None)
        if side is not None:
            self._drop(side)

    def _drop(self, side: StreamSide) -> None:
        """Forget the chunks of this stream here; what runs now is ignored when it ends."""
        for slot in side.slots.values():
            slot.dead = True
            if slot.fifo:
                slot.device.waiting.remove(slot)
                slot.fifo.clear()
            self._touch(slot.device)

    def _fail(self, side: StreamSide, error: Exception) -> None:
        if self._sides.get(side.handle) is not side:
            return
        self._close(side.handle)
        fields = {"stream": side.handle, "epoch": side.epoch, "reason": _reason(error)}
        self._reply(Message("failed", fields))

    def _build_slots(self, side: StreamSide, kept: dict[int, Any] | None = None) -> None:
        graph = self._graph
        route = self.deployment.routes[side.route]
        side.slots = {}
        for stage in range(graph.stages):
            device = self.devices.get(route.device_of(stage))
            if device is not None:
                where = graph.stage(stage)
                slot = StageSlot(side, device, stage, where.step, where.block)
                slot.writes = graph.writes_kv(where)
                slot.exits = stage == graph.exit_index
                side.slots[stage] = slot
        for stage, slot in side.slots.items():
            self._connect(slot, route.device_of(stage), side)
            following = stage + 1
            if following < graph.stages:
                self._lead_on(slot, route.device_of(stage), route.device_of(following), side)
        self._give_kv(side, kept)
        self._predict_rest(side)

    def _connect(self, slot: StageSlot, here: int, side: StreamSide) -> None:
        if slot.stage == 0:
            return
        before = self.deployment.routes[side.route].device_of(slot.stage - 1)
        slot.source_device = before
        if before == here:
            return
        if before in self.devices:
            slot.source = side.slots[slot.stage - 1]
        else:
            slot.source_link = self.receivers[(before, here)]

    def _lead_on(self, slot: StageSlot, here: int, there: int, side: StreamSide) -> None:
        if there in self.devices:
            slot.next = side.slots[slot.stage + 1]
        else:
            slot.link = self.senders[(here, there)]
        if there != here:
            slot.bounded = True
            slot.credits = self.deployment.credits

    def _give_kv(self, side: StreamSide, kept: dict[int, Any] | None) -> None:
        clean = self._graph.kv == "clean"
        shared: dict[int, Any] = {}
        last_pass = self._graph.passes - 1
        for stage, slot in side.slots.items():
            executor = slot.device.executor
            if executor is not None:
                kv = shared.get(slot.block) if clean else None
                if kv is None:
                    kv = kept[stage] if kept is not None else executor.model.new_kv(slot.block)
                    kv.reset()
                    shared[slot.block] = kv
                slot.kv = kv
            if clean and slot.step == 0:
                slot.gate = side.slots[last_pass * self._graph.blocks + slot.block]

    def _predict_rest(self, side: StreamSide) -> None:
        """Cost of what follows each stage until the exit, for the slack; from the profile."""
        table = self.deployment.cost_table()
        known = table.predict_s if table is not None else None
        rest_s = 0.0
        last = self._graph.exit_index
        for stage in range(self._graph.stages - 1, -1, -1):
            slot = side.slots.get(stage)
            if slot is not None:
                slot.remaining_s = rest_s
            if stage <= last:
                block = stage % self._graph.blocks
                rest_s += known(block, 1) if known is not None else self.typical_s

    @property
    def typical_s(self) -> float:
        """Measured seconds of one task on this worker, where no profile was given."""
        seconds = [
            device.costs.predict_s(block, 1)
            for index, device in self.devices.items()
            for block in self.deployment.blocks_of(index)
        ]
        return sum(seconds) / len(seconds)

    # -- figures ----------------------------------------------------------------------------------

    def _stats(self, fields: dict[str, Any]) -> Message:
        queues: dict[str, int] = {}
        for side in self._sides.values():
            for slot in side.slots.values():
                key = str(slot.device.index)
                queues[key] = queues.get(key, 0) + len(slot.fifo)
        answer: dict[str, Any] = {
            "request": fields["request"],
            "queues": queues,
            "late_dropped": self.late_dropped,
        }
        arrays: dict[str, Array] = {}
        if fields.get("full"):
            tasks, lost = self.log.take()
            arrays["tasks"] = tasks.view("u1")
            answer["records_lost"] = lost
            answer["edges"] = [
                {"source": a, "target": b, "messages": s.messages, "bytes": s.bytes_sent}
                for (a, b), s in self.senders.items()
            ]
            answer["devices"] = [
                {
                    "device": device.index,
                    "batches": device.batches,
                    "busy_s": device.busy_s,
                    **self._memory(device),
                }
                for device in self.devices.values()
            ]
        return Message("stats", answer, arrays)

    def _memory(self, device: Device) -> dict[str, int]:
        kv = {
            id(slot.kv): slot.kv.bytes
            for side in self._sides.values()
            for slot in side.slots.values()
            if slot.device is device and slot.kv is not None
        }
        return {"kv_bytes": sum(kv.values())}


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
