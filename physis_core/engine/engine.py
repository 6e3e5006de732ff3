"""The staged engine: observations in, finished chunks out, at the pace of the slowest stage.

    engine = Engine(deployment, on_chunk=deliver, on_event=note)
    engine.start(timeout_s=60.0)                       # loads, warms up; UserError, TimeoutError
    opened = engine.open_stream(StreamConfig(stream_id="arm", period_s=0.1, seed=7))
    if isinstance(opened, Refused): ...                # a value with a reason
    engine.observe("arm", observation)                 # any thread; newest wins; Refused | None
    engine.set_condition("arm", {"prompt": "..."})     # from the next chunk on; Refused | None
    engine.restart_stream("arm", "clock jumped")       # new epoch: old chunks dropped, KV empty
    engine.close_stream("arm", drain=True)             # True: chunks in flight are delivered
    engine.status()                                    # EngineStatus: a snapshot
    engine.trace()                                     # RunTrace: all since the last call
    engine.close()

`on_chunk(FinishedChunk)` and `on_event(EngineEvent)` are called in the engine's own thread, one at
a time and in order; keep them short, and do not call a method that waits (open, set_condition,
close) from inside them. `observe`, `restart_stream` and `status` may be called from anywhere. No
observation, no chunk: nothing is invented.

One thread, `physis-engine`, runs the loop (`loop.EngineLoop`) and owns all streams. An error in it,
in a callback or in a thread that hears the workers fails the engine: its streams end as FAILED with
the reason, `status` and `failure` tell it, whoever waits or asks later gets an EngineFailedError,
and `beat` stands still.
"""

from __future__ import annotations

import concurrent.futures
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from physis_core.clock import Clock, SteadyClock
from physis_core.cluster.host_clock import HostClock
from physis_core.cluster.launcher import Cluster, OnNews, ThreadCluster
from physis_core.cluster.messages import Ready, StallDevice, Stats, ToEngine
from physis_core.cluster.processes import ProcessCluster
from physis_core.cluster.worker_group import Answers
from physis_core.deployment.deployment import Deployment
from physis_core.engine.events import EngineEvent, EngineFailedError, EngineStatus
from physis_core.engine.given_values import checked_condition, real_number
from physis_core.engine.loop import EngineLoop
from physis_core.engine.observations import checked_observation
from physis_core.engine.stream import StreamAdmission, StreamConfig, StreamHandle
from physis_core.engine.stream_state import LIVE
from physis_core.engine.way_back import RecoveryRecord
from physis_core.model.registry import condition_encoder, family
from physis_core.observe.recorder import TASK_DTYPE
from physis_core.observe.trace import RunTrace, chunk_rows, merge_tasks
from physis_core.types import FinishedChunk, Observation, Refused, UserError

if TYPE_CHECKING:
    from physis_core.model.protocol import ModelSpec
    from physis_core.worker.loop import WorkerLoop

__all__ = ["Engine", "EngineEvent", "EngineFailedError", "EngineStatus"]

T = TypeVar("T")
_TURN_S = 30.0
"""How long the loop may take to come to what is asked of it alone."""


def _build_loop(
    deployment: Deployment, reply: Callable[[ToEngine], object]
) -> tuple[WorkerLoop, Ready]:
    from physis_core.worker.process import build_loop

    return build_loop(deployment, 0, reply, reply, HostClock())


def make_cluster(deployment: Deployment, on_news: OnNews) -> Cluster:
    """What a deployment asks for: one worker in a thread, or processes."""
    if deployment.workers == 0:
        return ThreadCluster(deployment, on_news, _build_loop)
    return ProcessCluster(deployment, on_news)


