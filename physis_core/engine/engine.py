"""The staged engine: observations in, finished chunks out, at the pace of the slowest stage.

    engine = Engine(deployment, on_chunk=deliver, on_event=tell)
    engine.start(timeout_s=60.0)                       # loads, warms up; UserError, TimeoutError
    opened = engine.open_stream(StreamConfig(stream_id="arm", period_s=0.1, seed=7))
    if isinstance(opened, Refused): ...                # a value with a reason
    engine.observe("arm", observation)                 # any thread; newest wins; Refused | None
    engine.set_condition("arm", {"prompt": "..."})     # from the next chunk on; Refused | None
    engine.restart_stream("arm", "clock jumped")       # new epoch: old chunks dropped, KV empty
    engine.close_stream("arm", drain=True)             # True: chunks on their way are delivered
    engine.status()                                    # EngineStatus: a snapshot
    engine.trace()                                     # RunTrace: all since the last call
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
from typing import Any, TypeVar

from physis_core.clock import Clock, SteadyClock
from physis_core.cluster.host_clock import HostClock
from physis_core.cluster.launcher import Cluster, OnNews, ThreadCluster
from physis_core.cluster.messages import (
    ClusterFailed,
    GetStats,
    News,
    Ready,
    StallDevice,
    Stats,
    ToEngine,
)
from physis_core.cluster.processes import ProcessCluster
from physis_core.cluster.threads import Wake, sleep_precisely
from physis_core.cluster.worker_group import Answers
from physis_core.deployment.deployment import Deployment
from physis_core.engine.admission import StreamDoor
from physis_core.engine.events import EngineEvent, EngineStatus
from physis_core.engine.front import Front
from physis_core.engine.mailbox import Mailbox
from physis_core.engine.observation_check import checked_observation
from physis_core.engine.recovery_record import RecoveryRecord
from physis_core.engine.stream import StreamConfig, StreamHandle
from physis_core.model.loading import load_spec
from physis_core.model.protocol import ModelSpec
from physis_core.observe.trace import RunTrace
from physis_core.types import FinishedChunk, Observation, Refused, StreamState
from physis_core.worker.links.link import check_link
from physis_core.worker.loop import WorkerLoop
from physis_core.worker.process import build_loop
from physis_core.worker.report import gathered_trace

__all__ = ["Engine", "EngineEvent", "EngineStatus"]

T = TypeVar("T")
_WATCH_PERIOD_S = 0.25
"""How often the workers' queues are looked at."""


def _build_loop(
    deployment: Deployment, reply: Callable[[ToEngine], object]
) -> tuple[WorkerLoop, Ready]:
    return build_loop(deployment, 0, reply, reply, HostClock())


def make_cluster(deployment: Deployment, on_news: OnNews) -> Cluster:
    """What a deployment asks for: one worker in a thread, or processes."""
    if deployment.workers == 0:
        return ThreadCluster(deployment, on_news, _build_loop)
    return ProcessCluster(deployment, on_news)


