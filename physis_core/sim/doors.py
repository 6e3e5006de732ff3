"""Where chunks of simulated streams come in and go out: the engine's injector and pacer, on a
virtual clock.

Between the two a chunk belongs to the simulator, which moves it from device to device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from physis_core.deployment.topology import LinkSpec, Pool
from physis_core.pipeline.costs import Costs
from physis_core.pipeline.injector import Injector, InjectorConfig, ReleaseChunk, SkipRelease
from physis_core.pipeline.pacer import Pacer, PacerConfig
from physis_core.pipeline.ready_task import BACKGROUND_S
from physis_core.sim.pipeline import Chunk, Device, OpenStream, Slot, lay_out
from physis_core.sim.scenario import SimStream
from physis_core.sim.trace import ChunkTrace, EdgeTrace, StreamTrace

Missed = Callable[[StreamTrace, ChunkTrace | None], None]
"""Told of each chunk that comes out after its deadline; without a chunk: one found no way in."""


class Doors:
    """All open streams. `wake` asks to be polled at a time, `enter` takes a chunk that came in."""

    def __init__(
        self,
        pool: Pool,
        devices: Sequence[Device],
        costs: Costs,
        boundary_credits: int,
        *,
        wake: Callable[[float, OpenStream], None],
        enter: Callable[[Chunk, Slot, float], None],
        missed: Missed | None,
    ) -> None:
        self.traces: list[StreamTrace] = []
        self.edges: dict[tuple[int, int], EdgeTrace] = {}
        self._pool = pool
        self._devices = devices
        self._costs = costs
        self._boundary_credits = boundary_credits
        self._wake = wake
        self._enter = enter
        self._missed = missed
        self._runs: dict[str, OpenStream] = {}
        self._credit_drops = 0

    def open(self, spec: SimStream, now_s: float) -> None:
        run = OpenStream(
            spec,
            len(self.traces),
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
        lay_out(run, self._devices, self._costs, self._boundary_credits, self._edge)
        self._runs[spec.stream_id] = run
        self.traces.append(run.trace)
        run.poll_s = now_s
        self._wake(now_s, run)

    def close(self, stream_id: str) -> None:
        run = self._runs.pop(stream_id, None)
        if run is not None:
            run.closing = True

    def poll(self, run: OpenStream, now_s: float) -> None:
        """Let in what may come in now, and ask to be polled again."""
        if run.closing:
            return
        spec, injector = run.spec, run.injector
        if spec.max_chunks is not None and injector.next_chunk_id >= spec.max_chunks:
            return
        injector.offer(now_s, _newest_capture_s(spec, now_s))
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
                if self._missed is not None:
                    self._missed(run.trace, None)
            else:
                run.starved = step.reason == "credit"
                next_s = step.time_s
                if step.reason == "observation" and spec.sensor_period_s > 0.0:
                    next_s = now_s + spec.sensor_period_s
                if next_s < run.poll_s:
                    run.poll_s = next_s
                    self._wake(next_s, run)
                return

    def exit(self, run: OpenStream, task: Chunk, now_s: float) -> None:
        """The chunk's output is there; a clean pass may still follow."""
        delivery = run.pacer.completed(task.chunk_id, now_s)
        run.pacer.due(math.inf)
        chunk = run.trace.finished(task.chunk_id, now_s, delivery.deliver_s)
        if self._missed is not None and delivery.missed:
            self._missed(run.trace, chunk)

    def retire(self, run: OpenStream, now_s: float) -> None:
        """The chunk has left the last stage: its credit comes back."""
        run.injector.finished()
        if run.starved:
            self.poll(run, now_s)

    def take_credit_drops(self) -> int:
        """Chunks dropped for want of credits since the last call."""
        drops, self._credit_drops = self._credit_drops, 0
        return drops

    # -- inside -----------------------------------------------------------------------------------

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
            deadline_s=min(deadline_s, step.release_s + BACKGROUND_S),
            ready_s=now_s,
            priority=run.priority,
        )
        run.seq += 1
        task.chunk_id = step.chunk_id
        task.release_s = step.release_s
        task.sent_s = now_s
        run.trace.released(
            ChunkTrace(step.chunk_id, step.release_s, now_s, step.observation_s, deadline_s)
        )
        self._enter(task, slot, now_s)

    def _expected_response_s(self, spec: SimStream) -> float:
        if spec.expected_response_s is not None:
            return spec.expected_response_s
        if spec.period_s is None:
            return 0.0
        total_s = 0.0
        for stage in range(spec.graph.exit_index + 1):
            total_s += self._costs.predict_s(spec.block_keys[stage % spec.graph.blocks], 1)
            if stage and spec.device_of[stage] != spec.device_of[stage - 1]:
                link = self._link(spec.device_of[stage - 1], spec.device_of[stage])
                total_s += link.delay_s(spec.hidden_bytes)
        return total_s

    def _link(self, source: int, target: int) -> LinkSpec:
        return self._pool.link(source, target)

    def _edge(self, source: int, target: int) -> EdgeTrace:
        edge = self.edges.get((source, target))
        if edge is None:
            link = self._link(source, target)
            edge = self.edges[(source, target)] = EdgeTrace(source, target, link)
        return edge


def _newest_capture_s(spec: SimStream, now_s: float) -> float:
    """Capture time of the newest observation that has come in by now."""
    if spec.sensor_period_s <= 0.0:
        return now_s - spec.sensor_delay_s
    ticks = math.floor((now_s - spec.sensor_delay_s) / spec.sensor_period_s + 1e-9)
    return ticks * spec.sensor_period_s