class Engine:
    """See the module's text.

    Args:
        admission: asked before a stream is opened, such as the planner's `LiveAdmission`; None: all
            are admitted that fit.
        make: another kind of cluster, e.g. one that waits for torchrun's workers.
    """

    def __init__(
        self,
        deployment: Deployment,
        *,
        on_chunk: Callable[[FinishedChunk], None],
        on_event: Callable[[EngineEvent], None] | None = None,
        clock: Clock | None = None,
        admission: StreamAdmission | None = None,
        make: Callable[[Deployment, OnNews], Cluster] = make_cluster,
    ) -> None:
        self.deployment = deployment
        cluster = make(deployment, lambda worker, news: self._loop.hear(worker, news))
        # Worker processes import torch while this one does.
        cluster.prepare()
        try:
            self.specs: Mapping[str, ModelSpec] = {
                name: family(ref.family).read_spec(ref) for name, ref in deployment.models.items()
            }
        except BaseException:
            cluster.close()
            raise
        self._encoders = {name: condition_encoder(ref) for name, ref in deployment.models.items()}
        self.warmup_s = math.nan
        self.measured_costs: dict[int, dict[int, float]] = {}
        """Seconds by key and batch size, as the workers measured them at start."""
        self._admission = admission
        self._loop = EngineLoop(
            deployment,
            self.specs,
            cluster=cluster,
            clock=clock if clock is not None else SteadyClock(),
            costs=self.measured_costs,
            admission=admission,
            on_chunk=on_chunk,
            on_event=on_event if on_event is not None else _ignore,
        )
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
            from physis_core.worker.links.link import check_link

            check_link(self.deployment.link)
        ready = self._loop.cluster.start(timeout_s, given_up)
        self.warmup_s = max(message.warmup_s for message in ready)
        for message in ready:
            self.measured_costs.update(message.costs)
        self._thread = threading.Thread(target=self._loop.run, name="physis-engine", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop everything; chunks in flight are lost. May be called twice."""
        if self._thread is not None and self._thread.is_alive():
            self._loop.stop()
            self._thread.join(_TURN_S)
        self._loop.cluster.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def spec_of(self, route: int) -> ModelSpec:
        """Of the model that a route runs."""
        return self.specs[self.deployment.routes[route].model]

    # -- its life ---------------------------------------------------------------------------------

    @property
    def failure(self) -> str:
        """Why the engine has failed; empty where it has not. Never waits."""
        return self._loop.failure

    @property
    def beat(self) -> int:
        """Counts the turns of the loop, some fifty a second at least while it lives. Never
        waits.
        """
        return self._loop.beat

    def trouble(self, stream_id: str) -> str:
        """Why no chunk of the stream comes: it lost a worker, or a chunk is stuck. Empty where
        chunks come. Never waits.
        """
        stream = self._loop.streams.by_id.get(stream_id)
        return "" if stream is None else stream.trouble

    def status(self) -> EngineStatus:
        return self._read(self._status)

    def _status(self) -> EngineStatus:
        thread, loop = self._thread, self._loop
        now_s = loop.now_s()
        return EngineStatus(
            running=thread is not None and thread.is_alive() and not loop.failure,
            failure=loop.failure,
            warmup_s=self.warmup_s,
            workers=self.deployment.workers,
            workers_alive=loop.cluster.alive(),
            overload=loop.overload.state,
            streams=tuple(stream.figures(now_s) for stream in loop.streams.all()),
            lost=tuple(loop.recovery.lost.values()),
            now_s=now_s,
        )

    # -- streams ----------------------------------------------------------------------------------

    def open_stream(self, config: StreamConfig, timeout_s: float = 30.0) -> StreamHandle | Refused:
        """Admit a stream and make its state at every worker. Waits for them.

        Its condition is encoded in the caller's thread (a prompt by a text encoder), as that of
        `set_condition`: the loop goes on meanwhile.
        """
        self._must_not_wait_here()
        try:
            config = replace(config, condition=self._encoded(config.condition, config.route))
        except UserError as error:
            return Refused(reason=str(error))
        if self._admission is not None:
            # Here and not in the engine's thread: a decision may take longer than a chunk.
            refused = self._admission.admit(config)
            if refused is not None:
                return refused
        opened: StreamHandle | Refused = Refused(reason="the engine did not open it")
        try:
            opened = self._ask(lambda future: self._loop.streams.open(config, future), timeout_s)
        except TimeoutError as error:
            self._loop.submit(lambda _: self._loop.streams.abandon(config))
            opened = Refused(reason=str(error))
        finally:
            if isinstance(opened, Refused) and self._admission is not None:
                self._admission.leave(config)
        return opened

    def observe(self, stream_id: str, observation: Observation) -> Refused | None:
        """Give a stream its newest observation. Refused with the reason where it does not fit, or
        the stream is no more.
        """
        streams = self._loop.streams
        stream = streams.by_id.get(stream_id)
        if stream is None:
            return Refused(reason=streams.why_none(stream_id))
        if stream.state not in LIVE:
            return Refused(reason=stream.reason or f"the stream is {stream.state.value}")
        spec = self.spec_of(stream.config.route)
        arrays = checked_observation(observation, spec, stream.config.check_finite)
        if isinstance(arrays, Refused):
            return arrays
        self._loop.observe(stream_id, observation.stamp, arrays)
        return None

    def set_condition(
        self, stream_id: str, condition: Mapping[str, Any], timeout_s: float = 30.0
    ) -> Refused | None:
        """Change what holds for the stream from its next chunk on; nothing changes where it is
        refused.
        """
        try:
            stream = self._loop.streams.by_id.get(stream_id)
            route = -1 if stream is None else stream.config.route
            values = self._encoded(checked_condition(condition), route)
            return self._ask(
                lambda future: self._loop.streams.set_condition(stream_id, values, future),
                timeout_s,
            )
        except (UserError, TimeoutError) as error:
            return Refused(reason=str(error))

    def _encoded(self, values: Mapping[str, Any], route: int) -> dict[str, Any]:
        """What the workers of a route take. Raises UserError where a value does not fit.

        An unknown route is refused later, by whoever knows the streams.
        """
        routes = self.deployment.routes
        encoder = self._encoders[routes[route].model] if 0 <= route < len(routes) else None
        if encoder is None or not values:
            return dict(values)
        return checked_condition(encoder.encoded(values))

    def restart_stream(self, stream_id: str, reason: str) -> None:
        """A new epoch. Chunks of the old one are never delivered after this returned."""
        self._do(lambda: self._loop.streams.restart(stream_id, reason))

    def close_stream(self, stream_id: str, drain: bool = False, timeout_s: float = 30.0) -> bool:
        """False where there is no such stream, or it did not drain in time (it is then
        cancelled).
        """
        streams = self._loop.streams
        try:
            return self._ask(lambda future: streams.close(stream_id, drain, future), timeout_s)
        except TimeoutError:
            self._do(lambda: streams.cancel(stream_id, "did not drain in time"))
            return False

    # -- workers ----------------------------------------------------------------------------------

    def worker_pids(self) -> dict[int, int]:
        """Process ids of the workers that this engine started."""
        return self._loop.cluster.pids()

    def recoveries(self) -> tuple[RecoveryRecord, ...]:
        """The newest ways back of streams after a loss, oldest first: those that have a chunk."""
        return self._read(lambda: tuple(self._loop.recovery.records))

    def stall_device(self, device: int, seconds: float) -> None:
        """Fault injection for tests and benchmarks: the device starts nothing for a while."""
        message = StallDevice(device=device, seconds=real_number("seconds", seconds))
        self._loop.cluster.send(self.deployment.devices[device].worker, message)

    def worker_stats(self, timeout_s: float = 10.0) -> dict[int, Stats]:
        """Each living worker's figures and its task records since the last call (see
        `observe.trace`).
        """

        def begin(future: Future[Answers]) -> None:
            request = self._loop.stats_request(full=True)
            self._loop.workers.ask(request, future.set_result)

        answers = self._ask(begin, timeout_s)
        return {worker: stats for worker, stats in answers.items() if isinstance(stats, Stats)}

    def trace(self, timeout_s: float = 10.0) -> RunTrace:
        """Everything recorded since the last call: each chunk's way, and the workers' counters.

        Rings bound it: the newest 65,536 tasks of a worker and 8,192 chunks of the engine.
        """
        answers = self.worker_stats(timeout_s)
        return _gathered_trace(answers, self._read(self._loop.take_delivered))

    # -- asking the loop --------------------------------------------------------------------------

    def _ask(self, act: Callable[[Future[T]], None], timeout_s: float) -> T:
        """Begin something in the engine's thread and wait for what it ends with.

        Raises:
            TimeoutError: it did not end in time.
            EngineFailedError: the engine has failed, or fails meanwhile.
        """
        self._must_not_wait_here()
        try:
            return self._loop.submit(act).result(timeout_s)
        except concurrent.futures.TimeoutError:
            raise TimeoutError(f"the workers did not answer in {timeout_s} s") from None

    def _do(self, act: Callable[[], T]) -> T:
        """Do `act` in the engine's thread, which may be this one.

        Raises:
            TimeoutError: the loop did not come to it.
            EngineFailedError: the engine has failed, or fails meanwhile.
        """
        if self._thread is None or self._thread is threading.current_thread():
            return act()

        def run(future: Future[T]) -> None:
            future.set_result(act())

        try:
            return self._loop.submit(run).result(_TURN_S)
        except concurrent.futures.TimeoutError:
            raise TimeoutError(f"the engine's loop did not turn in {_TURN_S:g} s") from None

    def _read(self, act: Callable[[], T]) -> T:
        """As `_do`. Of an engine that has failed, or was closed, what is left is read here."""
        try:
            return self._do(act)
        except EngineFailedError:
            assert self._thread is not None
            self._thread.join(_TURN_S)
            return act()

    def _must_not_wait_here(self) -> None:
        assert threading.current_thread() is not self._thread, "would wait for itself"
        assert self._thread is not None, "the engine was not started"


def _ignore(_: EngineEvent) -> None:
    """Nobody listens."""


def _gathered_trace(
    answers: Mapping[int, Stats], delivered: Sequence[tuple[int, FinishedChunk]]
) -> RunTrace:
    """All workers' full reports, and (stream handle, chunk) as they were delivered."""
    return RunTrace(
        tasks=merge_tasks(
            [np.asarray(stats.records["tasks"]).view(TASK_DTYPE) for stats in answers.values()]
        ),
        chunks=chunk_rows(delivered),
        edges=tuple(edge for stats in answers.values() for edge in stats.edges),
        devices=tuple(
            {**counters, "worker": worker}
            for worker, stats in answers.items()
            for counters in stats.devices
        ),
        records_lost=sum(stats.records_lost for stats in answers.values()),
    )
