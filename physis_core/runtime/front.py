"""The engine's own thread's work: streams in and out, workers asked and missed. Never called from
elsewhere.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from physis_core.clock import Clock
from physis_core.model.protocol import ModelSpec
from physis_core.runtime.cluster import Cluster
from physis_core.runtime.control import Message
from physis_core.runtime.deployment import Deployment
from physis_core.runtime.events import EngineEvent, EventKind
from physis_core.runtime.host_clock import ClockWatch, Exchange
from physis_core.runtime.injector import ReleaseChunk, SkipRelease
from physis_core.runtime.mailbox import Mailbox
from physis_core.runtime.overload import OverloadDetector, OverloadState
from physis_core.runtime.requests import Requests
from physis_core.runtime.routes import edges_of, room, workers_of
from physis_core.runtime.stream import (
    OnItsWay,
    Seen,
    Stream,
    StreamConfig,
    StreamFigures,
    StreamHandle,
)
from physis_core.types import FinishedChunk, Refused, StreamState

_MAX_STREAMS = 1024
_CHUNKS_REMEMBERED = 8192
_BACKGROUND_S = 1e6
"""What the dispatcher takes for the deadline of a chunk that has none: after all that have one, and
the older first, so that among free-running streams none waits for ever."""
_BACKGROUND = 1_000_000
"""Taken off the priority of streams without a period: whoever takes all that is left must not come
before a stream that is already late."""


class Front:
    """State and rules of the engine; times come from `clock`, news from the engine's inbox."""

    def __init__(
        self,
        deployment: Deployment,
        spec: ModelSpec,
        cluster: Cluster,
        mailbox: Mailbox,
        clock: Clock,
        on_chunk: Callable[[FinishedChunk], None],
        on_event: Callable[[EngineEvent], None] | None,
        admit: Callable[[StreamConfig], Refused | None] | None,
    ) -> None:
        self.deployment = deployment
        self.spec = spec
        self.streams: dict[str, Stream] = {}
        self.delivered: deque[tuple[int, FinishedChunk]] = deque(maxlen=_CHUNKS_REMEMBERED)
        """(stream handle, chunk without its outputs), for the trace."""
        self._cluster = cluster
        self._mailbox = mailbox
        self._clock = clock
        self._on_chunk = on_chunk
        self._on_event = on_event
        self._admit = admit
        self._by_handle: dict[int, Stream] = {}
        self._next_handle = 1
        self._requests = Requests()
        self._overload = OverloadDetector()
        self._lost_workers: set[int] = set()
        self._clock_watches: dict[int, ClockWatch] = {}
        self._abandoned: list[StreamConfig] = []

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
        fields = {"stream": stream.handle, "epoch": stream.epoch, "number": seen.number}
        for worker in workers:
            self._cluster.send(worker, Message("observe", fields, seen.tensors))

    def advance(self, stream: Stream) -> float:
        """Release and deliver what is due; returns when to look again."""
        now_s = self._clock.now_s()
        next_s = math.inf
        while stream.state is StreamState.OPEN:
            lockstep = stream.config.release == "on_observation"
            if lockstep and stream.used_number == stream.newest_number:
                break
            step = stream.injector.poll(now_s)
            if isinstance(step, ReleaseChunk):
                self._release(stream, step, now_s)
            elif isinstance(step, SkipRelease):
                if step.reason == "too many chunks in flight":
                    stream.dropped_for_credit += step.count
                self._tell("chunks_dropped", step.reason, stream=stream, count=step.count)
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
            self._retire_stream(stream, StreamState.CLOSED, "drained")
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
        route = self.deployment.routes[stream.config.route]
        worker = self.deployment.devices[route.device_of(0)].worker
        fields = {
            "stream": stream.handle,
            "epoch": stream.epoch,
            "seq": seq,
            "chunk": step.chunk_id,
            "version": stream.version,
            "deadline_s": min(deadline_s, step.release_s + _BACKGROUND_S),
            "release_s": step.release_s,
            "entry_s": seen.entry_s,
            "number": seen.number,
            "sent_s": now_s,
        }
        self._cluster.send(worker, Message("release", fields, seen.tensors))

    def take(self, worker: int, message: Message) -> None:
        fields = message.fields
        if message.kind in ("done", "stats"):
            if message.kind == "stats":
                self._watch_clock(worker, fields)
            self._requests.answer(worker, message)
        elif message.kind in ("exit", "retired", "failed"):
            stream = self._by_handle.get(fields["stream"])
            if stream is None or stream.epoch != fields["epoch"]:
                return
            if message.kind == "exit":
                stream.complete(fields, message.arrays)
            elif message.kind == "retired":
                if stream.on_way.pop(fields["seq"], None) is not None:
                    stream.injector.finished()
            else:
                self._retire_stream(stream, StreamState.FAILED, fields["reason"])
        elif message.kind == "dead":
            self._lose_worker(worker, fields["reason"])
        elif message.kind == "edge_lost":
            self._lose_edge(worker, tuple(fields["edge"]), fields["reason"])

    def open(self, config: StreamConfig, finish: Callable[[StreamHandle | Refused], None]) -> None:
        refusal = self._refusal(config)
        if refusal is not None:
            finish(refusal)
            return
        handle = self._next_handle
        self._next_handle += 1
        try:
            stream = Stream(config, handle, room(self.deployment, config), self.spec.graph.passes)
        except ValueError as error:
            finish(Refused(reason=str(error)))
            return
        fields = {
            "stream": handle,
            "route": config.route,
            "epoch": 0,
            "seed": config.seed,
            "refresh": config.refresh,
            "priority": config.priority - (0 if stream.period_s is not None else _BACKGROUND),
            "condition": dict(config.condition),
        }

        def answered(answers: dict[int, Message]) -> None:
            reason = _first_reason(answers)
            if any(given_up is config for given_up in self._abandoned):
                self._abandoned = [c for c in self._abandoned if c is not config]
                self._broadcast("close", {"stream": handle})
                return
            lost = workers_of(self.deployment, config.route) - set(answers)
            if lost:
                reason = f"worker {min(lost)} is lost"
            if reason:
                self._broadcast("close", {"stream": handle})
                finish(Refused(reason=reason))
                return
            if config.stream_id in self.streams:
                self._broadcast("close", {"stream": handle})
                finish(Refused(reason=f"stream_id: {config.stream_id!r}: is open already"))
                return
            self.streams[config.stream_id] = stream
            self._by_handle[handle] = stream
            self._tell("stream_opened", "", stream=stream)
            finish(StreamHandle(stream_id=config.stream_id, epoch=0))

        self.ask("open", fields, answered)

    def _refusal(self, config: StreamConfig) -> Refused | None:
        if config.stream_id in self.streams:
            return Refused(reason=f"stream_id: {config.stream_id!r}: is open already")
        if not 0 <= config.route < len(self.deployment.routes):
            return Refused(
                reason=f"route: {config.route!r}: there are {len(self.deployment.routes)}"
            )
        if len(self.streams) >= _MAX_STREAMS:
            return Refused(reason=f"{_MAX_STREAMS} streams are open", short_resource="streams")
        lost = self._lost_workers & workers_of(self.deployment, config.route)
        if lost:
            return Refused(reason=f"worker {min(lost)} is lost", short_resource="worker")
        state = self._overload.state
        if not state.admit:
            return Refused(
                reason=f"the engine is overloaded at device {state.where}",
                short_resource="time",
                device=str(state.where),
            )
        return self._admit(config) if self._admit is not None else None

    def abandon(self, config: StreamConfig) -> None:
        """Whoever asked for this stream waits no longer: it must not open afterwards."""
        stream = self.streams.get(config.stream_id)
        if stream is not None and stream.config is config:
            self._retire_stream(stream, StreamState.CLOSED, "opened too late")
        else:
            self._abandoned.append(config)

    def set_condition(
        self, stream_id: str, condition: dict[str, Any], finish: Callable[[Refused | None], None]
    ) -> None:
        stream = self.streams.get(stream_id)
        if stream is None:
            finish(Refused(reason=f"stream_id: {stream_id!r}: no such stream"))
            return
        # Numbered here, used only once every worker has it: no chunk ever waits for a condition.
        stream.last_version += 1
        version = stream.last_version
        oldest = min((c.version for c in stream.on_way.values()), default=stream.version)

        def answered(answers: dict[int, Message]) -> None:
            reason = _first_reason(answers)
            if not reason:
                stream.version = max(stream.version, version)
            finish(Refused(reason=reason) if reason else None)

        fields = {
            "stream": stream.handle,
            "version": version,
            "condition": condition,
            "oldest_in_use": min(oldest, stream.version),
        }
        self.ask("condition", fields, answered)

    def restart(self, stream_id: str, reason: str) -> None:
        stream = self.streams.get(stream_id)
        if stream is None or stream.state is not StreamState.OPEN:
            return
        # What was seen before the restart belongs to the old epoch.
        self._mailbox.drop(stream_id)
        stream.begin_epoch(stream.epoch + 1)
        fields = {"stream": stream.handle, "epoch": stream.epoch}
        self.ask("restart", fields, lambda _: None)
        self._tell("stream_restarted", reason, stream=stream)

    def close_stream(self, stream_id: str, drain: bool, closed: Callable[[], None]) -> bool:
        stream = self.streams.get(stream_id)
        if stream is None:
            return False
        stream.when_closed.append(closed)
        if drain and stream.state is StreamState.OPEN:
            stream.state = StreamState.DRAINING
        elif not drain:
            self._retire_stream(stream, StreamState.CLOSED, "closed")
        return True

    def cancel(self, stream_id: str, reason: str) -> None:
        stream = self.streams.get(stream_id)
        if stream is not None:
            self._retire_stream(stream, StreamState.CLOSED, reason)

    def _retire_stream(self, stream: Stream, state: StreamState, reason: str) -> None:
        """The stream is no more, here at once and at the workers when the message has come."""
        stream.state = state
        stream.reason = reason
        self.streams.pop(stream.config.stream_id, None)
        self._by_handle.pop(stream.handle, None)

        def gone(_: dict[int, Message]) -> None:
            for closed in stream.when_closed:
                closed()

        self.ask("close", {"stream": stream.handle}, gone)
        kind: EventKind = "stream_failed" if state is StreamState.FAILED else "stream_closed"
        self._tell(kind, reason, stream=stream)

    def ask(
        self,
        kind: str,
        fields: dict[str, Any],
        finish: Callable[[dict[int, Message]], None],
    ) -> None:
        workers = self._cluster.alive()
        number = self._requests.new(set(workers), finish)
        fields = {**fields, "asked_s": self._clock.now_s()}
        for worker in workers:
            self._cluster.send(worker, Message(kind, {**fields, "request": number}))

    def _broadcast(self, kind: str, fields: dict[str, Any]) -> None:
        self.ask(kind, fields, lambda _: None)

    def _watch_clock(self, worker: int, fields: Mapping[str, Any]) -> None:
        exchange = Exchange(
            asked_s=fields["asked_s"], remote_s=fields["now_s"], heard_s=self._clock.now_s()
        )
        watch = self._clock_watches.setdefault(worker, ClockWatch())
        error_s = watch.add(exchange)
        if error_s:
            self._cluster.send(worker, Message("clock", {"shift_s": error_s}))

    def _lose_worker(self, worker: int, reason: str) -> None:
        self._lost_workers.add(worker)
        self._requests.lost(worker)
        self._tell("worker_lost", reason, worker=worker)
        for stream in list(self.streams.values()):
            if worker in workers_of(self.deployment, stream.config.route):
                self._retire_stream(
                    stream, StreamState.FAILED, f"worker {worker} is lost: {reason}"
                )

    def _lose_edge(self, worker: int, edge: tuple[int, ...], reason: str) -> None:
        self._tell("edge_lost", f"edge {edge[0]} -> {edge[1]}: {reason}", worker=worker)
        for stream in list(self.streams.values()):
            if edge in edges_of(self.deployment, stream.config.route):
                self._retire_stream(
                    stream, StreamState.FAILED, f"edge {edge[0]} -> {edge[1]} is lost"
                )

    def watch_queues(self, answers: dict[int, Message]) -> None:
        queues: dict[int, int] = {}
        for message in answers.values():
            for device, count in message.fields["queues"].items():
                queues[int(device)] = count
        dropped = 0
        for stream in self.streams.values():
            dropped += stream.dropped_for_credit
            stream.dropped_for_credit = 0
        before = self._overload.state.level
        lengths = [queues.get(i, 0) for i in range(len(self.deployment.devices))]
        state = self._overload.observe(self._clock.now_s(), lengths, dropped)
        if state.level == before:
            return
        for worker in self._cluster.alive():
            limit = {"low_priority_max_batch": state.low_priority_max_batch}
            self._cluster.send(worker, Message("overload", limit))
        self._tell(
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

    def _tell(
        self,
        kind: EventKind,
        reason: str,
        *,
        stream: Stream | None = None,
        worker: int = -1,
        count: int = 0,
    ) -> None:
        if self._on_event is not None:
            stream_id = stream.config.stream_id if stream is not None else ""
            self._on_event(
                EngineEvent(
                    kind=kind, reason=reason, stream_id=stream_id, worker=worker, count=count
                )
            )


def _first_reason(answers: Mapping[int, Message]) -> str:
    for message in answers.values():
        if message.fields["reason"]:
            return str(message.fields["reason"])
    return ""
