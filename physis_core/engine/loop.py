"""The engine's loop: everything that happens to a chunk at the engine happens in `step`.

One thread runs it and owns all streams. Other threads only append to its inbox: what callers ask
(`submit`), and what workers say (`hear`).
"""

from __future__ import annotations

import math
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from physis_core.clock import Clock
from physis_core.cluster.launcher import Cluster
from physis_core.cluster.messages import (
    ChunkExit,
    ChunkRetired,
    ClusterFailed,
    Done,
    EdgeLost,
    GetStats,
    Linked,
    News,
    Observe,
    Ping,
    Pong,
    Ready,
    Refusal,
    Release,
    SetOverload,
    Stats,
    StreamFailed,
    WindowSaved,
    WorkerDied,
)
from physis_core.cluster.threads import Wake, described, sleep_precisely
from physis_core.cluster.worker_group import Answers, WorkerGroup
from physis_core.deployment.deployment import Deployment
from physis_core.engine.chunk_flow import Seen
from physis_core.engine.events import EngineEvent, EngineFailedError, Events
from physis_core.engine.heartbeat import Heartbeat
from physis_core.engine.observations import Mailbox
from physis_core.engine.recovery import Recovery
from physis_core.engine.routes import RouteHealth
from physis_core.engine.stream import StreamAdmission
from physis_core.engine.stream_state import CLOSED, FAILED, Stream
from physis_core.engine.streams import Streams
from physis_core.engine.way_back import SnapshotShelf
from physis_core.pipeline.overload import OverloadDetector
from physis_core.types import Array, FinishedChunk, ObservationStamp

if TYPE_CHECKING:
    from physis_core.model.protocol import ModelSpec

T = TypeVar("T")

_WATCH_PERIOD_S = 0.25
"""How often the workers' queues are looked at."""
_WATCH_LIMIT_S = 1.0
"""Queues that a worker has not told by then are not judged."""
_LONGEST_SLEEP_S = 0.02
"""The loop turns at least this often, so that its beat shows that it lives."""
_CHUNKS_REMEMBERED = 8192


