"""Streams come and go here: opened, told of their conditions, restarted, closed.

Part of the front: called in the engine's own thread alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from physis_core.cluster.messages import (
    CloseStream,
    Opening,
    OpenStream,
    RestartStream,
    SetCondition,
)
from physis_core.cluster.worker_group import Answers, WorkerGroup, first_reason
from physis_core.deployment.deployment import Deployment
from physis_core.engine.events import Announcer, EventKind
from physis_core.engine.mailbox import Mailbox
from physis_core.engine.rebuild import PastChunks
from physis_core.engine.route_health import RouteHealth
from physis_core.engine.routes import room
from physis_core.engine.snapshot import SnapshotShelf
from physis_core.engine.stream import Stream, StreamConfig, StreamHandle
from physis_core.model.protocol import ModelSpec
from physis_core.pipeline.costs import CostTable
from physis_core.pipeline.overload import OverloadState
from physis_core.pipeline.ready_task import BACKGROUND_PRIORITY
from physis_core.types import Refused, StreamState

_MAX_STREAMS = 1024


class StreamDesk:
    """Args:
    left: told of the configuration of each stream that is no more.
    costs: seconds by block and batch size as the workers measured them; filled when they start.
    overload: the state of now; an overloaded engine opens nothing.
    """

    def __init__(
        self,
        deployment: Deployment,
        spec: ModelSpec,
        health: RouteHealth,
        crew: WorkerGroup,
        mailbox: Mailbox,
        costs: Mapping[int, Mapping[int, float]],
        announce: Announcer,
        left: Callable[[StreamConfig], None],
        overload: Callable[[], OverloadState],
    ) -> None:
        self.streams: dict[str, Stream] = {}
        self.by_handle: dict[int, Stream] = {}
        self._deployment = deployment
        self._spec = spec
        self._health = health
        self._crew = crew
        self._mailbox = mailbox
        self._costs = costs
        self._announce = announce
        self._left = left
        self._overload = overload
        self._next_handle = 1
        self._abandoned: list[StreamConfig] = []

    def open(self, config: StreamConfig, finish: Callable[[StreamHandle | Refused], None]) -> None:
        refusal = self._refusal(config)
        if refusal is not None:
            finish(refusal)
            return
        handle = self._next_handle
        self._next_handle += 1
        try:
            stream = Stream(config, handle, room(self._deployment, config), self._spec.graph.passes)
        except ValueError as error:
            finish(Refused(reason=str(error)))
            return
        stream.keeps = self._keeps()
        changes = self._health.changes(config.route)

        def answered(answers: Answers) -> None:
            reason = first_reason(answers)
            if any(given_up is config for given_up in self._abandoned):
                self._abandoned = [c for c in self._abandoned if c is not config]
                self._crew.broadcast(CloseStream(stream=handle))
                return
            if self._health.changes(config.route) != changes:
                reason = self._health.trouble(config.route) or "a worker was lost meanwhile"
            if reason:
                self._crew.broadcast(CloseStream(stream=handle))
                finish(Refused(reason=reason))
                return
            if config.stream_id in self.streams:
                self._crew.broadcast(CloseStream(stream=handle))
                finish(Refused(reason=f"stream_id: {config.stream_id!r}: is open already"))
                return
            self.streams[config.stream_id] = stream
            self.by_handle[handle] = stream
            self._announce("stream_opened", "", stream.config.stream_id)
            finish(StreamHandle(stream_id=config.stream_id, epoch=0))

        self._crew.ask(OpenStream(opening=self.opening(stream)), answered)

    def opening(self, stream: Stream) -> Opening:
        """What a worker must know of a stream to run it."""
        config = stream.config
        background = 0 if stream.period_s is not None else BACKGROUND_PRIORITY
        return Opening(
            stream=stream.handle,
            route=config.route,
            epoch=stream.epoch,
            seed=config.seed,
            refresh=config.refresh,
            priority=config.priority - background,
            conditions=[(version, dict(held)) for version, held in stream.conditions.items()],
            block_s=self._block_s(),
        )

    def _block_s(self) -> list[float]:
        """Seconds of one task of each block, from which workers reckon what is left of a chunk: a
        worker itself has measured its own blocks alone."""
        table = self._deployment.cost_table() or CostTable(self._costs)
        return [table.predict_s(block, 1) for block in range(self._spec.graph.blocks)]

    def _keeps(self) -> SnapshotShelf | PastChunks | None:
        graph, spec = self._spec.graph, self._spec
        if self._deployment.recovery == "snapshot":
            stages = range(graph.stages)
            return SnapshotShelf(s for s in stages if graph.writes_kv(graph.stage(s)))
        if self._deployment.recovery == "rebuild":
            return PastChunks(spec.window_chunks, spec.sink_chunks)
        return None

    def _refusal(self, config: StreamConfig) -> Refused | None:
        if config.stream_id in self.streams:
            return Refused(reason=f"stream_id: {config.stream_id!r}: is open already")
        if not 0 <= config.route < len(self._deployment.routes):
            return Refused(
                reason=f"route: {config.route!r}: there are {len(self._deployment.routes)}"
            )
        if len(self.streams) >= _MAX_STREAMS:
            return Refused(reason=f"{_MAX_STREAMS} streams are open", short_resource="streams")
        trouble = self._health.trouble(config.route)
        if trouble:
            return Refused(reason=trouble, short_resource="worker")
        state = self._overload()
        if not state.admit:
            return Refused(
                reason=f"the engine is overloaded at device {state.where}",
                short_resource="time",
                device=str(state.where),
            )
        return None

    def abandon(self, config: StreamConfig) -> None:
        """Whoever asked for this stream waits no longer: it must not open afterwards."""
        stream = self.streams.get(config.stream_id)
        if stream is not None and stream.config is config:
            self.retire(stream, StreamState.CLOSED, "opened too late")
        else:
            self._abandoned.append(config)

    def set_condition(
        self, stream_id: str, condition: dict[str, Any], finish: Callable[[Refused | None], None]
    ) -> None:
        stream = self.streams.get(stream_id)
        if stream is None:
            finish(Refused(reason=f"stream_id: {stream_id!r}: no such stream"))
            return
        if stream.suspended is not None:
            stream.suspended.later.append(lambda: self.set_condition(stream_id, condition, finish))
            return
        # Numbered here, used only once every worker has it: no chunk ever waits for a condition.
        stream.last_version += 1
        version = stream.last_version
        oldest = min((c.version for c in stream.on_way.values()), default=stream.version)

        stream.conditions[version] = condition

        def answered(answers: Answers) -> None:
            reason = first_reason(answers)
            if not reason:
                stream.version = max(stream.version, version)
                for old in [v for v in stream.conditions if v < stream.version]:
                    del stream.conditions[old]
            else:
                stream.conditions.pop(version, None)
            finish(Refused(reason=reason) if reason else None)

        message = SetCondition(
            stream=stream.handle,
            version=version,
            condition=condition,
            oldest_in_use=min(oldest, stream.version),
        )
        self._crew.ask(message, answered)

    def restart(self, stream_id: str, reason: str) -> None:
        stream = self.streams.get(stream_id)
        if stream is None or stream.state is not StreamState.OPEN:
            return
        # What was seen before the restart belongs to the old epoch.
        self._mailbox.drop(stream_id)
        stream.begin_epoch(stream.epoch + 1)
        if stream.suspended is not None:
            stream.suspended.resuming = False
            stream.suspended.attempt += 1
        self.tell_epoch(stream, reason)

    def tell_epoch(self, stream: Stream, reason: str) -> None:
        """All workers drop what belongs to an older epoch than the stream's."""
        self._crew.broadcast(RestartStream(stream=stream.handle, epoch=stream.epoch))
        self._announce("stream_restarted", reason, stream.config.stream_id)

    def close_stream(self, stream_id: str, drain: bool, closed: Callable[[], None]) -> bool:
        stream = self.streams.get(stream_id)
        if stream is None:
            return False
        stream.when_closed.append(closed)
        if drain and stream.state is StreamState.OPEN:
            stream.state = StreamState.DRAINING
        elif not drain:
            self.retire(stream, StreamState.CLOSED, "closed")
        return True

    def cancel(self, stream_id: str, reason: str) -> None:
        stream = self.streams.get(stream_id)
        if stream is not None:
            self.retire(stream, StreamState.CLOSED, reason)

    def retire(self, stream: Stream, state: StreamState, reason: str) -> None:
        """The stream is no more, here at once and at the workers when the message has come."""
        stream.state = state
        stream.reason = reason
        self.streams.pop(stream.config.stream_id, None)
        self.by_handle.pop(stream.handle, None)
        self._left(stream.config)
        if stream.suspended is not None:
            suspended, stream.suspended = stream.suspended, None
            for act in suspended.later:
                act()

        def gone(_: Answers) -> None:
            for closed in stream.when_closed:
                closed()

        self._crew.ask(CloseStream(stream=stream.handle), gone)
        kind: EventKind = "stream_failed" if state is StreamState.FAILED else "stream_closed"
        self._announce(kind, reason, stream.config.stream_id)
