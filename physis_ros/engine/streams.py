"""The streams of the engine node: which are open, under which epochs, and how they open and close.

The engine answers after its workers have, which may take seconds. So the parts of opening and
closing that touch ROS run on the executor, the engine's part on a thread of this module, and a
caller on the executor awaits it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar, cast

from rclpy.task import Future

from physis_core.engine.engine import Engine
from physis_core.engine.stream import StreamConfig, StreamHandle
from physis_core.types import Refresh, Refused
from physis_ros.engine.lookahead import LookaheadConfig
from physis_ros.engine.parameters import EngineParameters
from physis_ros.engine.stream import EngineStream, StreamSettings
from physis_ros.node.base import PhysisNode
from physis_ros.node.interfaces import action_chunk

T = TypeVar("T")

ANSWER_S = 5.0
"""How long the workers may take to open, drain or change a stream."""
_THREADS = 4


class EngineStreams:
    """From activate to deactivate. All methods are called on the executor (or before it spins).

    `last_epoch`: the newest epoch of each stream, kept by the node over its activations.
    """

    def __init__(
        self,
        node: PhysisNode[EngineParameters],
        engine: Engine,
        last_epoch: dict[str, int],
    ) -> None:
        self.by_id: dict[str, EngineStream] = {}
        self._node = node
        self._engine = engine
        self._last_epoch = last_epoch
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="engine-streams")

    def open(self, settings: StreamSettings) -> Refused | None:
        """Open (or, where it failed, open again) and wait for the engine."""
        config = self._begin(settings)
        return self._settle(settings, self._open(settings, config))

    async def open_later(self, settings: StreamSettings) -> Refused | None:
        """The same, with the executor free meanwhile."""
        config = self._begin(settings)
        opened = await self._apart(lambda: self._open(settings, config))
        assert opened is not None, "what was awaited has its result"
        return self._settle(settings, opened)

    def _open(self, settings: StreamSettings, config: StreamConfig) -> StreamHandle | Refused:
        """On the given route, or on the first of its model that has room. The engine admits."""
        routes = settings.model.routes if settings.route is None else (settings.route,)
        opened: StreamHandle | Refused = Refused(reason="no route runs its model")
        for route in routes:
            opened = self._engine.open_stream(replace(config, route=route), timeout_s=ANSWER_S)
            if not isinstance(opened, Refused) or not opened.short_resource:
                break
        return opened

    async def close_later(self, stream_id: str, *, drain: bool) -> bool:
        """False where it did not drain in time and was cancelled."""
        stream = self.by_id[stream_id]
        stream.closing = True
        closed = await self._apart(
            lambda: self._engine.close_stream(stream_id, drain=drain, timeout_s=ANSWER_S)
        )
        # Not before: what drains is still published.
        if self.by_id.get(stream_id) is stream:
            self._take_out(stream_id)
        assert closed is not None, "what was awaited has its result"
        return closed

    def close_all(self) -> None:
        """At once, without draining. Waits for what is under way; nothing opens afterwards."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        for stream_id in list(self.by_id):
            if not self._engine.failure:
                self._engine.close_stream(stream_id, drain=False, timeout_s=ANSWER_S)
            self._take_out(stream_id)

    def restart(self, reason: str) -> None:
        """A new epoch for every stream: what was seen before counts no more."""
        if self._engine.failure:
            return
        for stream in self.by_id.values():
            self._engine.restart_stream(stream.stream_id, reason)
            stream.restarted()

    def _begin(self, settings: StreamSettings) -> StreamConfig:
        params = self._node.params
        epoch_base = self._new_epoch_base(settings.stream_id)
        stream = self.by_id.get(settings.stream_id)
        if stream is None:
            # Its topics come first: a chunk may leave as soon as the engine knows the stream.
            self.by_id[settings.stream_id] = EngineStream(
                self._node,
                self._engine,
                settings=settings,
                chunk_topic=action_chunk(params.deadline_s, params.lease_s, offered=True),
                lookahead=LookaheadConfig(
                    initial_s=params.lookahead_initial_s,
                    max_s=settings.model.contract.lookahead_max_s,
                    quantile=params.lookahead_quantile,
                ),
                epoch_base=epoch_base,
                apart=self._apart,
            )
        else:
            stream.reopened(epoch_base)
        return StreamConfig(
            stream_id=settings.stream_id,
            period_s=settings.period_s,
            release=cast(Any, params.release),
            seed=params.seed,
            refresh=cast(Refresh, params.refresh),
            priority=settings.priority,
            condition={"instruction": settings.instruction} if settings.instruction else {},
            max_age_s=params.max_age_s,
            max_action_age_s=params.max_action_age_s,
            expected_response_s=params.expected_response_s,
            margin_s=params.margin_s,
            hold=params.hold,
        )

    def _settle(self, settings: StreamSettings, opened: StreamHandle | Refused) -> Refused | None:
        if isinstance(opened, Refused):
            if settings.stream_id in self.by_id:
                self._take_out(settings.stream_id)
            return opened
        stream = self.by_id.get(settings.stream_id)
        if stream is None:
            return Refused(reason="the node was deactivated meanwhile")
        stream.opened(settings)
        return None

    def _take_out(self, stream_id: str) -> None:
        stream = self.by_id.pop(stream_id)
        self._last_epoch[stream_id] = stream.epoch
        stream.destroy()

    def _new_epoch_base(self, stream_id: str) -> int:
        """Above every epoch of this stream, also in processes that are no more: wall seconds."""
        stream = self.by_id.get(stream_id)
        last = stream.epoch if stream is not None else self._last_epoch.get(stream_id, 0)
        return max(int(time.time()), last + 1)

    def _apart(self, work: Callable[[], T]) -> Future[T]:
        """Run `work` on a thread of ours; what awaits it goes on on the executor."""
        future: Future[T] = Future(executor=self._node.executor)

        def run() -> None:
            try:
                result = work()
            except Exception as error:  # noqa: BLE001  raised again where it is awaited
                future.set_exception(error)
            else:
                future.set_result(result)

        self._threads.submit(run)
        return future