class EngineLoop:
    """`beat` counts its turns. `failure` is why it failed, empty where it has not."""

    def run(self) -> None:
        """Turn until it is stopped, or fails. Nothing that goes wrong here is lost."""
        sleep_precisely()
        now_s = self._clock.now_s()
        self._watch_due_s = now_s + _WATCH_PERIOD_S
        if self._deployment.workers:
            for worker in self.cluster.alive():
                self._heartbeat.watch(worker, now_s)
        try:
            while not self._stopped:
                next_s = self.step()
                if not self._inbox and not self._stopped:
                    left_s = next_s - self._clock.now_s()
                    self._wake.wait(min(max(0.0, left_s), _LONGEST_SLEEP_S))
        except BaseException as error:  # noqa: BLE001
            self._fail(error)
        else:
            self._end("the engine is closed")

    def step(self) -> float:
        """One turn. Returns when the next one is due, if nothing comes in."""
        self.beat += 1
        self._receive()
        next_s = self.recovery.advance()
        for stream in self.streams.all():
            for step in stream.schedule(self._clock.now_s()):
                if isinstance(step, Release):
                    self._send(stream, step)
                else:
                    self._events.add(
                        "chunks_dropped", step.reason, stream.config.stream_id, count=step.count
                    )
        for stream in self.streams.all():
            for chunk in stream.due(self._clock.now_s()):
                self._deliver(stream, chunk)
            if stream.drained:
                self.streams.end(stream, CLOSED, "drained")
            next_s = min(next_s, stream.next_s())
        for event in self._events.take():
            self._on_event(event)
        return min(next_s, self._watch_queues(), self._watch_workers(), self.workers.expire())

    def _receive(self) -> None:
        """What callers ask, what workers say, what was observed."""
        while self._inbox:
            item = self._inbox.popleft()
            if callable(item):
                item()
            else:
                self._heartbeat.heard(item[0], self._clock.now_s())
                self._take(*item)
        for stream_id, seen in self._mailbox.take().items():
            stream = self.streams.by_id.get(stream_id)
            if stream is None or not stream.offer(seen):
                continue
            if stream.config.refresh == "every_step":
                self._refresh(stream, seen)

    def _send(self, stream: Stream, release: Release) -> None:
        """A chunk enters the pipeline."""
        route = self._deployment.routes[stream.config.route]
        self.workers.send(self._deployment.devices[route.device_of(0)].worker, release)

    def _deliver(self, stream: Stream, chunk: FinishedChunk) -> None:
        """A chunk leaves the engine."""
        chunk = replace(chunk, delivered_s=self._clock.now_s())
        self._delivered.append((stream.handle, replace(chunk, outputs={})))
        self._on_chunk(chunk)

    def __init__(
        self,
        deployment: Deployment,
        specs: Mapping[str, ModelSpec],
        *,
        cluster: Cluster,
        clock: Clock,
        costs: Mapping[int, Mapping[int, float]],
        admission: StreamAdmission | None,
        on_chunk: Callable[[FinishedChunk], None],
        on_event: Callable[[EngineEvent], None],
    ) -> None:
        self.beat = 0
        self.failure = ""
        self.overload = OverloadDetector()
        self.cluster = cluster
        self.workers = WorkerGroup(self.cluster, clock, self._cluster_failed)
        self._deployment = deployment
        self._clock = clock
        self._admission = admission
        self._on_chunk = on_chunk
        self._on_event = on_event
        self._mailbox = Mailbox()
        self._events = Events()
        self._delivered: deque[tuple[int, FinishedChunk]] = deque(maxlen=_CHUNKS_REMEMBERED)
        self._inbox: deque[tuple[int, News] | Callable[[], None]] = deque()
        self._wake = Wake()
        self._lock = threading.Lock()
        self._waiting: set[Future[Any]] = set()
        """What callers wait for."""
        self._stopped = False
        self._ended = ""
        """Why nothing can be asked any more."""
        self._watch_due_s = math.inf
        self._watching = False
        """Whether the workers were asked and have not all answered."""
        self._heartbeat = Heartbeat(deployment.silence_s, cluster.runs)
        health = RouteHealth(deployment)
        self._plan = health.plan
        self.streams = Streams(
            deployment,
            specs,
            health=health,
            workers=self.workers,
            mailbox=self._mailbox,
            costs=costs,
            overload=self.overload,
            admission=admission,
            events=self._events,
        )
        self.recovery = Recovery(
            deployment,
            health=health,
            streams=self.streams,
            workers=self.workers,
            cluster=self.cluster,
            clock=clock,
            events=self._events,
            heartbeat=self._heartbeat,
        )

    # -- other threads ----------------------------------------------------------------------------

    def submit(self, act: Callable[[Future[T]], None]) -> Future[T]:
        """Have `act` done in the loop's thread. It, or what it starts, gives the future its result.

        The future raises EngineFailedError where the engine fails before, or has failed.
        """
        future: Future[T] = Future()
        with self._lock:
            if self._ended:
                future.set_exception(EngineFailedError(self._ended))
                return future
            self._waiting.add(future)
            self._inbox.append(lambda: act(future))
        future.add_done_callback(self._waiting.discard)
        self._wake.ring()
        return future

    def hear(self, worker: int, news: News) -> None:
        self._inbox.append((worker, news))
        self._wake.ring()

    def _cluster_failed(self, reason: str) -> None:
        self.hear(-1, ClusterFailed(reason=reason))

    def observe(
        self, stream_id: str, stamp: ObservationStamp, tensors: Mapping[str, Array]
    ) -> None:
        """An observation entered the engine."""
        self._mailbox.put(stream_id, stamp, self._clock.now_s(), tensors)
        self._wake.ring()

    def stop(self) -> None:
        self._stopped = True
        self._wake.ring()

    def take_delivered(self) -> list[tuple[int, FinishedChunk]]:
        """(stream handle, chunk without its outputs) since the last call."""
        delivered = list(self._delivered)
        self._delivered.clear()
        return delivered

    def stats_request(self, *, full: bool) -> GetStats:
        return GetStats(full=full, asked_s=self._clock.now_s())

    # -- news of the workers ----------------------------------------------------------------------

    def _take(self, worker: int, news: News) -> None:
        streams, recovery = self.streams, self.recovery
        match news:
            case ChunkExit():
                stream = streams.current(news.stream, news.epoch)
                if stream is not None:
                    self._complete(worker, stream, news)
            case ChunkRetired():
                stream = streams.current(news.stream, news.epoch)
                if stream is not None:
                    stream.retired(news.seq)
            case Pong():
                pass  # That it came is all that it says.
            case Done() | Stats():
                self.workers.answered(worker, news)
            case WindowSaved():
                stream = streams.current(news.stream, news.epoch)
                if stream is not None:
                    self._keep(worker, stream, news)
            case StreamFailed():
                stream = streams.current(news.stream, news.epoch)
                if stream is not None:
                    streams.end(stream, FAILED, news.reason)
            case WorkerDied():
                recovery.lose_worker(worker, news.incarnation, news.reason)
            case EdgeLost() if self._plan.knows(news.edge):
                recovery.lose_edge(worker, news.edge, news.generation, news.reason)
            case Linked() if self._plan.knows(news.edge):
                recovery.edge_linked(worker, news.edge, news.generation)
            case Ready():
                recovery.worker_ready(worker, news.incarnation)
            case Refusal():
                self._refuse(worker, news.reason)
            case ClusterFailed():
                raise RuntimeError(news.reason)
            case _:
                self._refuse(worker, f"{type(news).__name__} does not fit")

    def _complete(self, worker: int, stream: Stream, news: ChunkExit) -> None:
        why_not = stream.complete(news)
        if why_not:
            self._refuse(worker, why_not)
            self.streams.end(stream, FAILED, f"worker {worker}: {why_not}")
            return
        self.recovery.chunk_done(stream, news.exit_s, news.latent)

    def _keep(self, worker: int, stream: Stream, news: WindowSaved) -> None:
        keeps = stream.way_back.keeps
        if not isinstance(keeps, SnapshotShelf) or not keeps.collects(news.stage):
            self._refuse(worker, f"a window of stage {news.stage} that nobody keeps")
            return
        keeps.add(
            epoch=news.epoch,
            seq=news.seq,
            chunk_id=news.chunk,
            stage=news.stage,
            saved=news.saved,
        )

    def _refuse(self, worker: int, reason: str) -> None:
        """A message that is not one, or not one of now. All else goes on."""
        print(f"worker {worker}: message refused: {reason}", file=sys.stderr, flush=True)
        self._events.add("message_refused", reason, worker=worker)

    def _refresh(self, stream: Stream, seen: Seen) -> None:
        """Workers where a denoising step begins get the observation for chunks in flight."""
        graph = self._deployment.graph_of(stream.config.route)
        route = self._deployment.routes[stream.config.route]
        workers = {
            self._deployment.devices[route.device_of(step * graph.blocks)].worker
            for step in range(1, graph.steps)
        }
        message = Observe(
            stream=stream.handle,
            epoch=stream.epoch,
            number=seen.number,
            observation=seen.tensors,
        )
        for worker in workers:
            self.workers.send(worker, message)

    # -- who is there -----------------------------------------------------------------------------

    def now_s(self) -> float:
        return self._clock.now_s()

    def _watch_workers(self) -> float:
        """Ping the workers; who is silent for too long counts as lost. Returns when to look again.

        A process that is lost in this way is ended: nobody may work under its number any more.
        """
        pinged, lost = self._heartbeat.turn(self._clock.now_s())
        for worker in pinged:
            self.workers.send(worker, Ping())
        for silent in lost:
            reason = f"not heard of for {silent.silent_s:.1f} s"
            self.recovery.lose_worker(silent.worker, self._plan.incarnation(silent.worker), reason)
            self.cluster.kill(silent.worker)
        return self._heartbeat.next_s()

    # -- overload ---------------------------------------------------------------------------------

    def _watch_queues(self) -> float:
        """Now and then look for stuck chunks, and ask the workers for their queues. Returns when
        the next time is.
        """
        now_s = self._clock.now_s()
        if now_s >= self._watch_due_s:
            self._watch_due_s = now_s + _WATCH_PERIOD_S
            for stream in self.streams.all():
                if stream.watch(now_s):
                    self._events.add("chunk_overdue", stream.overdue, stream.config.stream_id)
            if not self._watching:
                self._watching = True
                request = self.stats_request(full=False)
                self.workers.ask(request, self._judge_queues, limit_s=_WATCH_LIMIT_S)
        return self._watch_due_s

    def _judge_queues(self, answers: Answers) -> None:
        self._watching = False
        queues: dict[int, int] = {}
        for message in answers.values():
            if isinstance(message, Stats):
                queues.update(message.queues)
        dropped = 0
        for stream in self.streams.all():
            dropped += stream.entry.dropped_for_credit
            stream.entry.dropped_for_credit = 0
        if not all(isinstance(message, Stats) for message in answers.values()):
            # A worker that does not answer has stopped. That is no overload: what could not enter
            # meanwhile says nothing about how fast the devices are.
            return
        before = self.overload.state.level
        lengths = [queues.get(i, 0) for i in range(len(self._deployment.devices))]
        state = self.overload.observe(self._clock.now_s(), lengths, dropped)
        if state.level == before:
            return
        limit = SetOverload(low_priority_max_batch=state.low_priority_max_batch)
        for worker in self.workers.alive():
            self.workers.send(worker, limit)
        where = (
            f"{state.level}: queues grow by {state.difference_tasks:.1f} tasks at device"
            f" {state.where}"
        )
        self._events.add("overload", where if state.where >= 0 else "ok again")

    # -- the end ----------------------------------------------------------------------------------

    def _fail(self, error: BaseException) -> None:
        """Everybody hears of it: who reads the status, who waits, who asks later, who listens."""
        reason = f"the engine failed: {described(error)}"
        traceback.print_exception(error)
        self.failure = reason
        try:
            self.streams.fail_all(reason)
        except Exception:  # noqa: BLE001
            # The admission's fault on top of the first one, which is the one to be told.
            traceback.print_exc()
        self._end(reason)
        try:
            self._on_event(EngineEvent(kind="engine_failed", reason=reason))
        except Exception:  # noqa: BLE001
            # Perhaps the very callback that failed; `failure` says it as well.
            traceback.print_exc()

    def _end(self, reason: str) -> None:
        """Nothing is done any more: who waits, or asks later, gets an EngineFailedError."""
        with self._lock:
            self._ended = reason
            waiting = list(self._waiting)
        for future in waiting:
            if not future.done():
                future.set_exception(EngineFailedError(reason))
