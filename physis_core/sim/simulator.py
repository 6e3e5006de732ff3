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
from physis_core.plan.topology import LinkSpec
from physis_core.runtime.dispatch import CostTable, RunBatch, WaitUntil, decide
from physis_core.runtime.injector import Injector, InjectorConfig, ReleaseChunk, SkipRelease
from physis_core.runtime.overload import OverloadDetector, OverloadState
from physis_core.runtime.pacer import Pacer, PacerConfig
from physis_core.sim.noise import Noise
from physis_core.sim.pipeline import Chunk, Device, OpenStream, Slot, lay_out
from physis_core.sim.scenario import Scenario, SimStream
from physis_core.sim.trace import ChunkTrace, EdgeTrace, StreamTrace

_DONE, _ARRIVE, _CREDIT, _POLL, _WAKE, _CALL = range(6)


class Simulator:
    """Runs one scenario; more streams may be opened and closed while it runs (`at`).

    Deterministic: the same scenario and seed give the same events in the same order.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.clock = VirtualClock()
        self.costs = CostTable(scenario.costs)
        self.devices = [Device(i) for i in range(scenario.pool.devices)]
        self.log = TaskLog(max(1, scenario.record_tasks))
        self.traces: list[StreamTrace] = []
        self.edges: dict[tuple[int, int], EdgeTrace] = {}
        self.overload: list[tuple[float, OverloadState]] = []
        self.tasks = 0
        self.batches = 0
        self._noise = None if scenario.noise.silent else Noise(scenario.noise, scenario.seed)
        self._detector = OverloadDetector()
        self._small: int | None = None
        self._heap: list[tuple[float, int, int, Any]] = []
        self._number = 0
        self._dirty: list[Device] = []
        self._runs: dict[str, OpenStream] = {}
        self._handles = 0
        self._credit_drops = 0
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
        run = OpenStream(
            spec,
            self._handles,
            Injector(
                InjectorConfig(
                    period_s=spec.period_s,
                    credits=spec.credits,
                    max_age_s=spec.max_observation_age_s,
                )
            ),
            Pacer(
                PacerConfig(
                    period_s=spec.period_s,
                    expected_response_s=self._expected_response_s(spec),
                    margin_s=spec.margin_s,
                    max_action_age_s=spec.max_action_age_s,
                    first_responses=spec.first_responses,
                )
            ),
        )
        self._handles += 1
        lay_out(run, self.devices, self.costs, self.scenario.boundary_credits, self._edge)
        self._runs[spec.stream_id] = run
        self.traces.append(run.trace)
        if spec.close_s < math.inf:
            self.at(spec.close_s, lambda: self.close(spec.stream_id))
        run.poll_s = self.clock.now_s()
        self._push(run.poll_s, _POLL, run)

    def close(self, stream_id: str) -> None:
        """Let nothing more in; the chunks in flight finish."""
        run = self._runs.pop(stream_id, None)
        if run is not None:
            run.closing = True

    def run(self) -> None:
        """Until `end_s` or until nothing is left to happen."""
        heap, dirty, advance = self._heap, self._dirty, self.clock.advance_to
        end_s = self.scenario.end_s
        pop = heapq.heappop
        while heap and heap[0][0] <= end_s:
            now_s, _, kind, what = pop(heap)
            advance(now_s)
            if kind == _DONE:
                self._finish(what, now_s)
            elif kind == _ARRIVE:
                self._enqueue(what, what.slot, now_s)
            elif kind == _CREDIT:
                what.credits += 1
                self._touch(what.device)
            elif kind == _POLL:
                if what.poll_s == now_s:
                    what.poll_s = math.inf
                    self._poll(what, now_s)
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
                    self._start(device, now_s)

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
        tasks: Any = decision.tasks
        for task in tasks:
            slot = task.slot
            slot.fifo.popleft()
            if not slot.fifo:
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
                    if not other.dirty:
                        other.dirty = True
                        self._dirty.append(other)
        first = tasks[0]
        seconds = self.costs.predict_s(first.block, len(tasks))
        if self._noise is not None:
            seconds *= self._noise.factor(first.stream, first.seq, first.stage)
        device.running = tasks
        device.started_s = now_s
        device.ends_s = now_s + seconds + scenario.per_batch_s
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
            if slot.stage == run.spec.graph.exit_index:
                self._exit(run, task, now_s)
            if following is None:
                self._retire(run, now_s)
                continue
            task.sent_s = now_s
            edge = slot.edge
            if edge is None:
                self._enqueue(task, following, now_s)
                continue
            arrive_s = edge.send(now_s, run.spec.hidden_bytes) + self.scenario.per_hop_s
            task.slot = following
            if arrive_s <= now_s:
                self._enqueue(task, following, now_s)
            else:
                self._number += 1
                heapq.heappush(self._heap, (arrive_s, self._number, _ARRIVE, task))
        self._touch(device)

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

    def _poll(self, run: OpenStream, now_s: float) -> None:
        if run.closing:
            return
        spec, injector = run.spec, run.injector
        if spec.max_chunks is not None and injector.next_chunk_id >= spec.max_chunks:
            return
        injector.offer(now_s, self._newest_capture_s(spec, now_s))
        while True:
            step = injector.poll(now_s)
            if isinstance(step, ReleaseChunk):
                self._release(run, step, now_s)
                if spec.max_chunks is not None and step.chunk_id + 1 >= spec.max_chunks:
                    return
            elif isinstance(step, SkipRelease):
                run.trace.skipped(step)
                if step.reason == "too many chunks in flight":
                    self._credit_drops += step.count
            else:
                run.starved = step.reason == "credit"
                next_s = step.time_s
                if step.reason == "observation" and spec.sensor_period_s > 0.0:
                    next_s = now_s + spec.sensor_period_s
                if next_s < run.poll_s:
                    run.poll_s = next_s
                    self._push(next_s, _POLL, run)
                return

    def _newest_capture_s(self, spec: SimStream, now_s: float) -> float:
        """Capture time of the newest observation that has come in by now."""
        if spec.sensor_period_s <= 0.0:
            return now_s - spec.sensor_delay_s
        ticks = math.floor((now_s - spec.sensor_delay_s) / spec.sensor_period_s + 1e-9)
        return ticks * spec.sensor_period_s

    def _release(self, run: OpenStream, step: ReleaseChunk[float], now_s: float) -> None:
        slot = run.slots[0]
        deadline_s = run.pacer.released(
            step.chunk_id, step.release_s, max(0.0, step.release_s - step.observation_s)
        )
        task = Chunk(
            stream=run.handle,
            epoch=0,
            seq=run.seq,
            stage=0,
            block=slot.block,
            step=0,
            deadline_s=deadline_s,
            ready_s=now_s,
            priority=run.spec.priority,
        )
        run.seq += 1
        task.chunk_id = step.chunk_id
        task.release_s = step.release_s
        task.sent_s = now_s
        run.trace.released(
            ChunkTrace(step.chunk_id, step.release_s, now_s, step.observation_s, deadline_s)
        )
        self._enqueue(task, slot, now_s)

    def _exit(self, run: OpenStream, task: Chunk, now_s: float) -> None:
        delivery = run.pacer.completed(task.chunk_id, now_s)
        run.pacer.due(math.inf)
        run.trace.finished(task.chunk_id, now_s, delivery.deliver_s)

    def _retire(self, run: OpenStream, now_s: float) -> None:
        run.injector.finished()
        if run.starved:
            self._poll(run, now_s)

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
        state = self._detector.observe(now_s, queues, self._credit_drops)
        self._credit_drops = 0
        self._small = state.low_priority_max_batch
        if state.level != before:
            self.overload.append((now_s, state))
        self.at(now_s + self.scenario.overload_s, self._watch)

    def _expected_response_s(self, spec: SimStream) -> float:
        if spec.expected_response_s is not None:
            return spec.expected_response_s
        if spec.period_s is None:
            return 0.0
        total_s = 0.0
        for stage in range(spec.graph.exit_index + 1):
            total_s += self.costs.predict_s(spec.block_keys[stage % spec.graph.blocks], 1)
            if stage and spec.device_of[stage] != spec.device_of[stage - 1]:
                total_s += self._link(spec.device_of[stage - 1], spec.device_of[stage]).delay_s(
                    spec.hidden_bytes
                )
        return total_s

    def _link(self, source: int, target: int) -> LinkSpec:
        return self.scenario.pool.link(source, target)

    def _edge(self, source: int, target: int) -> EdgeTrace:
        edge = self.edges.get((source, target))
        if edge is None:
            edge = self.edges[(source, target)] = EdgeTrace(
                source, target, self._link(source, target)
            )
        return edge
