"""After a loss: workers and edges are made anew, and streams go on in a new epoch.

A stream that touched what was lost stands still at once and goes up one epoch, so that every worker
refuses what is left of the old one. When its route is whole again its workers hear of it
(`ResumeStream`), its KV comes back by a snapshot or by chunks of the past that run once more, and
it goes on. All other streams never notice. What to start when is `respawn_plan`'s to say.
"""

from __future__ import annotations

import math
from collections import deque

from physis_core.clock import Clock
from physis_core.cluster.launcher import Cluster
from physis_core.cluster.messages import GivePast, Relink, RestoreWindow, ResumeStream
from physis_core.cluster.worker_group import Answers, Parcel, WorkerGroup, first_reason
from physis_core.deployment.deployment import Deployment, RecoveryKind
from physis_core.engine.events import Events, LostWorker
from physis_core.engine.heartbeat import Heartbeat
from physis_core.engine.respawn_plan import Edge, GiveUp, Kill, RelinkEdge, Respawn
from physis_core.engine.routes import RouteHealth
from physis_core.engine.stream_state import FAILED, OPEN, RESUMING, SUSPENDED, Stream
from physis_core.engine.streams import Streams
from physis_core.engine.way_back import (
    ComingBack,
    Latent,
    PastChunks,
    RecoveryRecord,
    SnapshotShelf,
)

_REMEMBERED = 256
_PAST_S = 1.0
"""How soon a chunk of the past should be through where its stream has no period."""


