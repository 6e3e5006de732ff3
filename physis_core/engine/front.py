"""The engine's own thread's work: chunks in and out of every stream, and news from the workers.

Streams come and go at the desk, workers are asked through the crew. Never called from elsewhere.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace

from physis_core.clock import Clock
from physis_core.cluster.launcher import Cluster
from physis_core.cluster.messages import (
    ChunkExit,
    ChunkRetired,
    ClusterFailed,
    Done,
    EdgeLost,
    Linked,
    News,
    Observe,
    Ready,
    Refusal,
    Release,
    SetOverload,
    Stats,
    StreamFailed,
    WindowSaved,
    WorkerDied,
)
from physis_core.cluster.worker_group import Answers, WorkerGroup
from physis_core.deployment.deployment import Deployment
from physis_core.engine.events import Announcer, EngineEvent
from physis_core.engine.mailbox import Mailbox
from physis_core.engine.recovery import Recovery
from physis_core.engine.route_health import RouteHealth
from physis_core.engine.snapshot import SnapshotShelf
from physis_core.engine.stream import OnItsWay, Seen, Stream, StreamConfig, StreamFigures
from physis_core.engine.stream_table import StreamDesk
from physis_core.model.protocol import ModelSpec
from physis_core.pipeline.injector import ReleaseChunk, SkipRelease
from physis_core.pipeline.overload import OverloadDetector, OverloadState
from physis_core.pipeline.ready_task import BACKGROUND_S
from physis_core.types import FinishedChunk, StreamState

_CHUNKS_REMEMBERED = 8192


class Front:
    """State and rules of the engine; times come from `clock`, news from the engine's inbox."""

    def __init__(
        self,
        deployment: Deployment,
        spec: ModelSpec,
        cluster: Cluster,
        mailbox: Mailbox,
        clock: Clock,
        costs: Mapping[int, Mapping[int, float]],
        on_chunk: Callable[[FinishedChunk], None],
        on_event: Callable[[EngineEvent], None] | None,
        left: Callable[[StreamConfig], None],
        failed: Callable[[str], None],
    ) -> None:
        self.deployment = deployment
        self.spec = spec
        self.crew = WorkerGroup(cluster, clock, failed)
        self.delivered: deque[tuple[int, FinishedChunk]] = deque(maxlen=_CHUNKS_REMEMBERED)
        """(stream handle, chunk without its outputs), for the trace."""
        self._mailbox = mailbox
        self._clock = clock
        self._on_chunk = on_chunk
        self._announce = Announcer(on_event)
        self._overload = OverloadDetector()
        health = RouteHealth(deployment)
        self.desk = StreamDesk(
            deployment,
            spec,
            health,
            self.crew,
            mailbox,
            costs,
            self._announce,
            left,
            lambda: self._overload.state,
        )
        self.recovery = Recovery(
            deployment,
            health,
            self.desk,
            self.crew,
            cluster,
            clock,
            self._announce,
            self._release_past,
        )

    @property
    def streams(self) -> dict[str, Stream]:
        return self.desk.streams

    @property
    def overload(self) -> OverloadState:
        return self._overload.state

    def take_mail(self) -> None:
        for stream_id, seen in self._mailbox.take().items():
            stream = self.streams.get(stream_id)
            if stream is None or stream.state is not StreamState.OPEN:
                continue
            if not stream.injector.offer(seen, seen.entry_s):
                continue
            stream.newest_number = seen.number
            stream.stamps[seen.number] = (seen.stamp, seen.entry_s)
            stream.forget_old_stamps()
            if stream.config.refresh == "every_step":
                self._refresh_workers(stream, seen)

    def _refresh_workers(self, stream: Stream, seen: Seen) -> None:
        graph = self.spec.graph
        route = self.deployment.routes[stream.config.route]
        workers = {
            self.deployment.devices[route.device_of(step * graph.blocks)].worker
            for step in range(1, graph.steps)
        }
        message = Observe(
            stream=stream.handle,
            epoch=stream.epoch,
            number=seen.number,
            observation=seen.tensors,
        )
        for worker in workers:
            self.crew.send(worker, message)

    def advance(self, stream: Stream) -> float:
        """Release and deliver what is due; returns when to look again."""
        now_s = self._clock.now_s()
        next_s = math.inf
        while stream.state is StreamState.OPEN and stream.suspended is None:
            lockstep = stream.config.release == "on_observation"
            if lockstep and stream.used_number == stream.newest_number:
                break
            step = stream.injector.poll(now_s)
            if isinstance(step, ReleaseChunk):
                self._release(stream, step, now_s)
            elif isinstance(step, SkipRelease):
                if step.reason == "too many chunks in flight":
                    stream.dropped_for_credit += step.count
                self._announce(
                    "chunks_dropped", step.reason, stream.config.stream_id, count=step.count
                )
            else:
                next_s = step.time_s
                break
        for delivery in stream.pacer.due(now_s):
            done = stream.finished.pop(delivery.chunk_id)
            stream.delivered += 1
            done = replace(done, delivered_s=self._clock.now_s())
            self.delivered.append((stream.handle, replace(done, outputs={})))
            self._on_chunk(done)
        next_s = min(next_s, stream.pacer.next_due_s())
        if (
            stream.state is StreamState.DRAINING
            and not stream.on_way
            and stream.pacer.next_due_s() == math.inf
        ):
            self.desk.retire(stream, StreamState.CLOSED, "drained")
        return next_s

    def _release(self, stream: Stream, step: ReleaseChunk[Seen], now_s: float) -> None:
        seen = step.observation
        deadline_s = stream.pacer.released(
            step.chunk_id, step.release_s, step.release_s - seen.entry_s
        )
        seq = stream.next_seq
        stream.next_seq += 1
        stream.used_number = seen.number
        stream.queues.add(now_s - seen.entry_s)
        stream.on_way[seq] = OnItsWay(
            seq=seq,
            chunk_id=step.chunk_id,
            release_s=step.release_s,
            entry_s=seen.entry_s,
            deadline_s=deadline_s,
            version=stream.version,
        )
        self._send_in(
            stream,
            Release(
                stream=stream.handle,
                epoch=stream.epoch,
                seq=seq,
                chunk=step.chunk_id,
                version=stream.version,
                number=seen.number,
                deadline_s=min(deadline_s, step.release_s + BACKGROUND_S),
                release_s=step.release_s,
                entry_s=seen.entry_s,
                sent_s=now_s,
                observation=seen.tensors,
            ),
        )

    def _release_past(self, stream: Stream, seq: int, chunk_id: int, deadline_s: float) -> None:
        now_s = self._clock.now_s()
        self._send_in(
            stream,
            Release(
                stream=stream.handle,
                epoch=stream.epoch,
                seq=seq,
                chunk=chunk_id,
                version=stream.version,
                number=0,
                deadline_s=deadline_s,
                release_s=now_s,
                entry_s=now_s,
                sent_s=now_s,
            ),
        )

    def _send_in(self, stream: Stream, message: Release) -> None:
        route = self.deployment.routes[stream.config.route]
        self.crew.send(self.deployment.devices[route.device_of(0)].worker, message)

    def take(self, worker: int, message: News) -> None:
        match message:
            case ChunkExit():
                stream = self._stream_of(message)
                if stream is not None:
                    stream.complete(message)
                    self.recovery.chunk_done(stream, message.exit_s, message.latent)
            case ChunkRetired():
                stream = self._stream_of(message)
                if stream is not None and stream.on_way.pop(message.seq, None) is not None:
                    stream.injector.finished()
            case Done() | Stats():
                self.crew.answered(worker, message)
            case WindowSaved():
                stream = self._stream_of(message)
                if stream is not None:
                    assert isinstance(stream.keeps, SnapshotShelf), "only asked for with snapshots"
                    stream.keeps.add(
                        epoch=message.epoch,
                        seq=message.seq,
                        chunk_id=message.chunk,
                        stage=message.stage,
                        saved=message.saved,
                    )
            case StreamFailed():
                stream = self._stream_of(message)
                if stream is not None:
                    self.desk.retire(stream, StreamState.FAILED, message.reason)
            case WorkerDied():
                self.recovery.lose_worker(worker, message.incarnation, message.reason)
            case EdgeLost():
                self.recovery.lose_edge(worker, message.edge, message.generation, message.reason)
            case Ready():
                self.recovery.worker_ready(worker, message.incarnation)
            case Linked():
                self.recovery.edge_linked(worker, message.edge, message.generation)
            case Refusal():
                self._announce("message_refused", message.reason, worker=worker)
            case ClusterFailed():
                raise RuntimeError(message.reason)
            case _:
                self._announce(
                    "message_refused", f"{type(message).__name__} out of turn", worker=worker
                )

    def _stream_of(
        self, message: ChunkExit | ChunkRetired | WindowSaved | StreamFailed
    ) -> Stream | None:
        """None where it is of a stream, or of an epoch, that is no more."""
        stream = self.desk.by_handle.get(message.stream)
        return stream if stream is not None and stream.epoch == message.epoch else None

    def watch_queues(self, answers: Answers) -> None:
        queues: dict[int, int] = {}
        for message in answers.values():
            if isinstance(message, Stats):
                queues.update(message.queues)
        dropped = 0
        for stream in self.streams.values():
            dropped += stream.dropped_for_credit
            stream.dropped_for_credit = 0
        before = self._overload.state.level
        lengths = [queues.get(i, 0) for i in range(len(self.deployment.devices))]
        state = self._overload.observe(self._clock.now_s(), lengths, dropped)
        if state.level == before:
            return
        for worker in self.crew.alive():
            limit = SetOverload(low_priority_max_batch=state.low_priority_max_batch)
            self.crew.send(worker, limit)
        self._announce(
            "overload",
            f"{state.level}: queues grow by {state.difference_tasks:.1f} tasks at device"
            f" {state.where}"
            if state.where >= 0
            else "ok again",
        )

    def take_delivered(self) -> list[tuple[int, FinishedChunk]]:
        delivered = list(self.delivered)
        self.delivered.clear()
        return delivered

    def figures(self) -> tuple[StreamFigures, ...]:
        return tuple(stream.figures() for stream in self.streams.values())
