"""Discrete-event simulation of the engine on a virtual clock.

The rules of motion are the worker's: a chunk waits in the queue of its (stream, stage); the head of
a queue may start when the boundary to the next device has a free place; that place comes free when
the next device starts computing the chunk. What to run is `dispatch.decide`, when to let in is
`Injector`, when to deliver is `Pacer`, and what is too much is `OverloadDetector`: the very code of
the engine.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import Any

from physis_core.clock import VirtualClock
from physis_core.observe.recorder import TaskLog
from physis_core.pipeline.dispatch import CostTable, RunBatch, WaitUntil, decide
from physis_core.pipeline.overload import OverloadDetector, OverloadState
from physis_core.sim.doors import Doors, Missed
from physis_core.sim.noise import Noise
from physis_core.sim.pipeline import Chunk, Device, Slot
from physis_core.sim.scenario import Scenario, SimStream

_DONE, _ARRIVE, _CREDIT, _POLL, _WAKE, _CALL = range(6)


class Simulator:
    """Runs one scenario; more streams may be opened and closed while it runs (`at`).

    Deterministic: the same scenario and seed give the same events in the same order.
    """

    def __init__(self, scenario: Scenario, *, missed: Missed | None = None) -> None:
        self.scenario = scenario
        self.clock = VirtualClock()
        costs = scenario.costs
        self.costs = costs if isinstance(costs, CostTable) else CostTable(costs)
        self.devices = [Device(i) for i in range(scenario.pool.devices)]
        self.log = TaskLog(max(1, scenario.record_tasks))
        self.overload: list[tuple[float, OverloadState]] = []
        self.tasks = 0
        self.batches = 0
        self._noise = None if scenario.noise.silent else Noise(scenario.noise, scenario.seed)
        self._detector = OverloadDetector()
        self._small: int | None = None
        self._heap: list[tuple[float, int, int, Any]] = []
        self._number = 0
        self._dirty: list[Device] = []
        self._end_s = scenario.end_s
        self._doors = Doors(
            scenario.pool,
            self.devices,
            self.costs,
            scenario.boundary_credits,
            wake=lambda time_s, run: self._push(time_s, _POLL, run),
            enter=self._enter if scenario.per_entry_s > 0.0 else self._enqueue,
            missed=missed,
        )
        self.traces = self._doors.traces
        self.edges = self._doors.edges
        for stream in scenario.streams:
            self.at(stream.open_s, lambda stream=stream: self.open(stream))  # type: ignore[misc]
        for stall in scenario.stalls:
            self.at(stall.at_s, lambda s=stall: self._stall(s.device, s.seconds))  # type: ignore[misc]
        if scenario.overload_s > 0.0:
            self.at(0.0, self._watch)

    # -- from outside -----------------------------------------------------------------------------

    def at(self, time_s: float, call: Callable[[], None]) -> None:
        """Call `call` when the simulated time comes to `time_s`."""
        self._push(time_s, _CALL, call)

    @property
    def overload_state(self) -> OverloadState:
        return self._detector.state

    def open(self, spec: SimStream) -> None:
        """Open a stream now."""
        self._doors.open(spec, self.clock.now_s())
        if spec.close_s < math.inf:
            self.at(spec.close_s, lambda: self.close(spec.stream_id))

    def close(self, stream_id: str) -> None:
        """Let nothing more in; the chunks in flight finish."""
        self._doors.close(stream_id)

    def stop(self) -> None:
        """Let nothing more happen: `run` returns after the present event."""
        self._end_s = -math.inf

    def run(self, end_s: float | None = None) -> None:
        """Until `end_s` (the scenario's where not given) or until nothing is left to happen. May
        be called again with a later end.
        """
        self._end_s = self.scenario.end_s if end_s is None else end_s
        heap, dirty, advance = self._heap, self._dirty, self.clock.advance_to
        finish, enqueue, start = self._finish, self._enqueue, self._start
        pop = heapq.heappop
        last_s = -math.inf
        while heap and heap[0][0] <= self._end_s:
            now_s, _, kind, what = pop(heap)
            if now_s != last_s:
                advance(now_s)
                last_s = now_s
            if kind == _DONE:
                finish(what, now_s)
            elif kind == _ARRIVE:
                enqueue(what, what.slot, now_s)
            elif kind == _CREDIT:
                what.credits += 1
                self._touch(what.device)
            elif kind == _POLL:
                if what.poll_s == now_s:
                    what.poll_s = math.inf
                    self._doors.poll(what, now_s)
            elif kind == _WAKE:
                self._touch(what)
            else:
                what()
            if heap and heap[0][0] <= now_s:
                # What happens at the same instant belongs together: tasks that arrive as one may
                # batch.
                continue
            while dirty:
                device = dirty.pop()
                device.dirty = False
                if not device.running and device.waiting:
                    start(device, now_s)

    # -- inside -----------------------------------------------------------------------------------

    def _push(self, time_s: float, kind: int, what: Any) -> None:
        self._number += 1
        heapq.heappush(self._heap, (time_s, self._number, kind, what))

    def _touch(self, device: Device) -> None:
        if not device.dirty:
            device.dirty = True
            self._dirty.append(device)

    def _start(self, device: Device, now_s: float) -> None:
        ready = []
        for slot in device.waiting:
            if slot.bounded and slot.credits <= 0:
                continue
            gate = slot.gate
            if gate is not None and gate.next_seq != slot.fifo[0].seq:
                continue
            ready.append(slot.fifo[0])
        if not ready:
            return
        if device.stalled_until_s > now_s:
            self._push(device.stalled_until_s, _WAKE, device)
            return
        scenario = self.scenario
        tasks: Any = ready
        if len(ready) > 1:
            # One task alone runs: nothing is decided (`decide` says so too, and takes longer).
            decision = decide(
                ready,
                self.costs,
                now_s,
                max_batch=scenario.max_batch,
                low_priority_max_batch=self._small,
                eager=scenario.eager_batching,
            )
            if type(decision) is WaitUntil:
                self._push(decision.time_s, _WAKE, device)
                return
            assert type(decision) is RunBatch
            tasks = decision.tasks
        for task in tasks:
            slot = task.slot
            fifo = slot.fifo
            fifo.popleft()
            if not fifo:
                device.waiting.remove(slot)
            if slot.bounded:
                slot.credits -= 1
            source = slot.source
            if source is not None:
                if scenario.credit_latency_s > 0.0:
                    self._push(now_s + scenario.credit_latency_s, _CREDIT, source)
                else:
                    source.credits += 1
                    other = source.device
                    # A device without work, or at work, is looked at when that changes.
                    if not other.dirty and other.waiting and not other.running:
                        other.dirty = True
                        self._dirty.append(other)
        first = tasks[0]
        seconds = self.costs.predict_s(first.block, len(tasks))
        if self._noise is not None:
            seconds *= self._noise.factor(first.stream, first.seq, first.stage)
        if scenario.speed is not None:
            seconds *= scenario.speed.factor(device.index, now_s)
        device.running = tasks
        device.started_s = max(now_s, device.free_s) + scenario.per_batch_s
        device.ends_s = device.started_s + seconds
        device.batches += 1
        self._number += 1
        heapq.heappush(self._heap, (device.ends_s, self._number, _DONE, device))

    def _finish(self, device: Device, now_s: float) -> None:
        if now_s < device.ends_s:
            # A stall came in between; the batch's end was put off.
            self._push(device.ends_s, _DONE, device)
            return
        tasks = device.running
        start_s = device.started_s
        device.running = ()
        device.busy_s += now_s - start_s
        size = len(tasks)
        self.tasks += size
        self.batches += 1
        record = self.scenario.record_tasks > 0
        for task in tasks:
            slot = task.slot
            slot.next_seq += 1
            if record:
                source = slot.source
                self.log.add(
                    task.stream,
                    0,
                    task.chunk_id,
                    slot.stage,
                    device.index,
                    device.batches,
                    size,
                    device.index if source is None else source.device.index,
                    0,
                    task.sent_s,
                    task.ready_s,
                    start_s,
                    now_s,
                )
            run = slot.run
            following = slot.next
            if slot.exits:
                self._doors.exit(run, task, now_s)
            if following is None:
                self._doors.retire(run, now_s)
                continue
            task.sent_s = now_s
            edge = slot.edge
            if edge is None:
                self._enqueue(task, following, now_s)
                continue
            arrive_s = edge.send(now_s, run.spec.hidden_bytes) + self.scenario.per_hop_s
            task.sent_s = edge.start_s
            device.free_s = max(now_s, device.free_s) + self.scenario.per_send_s
            task.slot = following
            if arrive_s <= now_s:
                self._enqueue(task, following, now_s)
            else:
                self._number += 1
                heapq.heappush(self._heap, (arrive_s, self._number, _ARRIVE, task))
        self._touch(device)

    def _enter(self, task: Chunk, slot: Slot, now_s: float) -> None:
        task.slot = slot
        self._push(now_s + self.scenario.per_entry_s, _ARRIVE, task)

    def _enqueue(self, task: Chunk, slot: Slot, now_s: float) -> None:
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
            self._dirty.append(device)

    def _stall(self, index: int, seconds: float) -> None:
        device = self.devices[index]
        now_s = self.clock.now_s()
        device.stalled_until_s = max(device.stalled_until_s, now_s + seconds)
        if device.running:
            device.ends_s += seconds
        else:
            self._push(device.stalled_until_s, _WAKE, device)

    def _watch(self) -> None:
        now_s = self.clock.now_s()
        queues = [sum(len(slot.fifo) for slot in device.waiting) for device in self.devices]
        before = self._detector.state.level
        state = self._detector.observe(now_s, queues, self._doors.take_credit_drops())
        self._small = state.low_priority_max_batch
        if state.level != before:
            self.overload.append((now_s, state))
        self.at(now_s + self.scenario.overload_s, self._watch)
