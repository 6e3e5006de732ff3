"""Discrete-event simulation of the engine: drives `Pipeline` on a virtual clock.

The pipeline is the worker's own object, and `Injector`, `Pacer` and `OverloadDetector` are the
engine's. This module adds virtual time, durations with noise, link times and stalls.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import Any

from physis_core.clock import VirtualClock
from physis_core.observe.recorder import TaskLog
from physis_core.pipeline.costs import CostTable
from physis_core.pipeline.overload import OverloadDetector, OverloadState
from physis_core.pipeline.pipeline import Credit, Pipeline, WaitUntil
from physis_core.pipeline.stages import Device, Goes, InFlight
from physis_core.sim.noise import Noise
from physis_core.sim.scenario import Scenario, SimStream
from physis_core.sim.streams import Missed, SimStreams
from physis_core.sim.trace import EdgeTrace

_DONE, _ARRIVE, _CREDIT, _POLL, _WAKE, _CALL = range(6)
_LINK, _OUT = Goes.LINK, Goes.OUT


class Simulator:
    """Runs one scenario; more streams may be opened and closed while it runs (`at`).

    Deterministic: the same scenario and seed give the same events in the same order.
    """

    def __init__(self, scenario: Scenario, *, missed: Missed | None = None) -> None:
        self.scenario = scenario
        self.clock = VirtualClock()
        costs = scenario.costs
        self.costs = costs if isinstance(costs, CostTable) else CostTable(costs)
        self.devices = [Device(i, self.costs) for i in range(scenario.pool.devices)]
        self.log = TaskLog(max(1, scenario.record_tasks))
        self.overload: list[tuple[float, OverloadState]] = []
        self.tasks = 0
        self.batches = 0
        self._noise = None if scenario.noise.silent else Noise(scenario.noise, scenario.seed)
        self._detector = OverloadDetector()
        self._heap: list[tuple[float, int, int, Any]] = []
        self._number = 0
        self._end_s = scenario.end_s
        self._ends_s = [0.0] * len(self.devices)
        """When each device's batch ends."""
        self._sends_until_s = [0.0] * len(self.devices)
        self._pipeline = Pipeline(
            dict(enumerate(self.devices)),
            credits=scenario.boundary_credits,
            max_batch=scenario.max_batch,
            eager=scenario.eager_batching,
            credits_by_link=scenario.credit_latency_s > 0.0,
        )
        self._streams = SimStreams(
            scenario.pool,
            self._pipeline,
            self.costs,
            wake=lambda time_s, stream: self._push(time_s, _POLL, stream),
            enter=self._enter_later if scenario.per_entry_s > 0.0 else self._pipeline.enter,
            missed=missed,
        )
        self.traces = self._streams.traces
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
    def edges(self) -> dict[tuple[int, int], EdgeTrace]:
        """By source and target device."""
        return {(edge.source, edge.target): edge for edge in self._streams.edges}

    @property
    def overload_state(self) -> OverloadState:
        return self._detector.state

    def open(self, spec: SimStream) -> None:
        """Open a stream now."""
        self._streams.open(spec, self.clock.now_s())
        if spec.close_s < math.inf:
            self.at(spec.close_s, lambda: self.close(spec.stream_id))

    def close(self, stream_id: str) -> None:
        """Release no more chunks; those in flight finish."""
        self._streams.close(stream_id)

    def stop(self) -> None:
        """Make `run` return after the present event."""
        self._end_s = -math.inf

    def run(self, end_s: float | None = None) -> None:
        """Run until `end_s` (default: the scenario's) or until no event is left. May be called
        again with a later end.
        """
        self._end_s = self.scenario.end_s if end_s is None else end_s
        pipeline, heap, advance = self._pipeline, self._heap, self.clock.advance_to
        finish, start, pop = self._finish, self._start, heapq.heappop
        dirty, next_device = pipeline.dirty, pipeline.next_device
        last_s = -math.inf
        while heap and heap[0][0] <= self._end_s:
            now_s, _, kind, what = pop(heap)
            if now_s != last_s:
                advance(now_s)
                last_s = now_s
            if kind == _DONE:
                finish(what, now_s)
            elif kind == _ARRIVE:
                pipeline.arrive(what, now_s)
            elif kind == _CREDIT:
                pipeline.take_credit(what.stream, what.epoch, what.stage, now_s)
            elif kind == _POLL:
                if what.poll_s == now_s:
                    what.poll_s = math.inf
                    self._streams.poll(what, now_s)
            elif kind == _WAKE:
                pipeline.touch(what)
            else:
                what()
            if heap and heap[0][0] <= now_s:
                # Handle all events of one instant first: tasks that arrive together may batch.
                continue
            while dirty and (device := next_device()) is not None:
                start(device, now_s)

    # -- inside -----------------------------------------------------------------------------------

    def _push(self, time_s: float, kind: int, what: Device | InFlight | Credit | Any) -> None:
        self._number += 1
        heapq.heappush(self._heap, (time_s, self._number, kind, what))

    def _start(self, device: Device, now_s: float) -> None:
        batch = self._pipeline.start(device, now_s)
        if batch is None:
            return
        if isinstance(batch, WaitUntil):
            self._push(batch.time_s, _WAKE, device)
            return
        scenario, tasks = self.scenario, batch.tasks
        for credit in batch.credits:
            self._push(now_s + scenario.credit_latency_s, _CREDIT, credit)
        first = tasks[0]
        seconds = self.costs.predict_s(first.block, len(tasks))
        if self._noise is not None:
            seconds *= self._noise.factor(first.stream, first.seq, first.stage)
        if scenario.speed is not None:
            seconds *= scenario.speed.factor(device.index, now_s)
        device.started_s = max(now_s, self._sends_until_s[device.index]) + scenario.per_batch_s
        ends_s = self._ends_s[device.index] = device.started_s + seconds
        self._number += 1
        heapq.heappush(self._heap, (ends_s, self._number, _DONE, device))

    def _finish(self, device: Device, now_s: float) -> None:
        index = device.index
        if now_s < self._ends_s[index]:
            # A stall has postponed the end of this batch.
            self._push(self._ends_s[index], _DONE, device)
            return
        pipeline, scenario = self._pipeline, self.scenario
        start_s = device.started_s
        tasks = pipeline.finish(device, now_s)
        size = len(tasks)
        self.tasks += size
        self.batches += 1
        record = scenario.record_tasks > 0
        for task in tasks:
            slot = task.slot
            if record:
                self.log.add(
                    task.stream,
                    0,
                    task.chunk_id,
                    slot.stage,
                    index,
                    device.batches,
                    size,
                    slot.source_device,
                    0,
                    task.sent_s,
                    task.ready_s,
                    start_s,
                    now_s,
                )
            if slot.exits:
                self._streams.exit(task, now_s)
            task.sent_s = now_s
            goes = pipeline.move_on(task, now_s)
            if goes is _LINK:
                self._send(task, slot.link, index, now_s)
            elif goes is _OUT:
                self._streams.retire(task, now_s)
        pipeline.touch(device)

    def _send(self, task: InFlight, link: int, source: int, now_s: float) -> None:
        streams, scenario = self._streams, self.scenario
        edge = streams.edges[link]
        hidden_bytes = streams.by_handle[task.stream].spec.hidden_bytes
        arrive_s = edge.send(now_s, hidden_bytes) + scenario.per_hop_s
        task.sent_s = edge.start_s
        self._sends_until_s[source] = max(now_s, self._sends_until_s[source]) + scenario.per_send_s
        if arrive_s <= now_s:
            self._pipeline.arrive(task, now_s)
        else:
            self._push(arrive_s, _ARRIVE, task)

    def _enter_later(self, task: InFlight, now_s: float) -> None:
        self._push(now_s + self.scenario.per_entry_s, _ARRIVE, task)

    def _stall(self, index: int, seconds: float) -> None:
        device = self.devices[index]
        now_s = self.clock.now_s()
        device.stalled_until_s = max(device.stalled_until_s, now_s + seconds)
        if device.running:
            self._ends_s[index] += seconds
        else:
            self._push(device.stalled_until_s, _WAKE, device)

    def _watch(self) -> None:
        now_s = self.clock.now_s()
        queues = [sum(len(slot.fifo) for slot in device.waiting) for device in self.devices]
        before = self._detector.state.level
        state = self._detector.observe(now_s, queues, self._streams.take_credit_drops())
        self._pipeline.low_priority_max_batch = state.low_priority_max_batch
        if state.level != before:
            self.overload.append((now_s, state))
        self.at(now_s + self.scenario.overload_s, self._watch)