class Engine:
    """See the module's text.

    Args:
        door: asked before a stream is opened, such as the planner's `LiveAdmission`; None: all are
            admitted that fit.
        make: another kind of cluster, e.g. one that waits for torchrun's workers.
    """

    def __init__(
        self,
        deployment: Deployment,
        *,
        on_chunk: Callable[[FinishedChunk], None],
        on_event: Callable[[EngineEvent], None] | None = None,
        clock: Clock | None = None,
        door: StreamDoor | None = None,
        make: Callable[[Deployment, OnNews], Cluster] = make_cluster,
    ) -> None:
        self.deployment = deployment
        self.spec: ModelSpec = load_spec(deployment.model)
        self.warmup_s = math.nan
        self.measured_costs: dict[int, dict[int, float]] = {}
        """Seconds by block and batch size, as the workers measured them at start."""
        self._clock = clock if clock is not None else SteadyClock()
        self._door = door
        self._cluster = make(deployment, self._hear)
        self._mailbox = Mailbox()
        self._front = Front(
            deployment,
            self.spec,
            self._cluster,
            self._mailbox,
            self._clock,
            self.measured_costs,
            on_chunk,
            on_event,
            self._left,
            lambda reason: self._hear(-1, ClusterFailed(reason=reason)),
        )
        self._inbox: deque[tuple[int, News] | Callable[[], None]] = deque()
        self._wake = Wake()
        self._watch_due_s = math.inf
        self._stop = False
        self._thread: threading.Thread | None = None

    def start(self, timeout_s: float = 60.0, given_up: Callable[[], bool] = lambda: False) -> None:
        """Start the workers and wait until all are warm. Nothing is left running where it fails.

        Raises:
            UserError: the deployment does not fit this machine or its model.
            TimeoutError: not ready in time.
            InterruptedError: `given_up` became true, which is asked some times a second.
        """
        assert self._thread is None, "an engine starts once"
        if self.deployment.remote_edges():
            # Here, too: no need to start processes to learn that they cannot speak.
            check_link(self.deployment.link)
        ready = self._cluster.start(timeout_s, given_up)
        self.warmup_s = max(message.warmup_s for message in ready)
        for message in ready:
            self.measured_costs.update(message.costs)
        self._watch_due_s = self._clock.now_s() + _WATCH_PERIOD_S
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

    def open_stream(self, config: StreamConfig, timeout_s: float = 30.0) -> StreamHandle | Refused:
        """Admit a stream and make its state at every worker. Waits for them."""
        self._must_not_wait_here()
        if self._door is not None:
            # Here and not in the engine's thread: a decision may take longer than a chunk.
            refused = self._door.admit(config)
            if refused is not None:
                return refused
        opened = self._open(config, timeout_s)
        if isinstance(opened, Refused):
            self._left(config)
        return opened

    def _open(self, config: StreamConfig, timeout_s: float) -> StreamHandle | Refused:
        def begin(finish: Callable[[StreamHandle | Refused], None]) -> None:
            self._front.desk.open(config, finish)

        try:
            return self._await(begin, timeout_s)
        except TimeoutError as error:
            self._post(lambda: self._front.desk.abandon(config))
            return Refused(reason=str(error))

    def _left(self, config: StreamConfig) -> None:
        if self._door is not None:
            self._door.leave(config)

    def observe(self, stream_id: str, observation: Observation) -> Refused | None:
        """Give a stream its newest observation. Refused with the reason where it does not fit."""
        stream = self._front.streams.get(stream_id)
        if stream is None:
            return Refused(reason=f"stream_id: {stream_id!r}: no such stream")
        if stream.state is not StreamState.OPEN:
            return Refused(reason=stream.reason or f"the stream is {stream.state.value}")
        arrays = checked_observation(observation, self.spec, stream.config.check_finite)
        if isinstance(arrays, Refused):
            return arrays
        self._mailbox.put(stream_id, observation.stamp, self._clock.now_s(), arrays)
        self._wake.ring()
        return None

    def set_condition(
        self, stream_id: str, condition: Mapping[str, Any], timeout_s: float = 30.0
    ) -> Refused | None:
        """Change what holds for the stream from its next chunk on; nothing changes where it is
        refused.
        """

        def begin(finish: Callable[[Refused | None], None]) -> None:
            self._front.desk.set_condition(stream_id, dict(condition), finish)

        try:
            return self._await(begin, timeout_s)
        except TimeoutError as error:
            return Refused(reason=str(error))

    def restart_stream(self, stream_id: str, reason: str) -> None:
        """A new epoch. Chunks of the old one are never delivered after this returned."""
        self._call(lambda: self._front.desk.restart(stream_id, reason))

    def close_stream(self, stream_id: str, drain: bool = False, timeout_s: float = 30.0) -> bool:
        """False where there is no such stream, or it did not drain in time (it is then
        cancelled).
        """
        self._must_not_wait_here()
        done = threading.Event()
        if not self._call(lambda: self._front.desk.close_stream(stream_id, drain, done.set)):
            return False
        if done.wait(timeout_s):
            return True
        self._call(lambda: self._front.desk.cancel(stream_id, "did not drain in time"))
        return False

    def status(self) -> EngineStatus:
        return self._call(self._status)

    def worker_pids(self) -> dict[int, int]:
        """Process ids of the workers that this engine started."""
        return self._cluster.pids()

    def recoveries(self) -> tuple[RecoveryRecord, ...]:
        """The newest ways back of streams after a loss, oldest first: those that have a chunk."""
        return self._call(lambda: tuple(self._front.recovery.records))

    def stall_device(self, device: int, seconds: float) -> None:
        """Fault injection for tests and benchmarks: the device starts nothing for a while."""
        worker = self.deployment.devices[device].worker
        self._cluster.send(worker, StallDevice(device=device, seconds=float(seconds)))

    def worker_stats(self, timeout_s: float = 10.0) -> dict[int, Stats]:
        """Each living worker's figures and its task records since the last call (see
        `observe.trace`).
        """

        def begin(finish: Callable[[Answers], None]) -> None:
            self._front.crew.ask(self._stats_request(True), finish)

        answers = self._await(begin, timeout_s)
        return {worker: stats for worker, stats in answers.items() if isinstance(stats, Stats)}

    def _stats_request(self, full: bool) -> GetStats:
        return GetStats(full=full, asked_s=self._clock.now_s())

    def trace(self, timeout_s: float = 10.0) -> RunTrace:
        """Everything recorded since the last call: each chunk's way, and the workers' counters.

        Rings bound it: the newest 65,536 tasks of a worker and 8,192 chunks of the engine.
        """
        answers = self.worker_stats(timeout_s)
        delivered = self._call(self._front.take_delivered)
        return gathered_trace(answers, delivered)

    def _status(self) -> EngineStatus:
        thread = self._thread
        return EngineStatus(
            running=thread is not None and thread.is_alive() and not self._stop,
            warmup_s=self.warmup_s,
            workers=self.deployment.workers,
            workers_alive=self._cluster.alive(),
            overload=self._front.overload,
            streams=self._front.figures(),
        )

    def _await(self, begin: Callable[[Callable[[T], None]], None], timeout_s: float) -> T:
        """Begin something in the engine's thread and wait for what it ends with.

        Raises:
            TimeoutError: it did not end in time.
        """
        self._must_not_wait_here()
        box: list[T] = []
        done = threading.Event()

        def finish(result: T) -> None:
            box.append(result)
            done.set()

        self._post(lambda: begin(finish))
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

    def _post(self, item: tuple[int, News] | Callable[[], None]) -> None:
        self._inbox.append(item)
        self._wake.ring()

    def _hear(self, worker: int, message: News) -> None:
        self._post((worker, message))

    def _run(self) -> None:
        front = self._front
        sleep_precisely()
        while not self._stop:
            while self._inbox:
                item = self._inbox.popleft()
                if callable(item):
                    item()
                else:
                    front.take(*item)
            front.take_mail()
            next_s = front.recovery.tend()
            for stream in list(front.streams.values()):
                next_s = min(next_s, front.advance(stream))
            now_s = self._clock.now_s()
            if now_s >= self._watch_due_s:
                self._watch_due_s = now_s + _WATCH_PERIOD_S
                front.crew.ask(self._stats_request(False), front.watch_queues)
            next_s = min(next_s, self._watch_due_s)
            if self._inbox or self._stop:
                continue
            self._wake.wait(max(0.0, next_s - self._clock.now_s()))
