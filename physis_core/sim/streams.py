"""The simulated streams: when their chunks enter and how they are delivered.

Release and delivery are the engine's own `Injector` and `Pacer`, on a virtual clock. Between the
two a chunk is in the pipeline.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from physis_core.deployment.topology import Pool
from physis_core.pipeline.costs import Costs
from physis_core.pipeline.injector import Injector, InjectorConfig, ReleaseChunk, SkipRelease
from physis_core.pipeline.pacer import Pacer, PacerConfig
from physis_core.pipeline.pipeline import Pipeline
from physis_core.pipeline.ready_task import BACKGROUND_PRIORITY, BACKGROUND_S
from physis_core.pipeline.stages import InFlight, Layout
from physis_core.sim.scenario import SimStream
from physis_core.sim.trace import ChunkTrace, EdgeTrace, StreamTrace

Missed = Callable[[StreamTrace, ChunkTrace | None], None]
"""Called with each chunk that is complete after its deadline; with None for a chunk that could not
enter."""


class OpenStream:
    """One simulated stream. `poll_s`: time of its next poll."""

    __slots__ = (
        "closing",
        "handle",
        "injector",
        "pacer",
        "poll_s",
        "priority",
        "seq",
        "spec",
        "starved",
        "trace",
    )

    def __init__(
        self, spec: SimStream, handle: int, injector: Injector[float], pacer: Pacer
    ) -> None:
        self.spec = spec
        self.handle = handle
        self.priority = spec.priority - (0 if spec.period_s is not None else BACKGROUND_PRIORITY)
        self.injector = injector
        self.pacer = pacer
        self.seq = 0
        self.poll_s = math.inf
        self.starved = False
        self.closing = False
        self.trace = StreamTrace(spec, handle, pacer)


class SimStreams:
    """All streams of a simulation, by handle.

    Args:
        wake: asks to be polled at a time.
        enter: takes a chunk that was released.
    """

    def __init__(
        self,
        pool: Pool,
        pipeline: Pipeline,
        costs: Costs,
        *,
        wake: Callable[[float, OpenStream], None],
        enter: Callable[[InFlight, float], object],
        missed: Missed | None,
    ) -> None:
        self.traces: list[StreamTrace] = []
        self.by_handle: list[OpenStream] = []
        self.edges: list[EdgeTrace] = []
        """By link number."""
        self._pool = pool
        self._pipeline = pipeline
        self._costs = costs
        self._wake = wake
        self._enter = enter
        self._missed = missed
        self._known_edges: set[tuple[int, int]] = set()
        self._open: dict[str, OpenStream] = {}
        self._credit_drops = 0

    def open(self, spec: SimStream, now_s: float) -> None:
        stream = OpenStream(
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
        for source, target in zip(spec.device_of, spec.device_of[1:], strict=False):
            if source != target and (source, target) not in self._known_edges:
                self._known_edges.add((source, target))
                self._pipeline.add_link(source, target)
                self.edges.append(EdgeTrace(source, target, self._pool.link(source, target)))
        opened = self._pipeline.open(
            stream.handle,
            epoch=0,
            priority=stream.priority,
            layout=Layout(
                graph=spec.graph,
                device_of=spec.device_of,
                blocks=spec.block_keys,
                block_s=[self._costs.predict_s(key, 1) for key in spec.block_keys],
            ),
        )
        opened.versions.add(0)
        self._open[spec.stream_id] = stream
        self.by_handle.append(stream)
        self.traces.append(stream.trace)
        stream.poll_s = now_s
        self._wake(now_s, stream)

    def close(self, stream_id: str) -> None:
        stream = self._open.pop(stream_id, None)
        if stream is not None:
            stream.closing = True
            self._close_if_drained(stream)

    def poll(self, stream: OpenStream, now_s: float) -> None:
        """Release the chunks that may enter now, and ask to be polled again."""
        if stream.closing:
            return
        spec, injector = stream.spec, stream.injector
        if spec.max_chunks is not None and injector.next_chunk_id >= spec.max_chunks:
            return
        injector.offer(now_s, _newest_capture_s(spec, now_s))
        while True:
            step = injector.poll(now_s)
            if isinstance(step, ReleaseChunk):
                self._release(stream, step, now_s)
                if spec.max_chunks is not None and step.chunk_id + 1 >= spec.max_chunks:
                    return
            elif isinstance(step, SkipRelease):
                stream.trace.skipped(step)
                if step.reason == "too many chunks in flight":
                    self._credit_drops += step.count
                if self._missed is not None:
                    self._missed(stream.trace, None)
            else:
                stream.starved = step.reason == "credit"
                next_s = step.time_s
                if step.reason == "observation" and spec.sensor_period_s > 0.0:
                    next_s = now_s + spec.sensor_period_s
                if next_s < stream.poll_s:
                    stream.poll_s = next_s
                    self._wake(next_s, stream)
                return

    def exit(self, task: InFlight, now_s: float) -> None:
        """The chunk's output is complete; a clean pass may still follow."""
        stream = self.by_handle[task.stream]
        delivery = stream.pacer.completed(task.chunk_id, now_s)
        stream.pacer.due(math.inf)
        chunk = stream.trace.finished(task.chunk_id, now_s, delivery.deliver_s)
        if self._missed is not None and delivery.missed:
            self._missed(stream.trace, chunk)

    def retire(self, task: InFlight, now_s: float) -> None:
        """The chunk has left the last stage: its credit comes back."""
        stream = self.by_handle[task.stream]
        stream.injector.finished()
        if stream.closing:
            self._close_if_drained(stream)
        elif stream.starved:
            self.poll(stream, now_s)

    def take_credit_drops(self) -> int:
        """Chunks dropped for want of credits since the last call."""
        drops, self._credit_drops = self._credit_drops, 0
        return drops

    # -- inside -----------------------------------------------------------------------------------

    def _close_if_drained(self, stream: OpenStream) -> None:
        if stream.injector.in_flight == 0:
            self._pipeline.close(stream.handle)

    def _release(self, stream: OpenStream, step: ReleaseChunk[float], now_s: float) -> None:
        deadline_s = stream.pacer.released(
            step.chunk_id, step.release_s, max(0.0, step.release_s - step.observation_s)
        )
        task = InFlight(
            stream=stream.handle,
            epoch=0,
            seq=stream.seq,
            stage=0,
            block=0,
            step=0,
            deadline_s=min(deadline_s, step.release_s + BACKGROUND_S),
            ready_s=now_s,
            priority=stream.priority,
            chunk_id=step.chunk_id,
            sent_s=now_s,
        )
        stream.seq += 1
        stream.trace.released(
            ChunkTrace(step.chunk_id, step.release_s, now_s, step.observation_s, deadline_s)
        )
        self._enter(task, now_s)

    def _expected_response_s(self, spec: SimStream) -> float:
        if spec.expected_response_s is not None:
            return spec.expected_response_s
        if spec.period_s is None:
            return 0.0
        total_s = 0.0
        for stage in range(spec.graph.exit_index + 1):
            total_s += self._costs.predict_s(spec.block_keys[stage % spec.graph.blocks], 1)
            if stage and spec.device_of[stage] != spec.device_of[stage - 1]:
                link = self._pool.link(spec.device_of[stage - 1], spec.device_of[stage])
                total_s += link.delay_s(spec.hidden_bytes)
        return total_s


def _newest_capture_s(spec: SimStream, now_s: float) -> float:
    """Capture time of the newest observation that has come in by now."""
    if spec.sensor_period_s <= 0.0:
        return now_s - spec.sensor_delay_s
    ticks = math.floor((now_s - spec.sensor_delay_s) / spec.sensor_period_s + 1e-9)
    return ticks * spec.sensor_period_s
