"""The front after a loss: workers and edges are made anew, and streams go on in a new epoch.

A stream that touched what was lost stands still at once and goes up one epoch, so that every worker
refuses what is left of the old one. When its route is whole again its workers are told of it
(`resume`), its KV comes back by a snapshot or by chunks of the past that run once more, and it goes
on. All other streams never notice. What to start when is `respawn_plan`'s to say.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from physis_core.clock import Clock
from physis_core.cluster.launcher import Cluster
from physis_core.cluster.messages import GivePast, Relink, RestoreWindow, ResumeStream
from physis_core.cluster.worker_group import Answers, Parcel, WorkerGroup, first_reason
from physis_core.deployment.deployment import Deployment, RecoveryKind
from physis_core.engine.events import Announcer
from physis_core.engine.rebuild import Latent, PastChunks
from physis_core.engine.recovery_record import ComingBack, RecoveryRecord
from physis_core.engine.respawn_plan import Edge, GiveUp, Kill, RelinkEdge, Respawn
from physis_core.engine.route_health import RouteHealth
from physis_core.engine.snapshot import Snapshot, SnapshotShelf
from physis_core.engine.stream import Stream
from physis_core.engine.stream_table import StreamDesk
from physis_core.types import StreamState

_REMEMBERED = 256
_PAST_S = 1.0
"""How soon a chunk of the past should be through where its stream has no period."""


class Recovery:
    """Owned by the engine's thread.

    Args:
        release_past: lets a chunk of the past in: (stream, seq, chunk id, deadline).
    """

    def __init__(
        self,
        deployment: Deployment,
        health: RouteHealth,
        desk: StreamDesk,
        crew: WorkerGroup,
        cluster: Cluster,
        clock: Clock,
        announce: Announcer,
        release_past: Callable[[Stream, int, int, float], None],
    ) -> None:
        self.records: deque[RecoveryRecord] = deque(maxlen=_REMEMBERED)
        self._deployment = deployment
        self._kind: RecoveryKind = deployment.recovery
        self._health = health
        self._plan = health.plan
        self._desk = desk
        self._crew = crew
        self._cluster = cluster
        self._clock = clock
        self._announce = announce
        self._release_past = release_past
        self._busy = False

    # -- news -------------------------------------------------------------------------------------

    def lose_worker(self, worker: int, incarnation: int, reason: str) -> None:
        now_s = self._clock.now_s()
        if not self._plan.worker_lost(worker, incarnation, now_s):
            return
        self._busy = self._kind != "none"
        self._crew.lose(worker)
        self._announce("worker_lost", reason, worker=worker)
        why = f"worker {worker} is lost: {reason}"
        for stream in list(self._desk.streams.values()):
            if worker in self._health.workers(stream.config.route):
                self._suspend(stream, why, now_s)

    def lose_edge(self, worker: int, edge: Edge, generation: int, reason: str) -> None:
        """`worker` has noticed it."""
        now_s = self._clock.now_s()
        if not self._plan.edge_lost(edge, generation, now_s):
            return
        self._busy = self._kind != "none"
        name = f"edge {edge[0]} -> {edge[1]}"
        self._announce("edge_lost", f"{name}: {reason}", worker=worker)
        for stream in list(self._desk.streams.values()):
            if edge in self._health.edges(stream.config.route):
                self._suspend(stream, f"{name} is lost", now_s)

    def worker_ready(self, worker: int, incarnation: int) -> None:
        if self._plan.worker_ready(worker, incarnation, self._clock.now_s()):
            self._announce("worker_back", "started anew", worker=worker)

    def edge_linked(self, worker: int, edge: Edge, generation: int) -> None:
        self._plan.edge_linked(edge, generation, worker, self._clock.now_s())

    def chunk_done(self, stream: Stream, exit_s: float, latent: Latent) -> None:
        """A chunk of the present was completed."""
        if isinstance(stream.keeps, PastChunks):
            stream.keeps.add(latent)
        done, stream.coming_back = stream.coming_back, None
        if done is None or done.epoch != stream.epoch:
            return
        self.records.append(done.record(stream.config.stream_id, self._kind, exit_s))

    # -- the way back -----------------------------------------------------------------------------

    def tend(self) -> float:
        """Do what is due; returns when to look again."""
        if not self._busy:
            return math.inf
        now_s = self._clock.now_s()
        for action in self._plan.due(now_s):
            if isinstance(action, Respawn):
                self._cluster.respawn(action.worker, action.incarnation)
            elif isinstance(action, Kill):
                self._cluster.kill(action.worker)
            elif isinstance(action, RelinkEdge):
                message = Relink(edge=action.edge, generation=action.generation)
                for end in self._plan.ends(action.edge):
                    self._crew.send(end, message)
            else:
                self._give_up(action)
        waiting = [s for s in self._desk.streams.values() if s.suspended is not None]
        for stream in waiting:
            assert stream.suspended is not None
            if not stream.suspended.resuming and self._health.whole(stream.config.route):
                self._resume(stream, now_s)
        next_s = self._plan.next_s()
        self._busy = bool(waiting) or next_s < math.inf
        return next_s

    def _suspend(self, stream: Stream, reason: str, now_s: float) -> None:
        if self._kind == "none" or stream.state is not StreamState.OPEN:
            # Of a stream that drains, what it waited for is lost.
            self._desk.retire(stream, StreamState.FAILED, reason)
            return
        stream.coming_back = None
        if stream.suspended is not None:
            # Nothing has run in its new epoch yet.
            stream.suspended.resuming = False
            stream.suspended.attempt += 1
            return
        if isinstance(stream.keeps, SnapshotShelf):
            stream.keeps.drop_open()
        stream.suspend(now_s, reason)
        self._desk.tell_epoch(stream, reason)

    def _give_up(self, action: GiveUp) -> None:
        if action.worker is not None:
            what = f"worker {action.worker}"
            self._announce("worker_given_up", f"{what} does not stay up", worker=action.worker)
        else:
            assert action.edge is not None
            what = f"edge {action.edge[0]} -> {action.edge[1]}"
            self._announce("edge_given_up", f"{what} does not hold")
        for stream in list(self._desk.streams.values()):
            if stream.suspended is not None and self._health.given_up(stream.config.route):
                reason = f"{stream.suspended.reason}; {what} was given up"
                self._desk.retire(stream, StreamState.FAILED, reason)

    def _resume(self, stream: Stream, now_s: float) -> None:
        suspended = stream.suspended
        assert suspended is not None
        suspended.resuming = True
        suspended.attempt += 1
        back = ComingBack(
            epoch=stream.epoch, attempt=suspended.attempt, lost_s=suspended.lost_s, whole_s=now_s
        )
        workers = self._health.workers(stream.config.route)

        def told(answers: Answers) -> None:
            if not self._holds(stream, back) or set(answers) != workers:
                # Another loss came between, and began the way back anew.
                return
            reason = first_reason(answers)
            if reason:
                self._desk.retire(stream, StreamState.FAILED, f"could not go on: {reason}")
                return
            parcels = self._parcels(stream, back)
            self._crew.deliver(parcels, lambda given: delivered(given, len(parcels)))

        def delivered(answers: Answers, wanted: int) -> None:
            if not self._holds(stream, back) or len(answers) != wanted:
                return
            reason = first_reason(answers)
            if reason:
                self._desk.retire(stream, StreamState.FAILED, f"could not go on: {reason}")
                return
            self._go_on(stream, back)

        self._crew.ask(ResumeStream(opening=self._desk.opening(stream)), told, workers)

    def _holds(self, stream: Stream, back: ComingBack) -> bool:
        suspended = stream.suspended
        return suspended is not None and suspended.attempt == back.attempt

    def _parcels(self, stream: Stream, back: ComingBack) -> list[Parcel]:
        """What the workers need to make the stream's KV what it was."""
        parcels: list[Parcel] = []
        keeps = stream.keeps
        if isinstance(keeps, SnapshotShelf) and keeps.newest is not None:
            taken: Snapshot = keeps.newest
            back.from_chunk = (taken.epoch, taken.chunk_id)
            for stage, saved in taken.windows.items():
                worker = self._worker_of(stream, stage)
                parcels.append(
                    (
                        worker,
                        RestoreWindow(
                            stream=stream.handle, epoch=stream.epoch, stage=stage, saved=saved
                        ),
                    )
                )
                back.bytes += sum(array.nbytes for array in saved.values())
        elif isinstance(keeps, PastChunks):
            kept = keeps.kept()
            back.chunks = len(kept)
            back.from_chunk = stream.last_completed if kept else None
            graph = self._deployment.graph
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
        suspended = stream.suspended
        assert suspended is not None
        now_s = self._clock.now_s()
        deadline_s = now_s + (stream.period_s or _PAST_S)
        for seq in range(back.chunks):
            self._release_past(stream, seq, seq - back.chunks, deadline_s)
        stream.next_seq = back.chunks
        stream.suspended = None
        back.ready_s = now_s
        stream.coming_back = back
        if back.from_chunk is None:
            said = "with empty KV: there was nothing to go on from"
        else:
            said = f"by {self._kind} from chunk {back.from_chunk[1]} of epoch {back.from_chunk[0]}"
        self._announce("stream_recovered", said, stream.config.stream_id)
        for act in suspended.later:
            act()