class Recovery:
    """Owned by the engine's thread."""

    def __init__(
        self,
        deployment: Deployment,
        *,
        health: RouteHealth,
        streams: Streams,
        workers: WorkerGroup,
        cluster: Cluster,
        clock: Clock,
        events: Events,
        heartbeat: Heartbeat,
    ) -> None:
        self.heartbeat = heartbeat
        self.lost: dict[int, LostWorker] = {}
        self.records: deque[RecoveryRecord] = deque(maxlen=_REMEMBERED)
        self._deployment = deployment
        self._kind: RecoveryKind = deployment.recovery
        self._health = health
        self._plan = health.plan
        self._streams = streams
        self._workers = workers
        self._cluster = cluster
        self._clock = clock
        self._events = events
        self._busy = False

    # -- news -------------------------------------------------------------------------------------

    def lose_worker(self, worker: int, incarnation: int, reason: str) -> None:
        now_s = self._clock.now_s()
        if not self._plan.worker_lost(worker, incarnation, now_s):
            return
        self.heartbeat.forget(worker)
        self._busy = self._kind != "none"
        self._workers.lose(worker)
        self.lost[worker] = LostWorker(worker=worker, reason=reason, since_s=now_s)
        self._events.add("worker_lost", reason, worker=worker)
        why = f"worker {worker} is lost: {reason}"
        for stream in self._streams.all():
            if worker in self._health.workers(stream.config.route):
                self._suspend(stream, why, now_s)

    def lose_edge(self, worker: int, edge: Edge, generation: int, reason: str) -> None:
        """`worker` has noticed it."""
        now_s = self._clock.now_s()
        if not self._plan.edge_lost(edge, generation, now_s):
            return
        self._busy = self._kind != "none"
        name = f"edge {edge[0]} -> {edge[1]}"
        self._events.add("edge_lost", f"{name}: {reason}", worker=worker)
        for stream in self._streams.all():
            if edge in self._health.edges(stream.config.route):
                self._suspend(stream, f"{name} is lost", now_s)

    def worker_ready(self, worker: int, incarnation: int) -> None:
        now_s = self._clock.now_s()
        if self._plan.worker_ready(worker, incarnation, now_s):
            self.heartbeat.watch(worker, now_s)
            self.lost.pop(worker, None)
            self._events.add("worker_back", "started anew", worker=worker)

    def edge_linked(self, worker: int, edge: Edge, generation: int) -> None:
        self._plan.edge_linked(edge, generation, worker, self._clock.now_s())

    def chunk_done(self, stream: Stream, exit_s: float, latent: Latent) -> None:
        """A chunk of the present was completed."""
        way_back = stream.way_back
        if isinstance(way_back.keeps, PastChunks):
            way_back.keeps.add(latent)
        done, way_back.coming_back = way_back.coming_back, None
        if done is None or done.epoch != stream.epoch:
            return
        self.records.append(done.record(stream.config.stream_id, self._kind, exit_s))

    # -- the way back -----------------------------------------------------------------------------

    def advance(self) -> float:
        """Do what is due; returns when to look again."""
        if not self._busy:
            return math.inf
        now_s = self._clock.now_s()
        for action in self._plan.due(now_s):
            match action:
                case Respawn():
                    self._cluster.respawn(action.worker, action.incarnation)
                case Kill():
                    self._cluster.kill(action.worker)
                case RelinkEdge():
                    message = Relink(edge=action.edge, generation=action.generation)
                    for end in self._plan.ends(action.edge):
                        self._workers.send(end, message)
                case GiveUp():
                    self._give_up(action)
        waiting = [s for s in self._streams.all() if s.way_back.suspension is not None]
        for stream in waiting:
            if stream.state is SUSPENDED and self._health.whole(stream.config.route):
                self._resume(stream, now_s)
        next_s = self._plan.next_s()
        self._busy = bool(waiting) or next_s < math.inf
        return next_s

    def _suspend(self, stream: Stream, reason: str, now_s: float) -> None:
        if stream.way_back.suspension is not None and stream.state in (SUSPENDED, RESUMING):
            # Nothing has run in its new epoch yet.
            stream.stop_resuming()
        elif self._kind == "none" or stream.state is not OPEN:
            # Of a stream that drains, what it waited for is lost.
            self._streams.end(stream, FAILED, reason)
        else:
            stream.suspend(now_s, reason)
            self._streams.announce_epoch(stream, reason)

    def _give_up(self, action: GiveUp) -> None:
        if action.worker is not None:
            what = f"worker {action.worker}"
            self._events.add("worker_given_up", f"{what} does not stay up", worker=action.worker)
        else:
            assert action.edge is not None
            what = f"edge {action.edge[0]} -> {action.edge[1]}"
            self._events.add("edge_given_up", f"{what} does not hold")
        for stream in self._streams.all():
            suspension = stream.way_back.suspension
            if suspension is not None and self._health.given_up(stream.config.route):
                reason = f"{suspension.reason}; {what} was given up"
                self._streams.end(stream, FAILED, reason)

    def _resume(self, stream: Stream, now_s: float) -> None:
        suspension = stream.way_back.suspension
        assert suspension is not None
        attempt = stream.resume()
        back = ComingBack(
            epoch=stream.epoch, attempt=attempt, lost_s=suspension.lost_s, whole_s=now_s
        )
        workers = self._health.workers(stream.config.route)

        def resumed(answers: Answers) -> None:
            if self._still_wanted(stream, back, answers, len(workers)):
                parcels = self._parcels(stream, back)
                self._workers.deliver(parcels, lambda given: restored(given, len(parcels)))

        def restored(answers: Answers, wanted: int) -> None:
            if self._still_wanted(stream, back, answers, wanted):
                self._go_on(stream, back)

        self._workers.ask(ResumeStream(opening=self._streams.opening(stream)), resumed, workers)

    def _still_wanted(
        self, stream: Stream, back: ComingBack, answers: Answers, wanted: int
    ) -> bool:
        """Whether a step of the way back was done by all, and nothing came between."""
        suspension = stream.way_back.suspension
        if suspension is None or stream.state is not RESUMING:
            return False
        if suspension.attempt != back.attempt or len(answers) != wanted:
            # Another loss came between, and began the way back anew.
            return False
        reason = first_reason(answers)
        if reason:
            self._streams.end(stream, FAILED, f"could not go on: {reason}")
        return not reason

    def _parcels(self, stream: Stream, back: ComingBack) -> list[Parcel]:
        """What the workers need to make the stream's KV what it was."""
        parcels: list[Parcel] = []
        keeps = stream.way_back.keeps
        if isinstance(keeps, SnapshotShelf) and keeps.newest is not None:
            taken = keeps.newest
            back.from_chunk = (taken.epoch, taken.chunk_id)
            for stage, saved in taken.windows.items():
                message = RestoreWindow(
                    stream=stream.handle, epoch=stream.epoch, stage=stage, saved=saved
                )
                parcels.append((self._worker_of(stream, stage), message))
            back.bytes = taken.bytes
        elif isinstance(keeps, PastChunks):
            kept = keeps.kept()
            back.chunks = len(kept)
            back.from_chunk = stream.exit.last_completed if kept else None
            graph = self._deployment.graph_of(stream.config.route)
            begins = {self._worker_of(stream, step * graph.blocks) for step in range(graph.passes)}
            for at, latent in enumerate(kept):
                past = GivePast(
                    stream=stream.handle, epoch=stream.epoch, chunk=at - len(kept), latent=latent
                )
                parcels += [(worker, past) for worker in sorted(begins)]
                back.bytes += len(begins) * sum(array.nbytes for array in latent.values())
        return parcels

    def _worker_of(self, stream: Stream, stage: int) -> int:
        route = self._deployment.routes[stream.config.route]
        return self._deployment.devices[route.device_of(stage)].worker

    def _go_on(self, stream: Stream, back: ComingBack) -> None:
        now_s = self._clock.now_s()
        back.ready_s = now_s
        waiting = stream.go_on(back, now_s + (stream.config.paced_s or _PAST_S))
        if back.from_chunk is None:
            how = "with empty KV: there was nothing to go on from"
        else:
            how = f"by {self._kind} from chunk {back.from_chunk[1]} of epoch {back.from_chunk[0]}"
        self._events.add("stream_recovered", how, stream.config.stream_id)
        for act in waiting:
            act()
