"""The staged engine: observations in, finished chunks out, at the pace of the slowest stage.

    engine = Engine(deployment, on_chunk=deliver, on_event=tell)
    engine.start(timeout_s=60.0)                       # loads, warms up; UserError, TimeoutError
    opened = engine.open_stream(StreamConfig(stream_id="arm", period_s=0.1, seed=7))
    if isinstance(opened, Refused): ...                # a value with a reason
    engine.observe("arm", observation)                 # any thread; newest wins; Refused | None
    engine.set_condition("arm", {"prompt": "..."})     # from the next chunk on; Refused | None
    engine.restart_stream("arm", "clock jumped")       # new epoch: old chunks dropped, KV empty
    engine.close_stream("arm", drain=True)             # True: chunks on their way are delivered
    first engine.status()                                    # EngineStatus: a snapshot
    engine.close()

`on_chunk(FinishedChunk)` and `on_event(EngineEvent)` are called in the engine's own thread, one at
a time and in order; keep them short, and do not call a method that waits (open, set_condition,
close) from inside them. `observe`, `restart_stream` and `status` may be called from anywhere. No
observation, no chunk: nothing is invented.

One thread, `physis-engine`, owns all streams. Worker threads and processes only post to its inbox.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from physis_core.clock import Clock, SteadyClock
from physis_core.model.loading import load_spec
from physis_core.model.protocol import ModelSpec
from physis_core.runtime.cluster import Cluster, make_cluster
from physis_core.runtime.control import Message, Wake
from physis_core.runtime.deployment import Deployment
from physis_core.runtime.injector import ReleaseChunk, SkipRelease
from physis_core.runtime.overload import OverloadDetector, OverloadState
from physis_core.runtime.requests import Requests
from physis_core.runtime.stream import (
    OnItsWay,
    Seen,
    Stream,
    StreamConfig,
    StreamFigures,
    StreamHandle,
    checked_observation,
)
from physis_core.types import FinishedChunk, Observation, Refused, StreamState

T = TypeVar("T")
EventKind = Literal[
    "stream_opened",
    "stream_restarted",
    "stream_closed",
    "stream_failed",
    "chunks_dropped",
    "worker_lost",
    "edge_lost",
    "overload",
]
_OVERLOAD_PERIOD_S = 0.25
_MAX_STREAMS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineEvent:
    """Something that an operator may want to know. `count` is of dropped chunks."""

    kind: EventKind
    reason: str
    stream_id: str = ""
    worker: int = -1
    count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """`warmup_s` is of the slowest worker and stands in no other figure."""

    running: bool
    warmup_s: float
    workers: int
    workers_alive: tuple[int, ...]
    overload: OverloadState
    streams: tuple[StreamFigures, ...]


class Engine:
    """See the module's text.

    Args:
        admit: asked before a stream is opened; a planner's admission puts its refusal here.
        cluster: other than the deployment's own kind, e.g. one that waits for torchrun's workers.
    """

    def __init__(
        self,
        deployment: Deployment,
        *,
        on_chunk: Callable[[FinishedChunk], None],
        on_event: Callable[[EngineEvent], None] | None = None,
        clock: Clock | None = None,
        admit: Callable[[StreamConfig], Refused | None] | None = None,
        make: Callable[[Deployment, Callable[[int, Message], None]], Cluster] = make_cluster,
    ) -> None:
        self.deployment = deployment
        self.spec: ModelSpec = load_spec(deployment.model)
        self._clock = clock if clock is not None else SteadyClock()
        self._on_chunk = on_chunk
        self._on_event = on_event
        self._admit = admit
        self._cluster = make(deployment, self._hear)
        self._inbox: deque[tuple[int, Message] | Callable[[], None]] = deque()
        self._wake = Wake()
        self._streams: dict[str, Stream] = {}
        self._by_handle: dict[int, Stream] = {}
        self._next_handle = 1
        self._mail_lock = threading.Lock()
        self._mail: dict[str, Seen] = {}
        self._next_number = 1
        self._requests = Requests()
        self._overload = OverloadDetector()
        self._overload_due_s = math.inf
        self._queues: dict[int, int] = {}
        self._lost_workers: set[int] = set()
        self._stop = False
        self._thread: threading.Thread | None = None
        self.warmup_s = math.nan
        self.measured_costs: dict[int, dict[int, float]] = {}

    # -- life
    # ---------------------------------------------------------------------------------------

    def start(self, timeout_s: float = 60.0) -> None:
        """Start the workers and wait until all are warm.

        Raises:
            UserError: the deployment does not fit this machine or its model.
            TimeoutError: not ready in time. Nothing is left running.
        """
        assert self._thread is None, "an engine starts once"
        ready = self._cluster.start(timeout_s)
        self.warmup_s = max(message.fields["warmup_s"] for message in ready)
        for message in ready:
            for block, row in message.fields["costs"].items():
                self.measured_costs[int(block)] = {int(n): s for n, s in row.items()}
        self._overload_due_s = self._clock.now_s() + _OVERLOAD_PERIOD_S
        self._thread = threading.Thread(target=self._run, name="physis-engine", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop everything; chunks on their way are lost. May be called twice."""
        if self._thread is not None and self._thread.is_alive():
            self._stop = True
            self._wake.ring()
            self._thread.join()
        self._cluster.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- any thread
    # ---------------------------------------------------------------------------------

    def open_stream(self, config: StreamConfig, timeout_s: float = 30.0) -> StreamHandle | Refused:
        """Admit a stream and make its state at every worker. Waits for them."""
        self._must_not_wait_here()
        box: list[StreamHandle | Refused] = []
        done = threading.Event()

        def finish(result: StreamHandle | Refused) -> None:
            box.append(result)
            done.set()

        self._post(lambda: self._open(config, finish))
        if not done.wait(timeout_s):
            self._post(lambda: self._abandon(config.stream_id))
            return Refused(reason=f"the workers did not answer in {timeout_s} s")
        return box[0]

    def observe(self, stream_id: str, observation: Observation) -> Refused | None:
        """Give a stream its newest observation. Refused with the reason where it does not fit."""
        stream = self._streams.get(stream_id)
        if stream is None:
            return Refused(reason=f"stream_id: {stream_id!r}: no such stream")
        if stream.state is not StreamState.OPEN:
            return Refused(reason=stream.reason or f"the stream is {stream.state.value}")
        arrays = checked_observation(observation, self.spec, stream.config.check_finite)
        if isinstance(arrays, Refused):
            return arrays
        entry_s = self._clock.now_s()
        with self._mail_lock:
            number = self._next_number
            self._next_number += 1
            self._mail[stream_id] = Seen(
                number=number, stamp=observation.stamp, entry_s=entry_s, tensors=arrays
            )
        self._wake.ring()
        return None

    def set_condition(
        self, stream_id: str, condition: Mapping[str, Any], timeout_s: float = 30.0
    ) -> Refused | None:
        """Change what holds for the stream from its next chunk on; nothing changes where it is
        refused.
        """
        self._must_not_wait_here()
        box: list[Refused | None] = []
        done = threading.Event()

        def finish(result: Refused | None) -> None:
            box.append(result)
            done.set()

        self._post(lambda: self._set_condition(stream_id, dict(condition), finish))
        if not done.wait(timeout_s):
            return Refused(reason=f"the workers did not answer in {timeout_s} s")
        return box[0]

    def restart_stream(self, stream_id: str, reason: str) -> None:
        """A new epoch. Chunks of the old one are never delivered after this returned."""
        self._call(lambda: self._restart(stream_id, reason))

    def close_stream(self, stream_id: str, drain: bool = False, timeout_s: float = 30.0) -> bool:
        """False where there is no such stream, or it did not drain in time (it is then
        cancelled).
        """
        self._must_not_wait_here()
        done = threading.Event()
        if not self._call(lambda: self._close_stream(stream_id, drain, done.set)):
            return False
        if done.wait(timeout_s):
            return True
        self._call(lambda: self._cancel(stream_id, "did not drain in time"))
        return False

    def status(self) -> EngineStatus:
        return self._call(self._status)

    def worker_pids(self) -> dict[int, int]:
        """Process ids of the workers that this engine started."""
        return self._cluster.pids()

    def stall_device(self, device: int, seconds: float) -> None:
        """Fault injection for tests and benchmarks: the device starts nothing for a while."""
        worker = self.deployment.devices[device].worker
        self._cluster.send(worker, Message("stall", {"device": device, "seconds": seconds}))

    def worker_stats(self, timeout_s: float = 10.0) -> dict[int, Message]:
        """Each living worker's figures and its task records since the last call (see
        `observe.trace`).
        """
        self._must_not_wait_here()
        box: list[dict[int, Message]] = []
        done = threading.Event()

        def finish(answers: dict[int, Message]) -> None:
            box.append(answers)
            done.set()

        self._post(lambda: self._ask("stats", {"full": True}, finish))
        if not done.wait(timeout_s):
            raise TimeoutError(f"the workers did not answer in {timeout_s} s")
        return box[0]

    def _must_not_wait_here(self) -> None:
        assert threading.current_thread() is not self._thread, "would wait for itself"
        assert self._thread is not None, "the engine was not started"

    def _call(self, act: Callable[[], T]) -> T:
        """Run `act` in the engine's thread and wait for its result."""
        thread = self._thread
        if thread is None or not thread.is_alive() or thread is threading.current_thread():
            return act()
        box: list[T] = []
        done = threading.Event()

        def run() -> None:
            try:
                box.append(act())
            finally:
                done.set()

        self._post(run)
        while not done.wait(0.1):
            if not thread.is_alive():
                return act()
        return box[0]

    def _post(self, item: tuple[int, Message] | Callable[[], None]) -> None:
        self._inbox.append(item)
        self._wake.ring()

    def _hear(self, worker: int, message: Message) -> None:
        self._post((worker, message))

    # -- the engine's thread
    # ------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop:
            while self._inbox:
                item = self._inbox.popleft()
                if callable(item):
                    item()
                else:
                    self._take(*item)
            self._take_mail()
            next_s = math.inf
            for stream in list(self._streams.values()):
                next_s = min(next_s, self._advance(stream))
            now_s = self._clock.now_s()
            if now_s >= self._overload_due_s:
                self._overload_due_s = now_s + _OVERLOAD_PERIOD_S
                self._ask("stats", {"full": False}, self._watch_queues)
            next_s = min(next_s, self._overload_due_s)
            if self._inbox or self._stop:
                continue
            self._wake.wait(max(0.0, next_s - self._clock.now_s()))

    def _take_mail(self) -> None:
        with self._mail_lock:
            mail, self._mail = self._mail, {}
        for stream_id, seen in mail.items():
            stream = self._streams.get(stream_id)
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

    def _advance(self, stream: Stream) -> float:
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
            self._on_chunk(replace(done, delivered_s=self._clock.now_s()))
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
            "deadline_s": deadline_s,
            "release_s": step.release_s,
            "entry_s": seen.entry_s,
            "number": seen.number,
            "sent_s": now_s,
        }
        self._cluster.send(worker, Message("release", fields, seen.tensors))

    def _take(self, worker: int, message: Message) -> None:
        fields = message.fields
        if message.kind in ("done", "stats"):
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

    # -- streams
    # ------------------------------------------------------------------------------------

    def _open(self, config: StreamConfig, finish: Callable[[StreamHandle | Refused], None]) -> None:
        refusal = self._refusal(config)
        if refusal is not None:
            finish(refusal)
            return
        handle = self._next_handle
        self._next_handle += 1
        try:
            stream = Stream(config, handle, self._room(config), self.spec.graph.passes)
        except ValueError as error:
            finish(Refused(reason=str(error)))
            return
        fields = {
            "stream": handle,
            "route": config.route,
            "epoch": 0,
            "seed": config.seed,
            "refresh": config.refresh,
            "priority": config.priority,
            "condition": dict(config.condition),
        }

        def answered(answers: dict[int, Message]) -> None:
            reason = _first_reason(answers)
            lost = self._workers_of(config.route) - set(answers)
            if lost:
                reason = f"worker {min(lost)} is lost"
            if reason:
                self._broadcast("close", {"stream": handle})
                finish(Refused(reason=reason))
                return
            if config.stream_id in self._streams:
                self._broadcast("close", {"stream": handle})
                finish(Refused(reason=f"stream_id: {config.stream_id!r}: is open already"))
                return
            self._streams[config.stream_id] = stream
            self._by_handle[handle] = stream
            self._tell("stream_opened", "", stream=stream)
            finish(StreamHandle(stream_id=config.stream_id, epoch=0))

        self._ask("open", fields, answered)

    def _refusal(self, config: StreamConfig) -> Refused | None:
        if config.stream_id in self._streams:
            return Refused(reason=f"stream_id: {config.stream_id!r}: is open already")
        if not 0 <= config.route < len(self.deployment.routes):
            return Refused(
                reason=f"route: {config.route!r}: there are {len(self.deployment.routes)}"
            )
        if len(self._streams) >= _MAX_STREAMS:
            return Refused(reason=f"{_MAX_STREAMS} streams are open", short_resource="streams")
        lost = self._lost_workers & self._workers_of(config.route)
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

    def _room(self, config: StreamConfig) -> int:
        """Chunks that keep the whole route busy: one per run of stages, and one more to hand
        over.
        """
        if config.max_in_flight is not None:
            return config.max_in_flight
        graph = self.spec.graph
        route = self.deployment.routes[config.route]
        if graph.kv == "clean":
            return 2
        crossings = sum(
            route.device_of(s) != route.device_of(s + 1) for s in range(graph.stages - 1)
        )
        batched = graph.passes if self.deployment.max_batch > 1 else 1
        return max(batched, crossings + 1) + 1

    def _workers_of(self, route: int) -> set[int]:
        return {
            self.deployment.devices[device].worker
            for device in self.deployment.routes[route].device_of_rank
        }

    def _abandon(self, stream_id: str) -> None:
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._retire_stream(stream, StreamState.CLOSED, "opened too late")

    def _set_condition(
        self, stream_id: str, condition: dict[str, Any], finish: Callable[[Refused | None], None]
    ) -> None:
        stream = self._streams.get(stream_id)
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
        self._ask("condition", fields, answered)

    def _restart(self, stream_id: str, reason: str) -> None:
        stream = self._streams.get(stream_id)
        if stream is None or stream.state is not StreamState.OPEN:
            return
        with self._mail_lock:
            # What was seen before the restart belongs to the old epoch.
            self._mail.pop(stream_id, None)
        stream.begin_epoch(stream.epoch + 1)
        fields = {"stream": stream.handle, "epoch": stream.epoch}
        self._ask("restart", fields, lambda _: None)
        self._tell("stream_restarted", reason, stream=stream)

    def _close_stream(self, stream_id: str, drain: bool, closed: Callable[[], None]) -> bool:
        stream = self._streams.get(stream_id)
        if stream is None:
            return False
        stream.when_closed.append(closed)
        if drain and stream.state is StreamState.OPEN:
            stream.state = StreamState.DRAINING
        elif not drain:
            self._retire_stream(stream, StreamState.CLOSED, "closed")
        return True

    def _cancel(self, stream_id: str, reason: str) -> None:
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._retire_stream(stream, StreamState.CLOSED, reason)

    def _retire_stream(self, stream: Stream, state: StreamState, reason: str) -> None:
        """The stream is no more, here at once and at the workers when the message has come."""
        stream.state = state
        stream.reason = reason
        self._streams.pop(stream.config.stream_id, None)
        self._by_handle.pop(stream.handle, None)

        def gone(_: dict[int, Message]) -> None:
            for closed in stream.when_closed:
                closed()

        self._ask("close", {"stream": stream.handle}, gone)
        kind: EventKind = "stream_failed" if state is StreamState.FAILED else "stream_closed"
        self._tell(kind, reason, stream=stream)

    # -- workers
    # ------------------------------------------------------------------------------------

    def _ask(
        self,
        kind: str,
        fields: dict[str, Any],
        finish: Callable[[dict[int, Message]], None],
    ) -> None:
        workers = self._cluster.alive()
        number = self._requests.new(set(workers), finish)
        for worker in workers:
            self._cluster.send(worker, Message(kind, {**fields, "request": number}))

    def _broadcast(self, kind: str, fields: dict[str, Any]) -> None:
        self._ask(kind, fields, lambda _: None)

    def _lose_worker(self, worker: int, reason: str) -> None:
        self._lost_workers.add(worker)
        self._requests.lost(worker)
        self._tell("worker_lost", reason, worker=worker)
        for stream in list(self._streams.values()):
            if worker in self._workers_of(stream.config.route):
                self._retire_stream(
                    stream, StreamState.FAILED, f"worker {worker} is lost: {reason}"
                )

    def _lose_edge(self, worker: int, edge: tuple[int, ...], reason: str) -> None:
        self._tell("edge_lost", f"edge {edge[0]} -> {edge[1]}: {reason}", worker=worker)
        for stream in list(self._streams.values()):
            route = self.deployment.routes[stream.config.route]
            crossed = {
                (route.device_of_rank[a], route.device_of_rank[b])
                for a, b in route.partition.edges()
            }
            if edge in crossed:
                self._retire_stream(
                    stream, StreamState.FAILED, f"edge {edge[0]} -> {edge[1]} is lost"
                )

    def _watch_queues(self, answers: dict[int, Message]) -> None:
        queues: dict[int, int] = {}
        for message in answers.values():
            for device, count in message.fields["queues"].items():
                queues[int(device)] = count
        self._queues = queues
        dropped = 0
        for stream in self._streams.values():
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

    def _status(self) -> EngineStatus:
        return EngineStatus(
            running=self._thread is not None and self._thread.is_alive() and not self._stop,
            warmup_s=self.warmup_s,
            workers=self.deployment.workers,
            workers_alive=self._cluster.alive(),
            overload=self._overload.state,
            streams=tuple(stream.figures() for stream in self._streams.values()),
        )

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
