"""The streams of an engine: opened, conditioned, restarted, closed.

Called in the engine's own thread alone. What a caller waits for is a future.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from physis_core.cluster.messages import (
    CloseStream,
    Opening,
    OpenStream,
    RestartStream,
    SetCondition,
)
from physis_core.cluster.worker_group import Answers, WorkerGroup, first_reason
from physis_core.deployment.deployment import Deployment
from physis_core.engine.events import EventKind, Events
from physis_core.engine.observations import Mailbox
from physis_core.engine.routes import RouteHealth, room
from physis_core.engine.stream import StreamAdmission, StreamConfig, StreamHandle
from physis_core.engine.stream_state import CLOSED, DRAINING, FAILED, LIVE, OPEN, Stream
from physis_core.engine.way_back import PastChunks, SnapshotShelf
from physis_core.pipeline.costs import CostTable
from physis_core.pipeline.overload import OverloadDetector
from physis_core.pipeline.ready_task import BACKGROUND_PRIORITY
from physis_core.types import Refused, StreamState

if TYPE_CHECKING:
    from physis_core.model.protocol import ModelSpec

_MAX_STREAMS = 1024
_REMEMBERED = 1024
"""Ended streams whose reason can still be read."""


class Streams:
    """Args:
    specs: by model.
    costs: seconds by key and batch size as the workers measured them; filled when they start.
    overload: an overloaded engine opens nothing.
    admission: hears of each stream that is no more.

    `by_id` and `by_handle` hold the streams that are open. `ended` says why a stream is no more, by
    its id.
    """

    def __init__(
        self,
        deployment: Deployment,
        specs: Mapping[str, ModelSpec],
        *,
        health: RouteHealth,
        workers: WorkerGroup,
        mailbox: Mailbox,
        costs: Mapping[int, Mapping[int, float]],
        overload: OverloadDetector,
        admission: StreamAdmission | None,
        events: Events,
    ) -> None:
        self.by_id: dict[str, Stream] = {}
        self.by_handle: dict[int, Stream] = {}
        self.ended: dict[str, str] = {}
        self._deployment = deployment
        self._specs = specs
        self._health = health
        self._workers = workers
        self._mailbox = mailbox
        self._costs = costs
        self._overload = overload
        self._admission = admission
        self._events = events
        self._next_handle = 1
        self._abandoned: list[StreamConfig] = []

    def all(self) -> list[Stream]:
        return list(self.by_id.values())

    def current(self, handle: int, epoch: int) -> Stream | None:
        """The stream of a worker's message; None where it, or that epoch of it, is no more."""
        stream = self.by_handle.get(handle)
        return stream if stream is not None and stream.epoch == epoch else None

    # -- open -------------------------------------------------------------------------------------

    def open(self, config: StreamConfig, opened: Future[StreamHandle | Refused]) -> None:
        refusal = self._refusal(config)
        if refusal is not None:
            opened.set_result(refusal)
            return
        handle = self._next_handle
        self._next_handle += 1
        try:
            stream = Stream(
                config,
                handle,
                room(self._deployment, config),
                self._deployment.graph_of(config.route).passes,
                self._keeps(config.route),
            )
        except ValueError as error:
            opened.set_result(Refused(reason=str(error)))
            return
        changes = self._health.changes(config.route)

        def answered(answers: Answers) -> None:
            reason = first_reason(answers)
            abandoned = any(given_up is config for given_up in self._abandoned)
            if abandoned:
                self._abandoned = [c for c in self._abandoned if c is not config]
                reason = "nobody waits for it any more"
            elif self._health.changes(config.route) != changes:
                reason = self._health.trouble(config.route) or "a worker was lost meanwhile"
            elif not reason and config.stream_id in self.by_id:
                reason = f"stream_id: {config.stream_id!r}: is open already"
            if reason:
                stream.end(CLOSED, reason)
                self._workers.tell(CloseStream(stream=handle), self._asked(config))
                opened.set_result(Refused(reason=reason))
                return
            stream.move(OPEN)
            self.by_id[config.stream_id] = stream
            self.by_handle[handle] = stream
            self.ended.pop(config.stream_id, None)
            self._events.add("stream_opened", "", config.stream_id)
            opened.set_result(StreamHandle(stream_id=config.stream_id, epoch=0))

        self._workers.ask(OpenStream(opening=self.opening(stream)), answered, self._asked(config))

    def _asked(self, config: StreamConfig) -> list[int]:
        """The living workers of its route: no other one can hold a request up."""
        route = self._health.workers(config.route)
        return [worker for worker in self._workers.alive() if worker in route]

    def opening(self, stream: Stream) -> Opening:
        """What a worker must know of a stream to run it."""
        config = stream.config
        background = 0 if config.paced_s is not None else BACKGROUND_PRIORITY
        return Opening(
            stream=stream.handle,
            route=config.route,
            epoch=stream.epoch,
            seed=config.seed,
            refresh=config.refresh,
            priority=config.priority - background,
            conditions=stream.conditions.known(),
            block_s=self._block_s(config.route),
        )

    def _block_s(self, route: int) -> list[float]:
        """Seconds of one task of each block, from which workers reckon what is left of a chunk: a
        worker itself has measured its own blocks alone."""
        table = self._deployment.cost_table() or CostTable(self._costs)
        return [table.predict_s(key, 1) for key in self._deployment.keys_of(route)]

    def _keeps(self, route: int) -> SnapshotShelf | PastChunks | None:
        graph = self._deployment.graph_of(route)
        if self._deployment.recovery == "snapshot":
            stages = range(graph.stages)
            return SnapshotShelf(s for s in stages if graph.writes_kv(graph.stage(s)))
        if self._deployment.recovery == "rebuild":
            spec = self._specs[self._deployment.routes[route].model]
            return PastChunks(spec.window_chunks, spec.sink_chunks)
        return None

    def _refusal(self, config: StreamConfig) -> Refused | None:
        if config.stream_id in self.by_id:
            return Refused(reason=f"stream_id: {config.stream_id!r}: is open already")
        if not 0 <= config.route < len(self._deployment.routes):
            return Refused(
                reason=f"route: {config.route!r}: there are {len(self._deployment.routes)}"
            )
        if len(self.by_id) >= _MAX_STREAMS:
            return Refused(reason=f"{_MAX_STREAMS} streams are open", short_resource="streams")
        trouble = self._health.trouble(config.route)
        if trouble:
            return Refused(reason=trouble, short_resource="worker")
        state = self._overload.state
        if not state.admit:
            return Refused(
                reason=f"the engine is overloaded at device {state.where}",
                short_resource="time",
                device=f"device {state.where}",
            )
        return None

    def abandon(self, config: StreamConfig) -> None:
        """Whoever asked for this stream waits no longer: it must not open afterwards."""
        stream = self.by_id.get(config.stream_id)
        if stream is not None and stream.config is config:
            self.end(stream, CLOSED, "opened too late")
        else:
            self._abandoned.append(config)

    # -- while it is open -------------------------------------------------------------------------

    def set_condition(
        self, stream_id: str, condition: dict[str, Any], held: Future[Refused | None]
    ) -> None:
        stream = self.by_id.get(stream_id)
        if stream is None:
            held.set_result(Refused(reason=self.why_none(stream_id)))
            return
        suspension = stream.way_back.suspension
        if suspension is not None:
            suspension.later.append(lambda: self.set_condition(stream_id, condition, held))
            return
        conditions = stream.conditions
        oldest = min(stream.flight.oldest_version(conditions.in_use), conditions.in_use)
        version = conditions.propose(condition)

        def answered(answers: Answers) -> None:
            reason = first_reason(answers)
            if reason:
                conditions.refuse(version)
            else:
                conditions.accept(version)
            held.set_result(Refused(reason=reason) if reason else None)

        self._workers.ask(
            SetCondition(
                stream=stream.handle, version=version, condition=condition, oldest_in_use=oldest
            ),
            answered,
            self._asked(stream.config),
        )

    def restart(self, stream_id: str, reason: str) -> None:
        stream = self.by_id.get(stream_id)
        if stream is None or stream.state not in LIVE:
            return
        # What was seen before the restart belongs to the old epoch.
        self._mailbox.drop(stream_id)
        stream.begin_epoch()
        self.announce_epoch(stream, reason)

    def announce_epoch(self, stream: Stream, reason: str) -> None:
        """Its workers drop what belongs to an older epoch than the stream's."""
        request = RestartStream(stream=stream.handle, epoch=stream.epoch)
        self._workers.tell(request, self._asked(stream.config))
        self._events.add("stream_restarted", reason, stream.config.stream_id)

    # -- close ------------------------------------------------------------------------------------

    def close(self, stream_id: str, drain: bool, closed: Future[bool]) -> None:
        """`closed`: true once the workers have forgotten the stream, false where there is none."""
        stream = self.by_id.get(stream_id)
        if stream is None:
            closed.set_result(False)
            return
        stream.when_closed.append(closed)
        if not drain:
            self.end(stream, CLOSED, "closed")
        elif stream.state is not DRAINING:
            stream.move(DRAINING)

    def cancel(self, stream_id: str, reason: str) -> None:
        stream = self.by_id.get(stream_id)
        if stream is not None:
            self.end(stream, CLOSED, reason)

    def end(self, stream: Stream, state: StreamState, reason: str) -> None:
        """The stream is no more, here at once and at the workers when the message has come."""
        waiting = stream.end(state, reason)
        self._forget(stream)
        for act in waiting:
            act()

        def gone(_: Answers) -> None:
            for closed in stream.when_closed:
                closed.set_result(True)

        self._workers.ask(CloseStream(stream=stream.handle), gone, self._asked(stream.config))
        kind: EventKind = "stream_failed" if state is FAILED else "stream_closed"
        self._events.add(kind, reason, stream.config.stream_id)

    def fail_all(self, reason: str) -> None:
        """The engine has failed: every stream ends, and nobody is asked any more."""
        for stream in self.all():
            stream.end(FAILED, reason)
            self.ended[stream.config.stream_id] = reason
            if self._admission is not None:
                self._admission.leave(stream.config)

    def why_none(self, stream_id: str) -> str:
        """Why there is no such stream."""
        reason = self.ended.get(stream_id)
        return reason if reason else f"stream_id: {stream_id!r}: no such stream"

    def _forget(self, stream: Stream) -> None:
        config = stream.config
        self.by_id.pop(config.stream_id, None)
        self.by_handle.pop(stream.handle, None)
        if stream.state is FAILED:
            self.ended[config.stream_id] = f"stream_id: {config.stream_id!r}: {stream.reason}"
            while len(self.ended) > _REMEMBERED:
                del self.ended[next(iter(self.ended))]
        if self._admission is not None:
            self._admission.leave(config)
