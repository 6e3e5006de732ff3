"""One robot's stream at the engine node: its topics, its lookahead, its epochs.

Observations come on the executor's thread, chunks on the engine's; what both touch is under a lock.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rclpy.task import Future

from physis_core.engine.engine import Engine
from physis_core.types import FinishedChunk, Refused, UserError
from physis_ros.engine.chunk_messages import chunk_message, observation_from_message
from physis_ros.engine.lookahead import LookaheadConfig, LookaheadEstimator
from physis_ros.engine.served import ServedModel
from physis_ros.engine.wam_codec import action_positions
from physis_ros.msg import Observation as ObservationMessage
from physis_ros.node.base import PhysisNode
from physis_ros.node.interfaces import OBSERVATION, Topic, in_namespace
from physis_ros.node.time_messages import SteadyToRos
from physis_ros.node.waiting import one_line

_REMEMBERED = 512
_CONDITION_S = 5.0
_ASSERTIONS_A_LEASE = 4
_SILENCE_S = 1.0
"""Without an observation for so long, the stream waits for one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """How somebody wants a stream. `namespace`: of its topics, below the node's own. `route`: None:
    the first route of the model that admits it.
    """

    stream_id: str
    namespace: str
    model: ServedModel
    period_s: float
    instruction: str = ""
    priority: int = 0
    route: int | None = None


class EngineStream:
    """`epoch_base` is added to the engine's own count, so that epochs rise over engine restarts
    too. `apart` runs what has to wait for the engine on another thread.
    """

    def __init__(
        self,
        node: PhysisNode[Any],
        engine: Engine,
        *,
        settings: StreamSettings,
        chunk_topic: Topic,
        lookahead: LookaheadConfig,
        epoch_base: int,
        apart: Callable[[Callable[[], Refused | None]], Future[Refused | None]],
    ) -> None:
        self.stream_id = settings.stream_id
        self.settings = settings
        self.closing = False
        self.reason = ""
        self.epoch = epoch_base
        self.observations = 0
        self.chunks = 0
        self.refused = 0
        self._instruction = settings.instruction
        self._changing = False
        self._node = node
        self._engine = engine
        self._contract = settings.model.contract
        self._epoch_base = epoch_base
        self._apart = apart
        self._lock = threading.Lock()
        self._estimator = LookaheadEstimator(lookahead)
        # By observation id: what the model was given, and whether its stamps are suspect.
        self._given: OrderedDict[int, tuple[float, bool]] = OrderedDict()
        self._last_id = -1
        self._observed_s = -math.inf
        self._before_clock = False
        self._destroyed = False
        self._chunks = node.publisher(in_namespace(chunk_topic, settings.namespace))
        lease_s = chunk_topic.qos.liveliness_lease_duration.nanoseconds * 1e-9
        # Between chunks, too: a stream that pauses has an engine.
        self._beat = engine.beat
        self._alive = node.steady_timer(lease_s / _ASSERTIONS_A_LEASE, self._assert_alive)
        self._subscription = node.subscribe(
            in_namespace(OBSERVATION, settings.namespace), self._take_observation
        )

    @property
    def lookahead_s(self) -> float:
        with self._lock:
            return self._estimator.value_s

    @property
    def lookahead_capped(self) -> bool:
        with self._lock:
            return self._estimator.capped

    def _assert_alive(self) -> None:
        """Only while the engine's loop turns and the stream's chunks come: a lease that nobody
        renews tells of an engine that stands, of a lost worker and of a stuck chunk.
        """
        if self._destroyed:
            # The executor had already taken up the timer when another callback closed the stream.
            return
        beat = self._engine.beat
        if beat != self._beat and not self._engine.trouble(self.stream_id):
            self._beat = beat
            self._chunks.assert_liveliness()

    def waits_for(self, now_s: float) -> str:
        """Why no observation comes; empty where one came lately, and while the stream closes."""
        if self.closing or now_s - self._observed_s < _SILENCE_S:
            return ""
        topic = self._subscription.topic_name
        if self.reason:
            return f"{self.stream_id}: an observation that fits: {self.reason}"
        if not self._node.count_publishers(topic):
            return f"{self.stream_id}: an observation; nobody publishes {topic}"
        return f"{self.stream_id}: an observation; the publisher of {topic} sends none"

    def destroy(self) -> None:
        self._destroyed = True
        self._node.destroy_timer(self._alive)
        self._node.destroy_subscription(self._subscription)
        self._node.destroy_publisher(self._chunks)

    def reopened(self, epoch_base: int) -> None:
        """The engine's count of this stream began anew."""
        self._epoch_base = epoch_base
        self.epoch = epoch_base
        self.reason = ""
        self.restarted()

    def opened(self, settings: StreamSettings) -> None:
        """The engine has it now, as it was wished."""
        self.settings = settings
        self._instruction = settings.instruction

    def restarted(self) -> None:
        with self._lock:
            self._estimator.restart()

    def _take_observation(self, message: ObservationMessage) -> None:
        if self.closing:
            return  # the engine takes no more of it
        if message.stream_id != self.stream_id:
            self._refuse(
                str(
                    UserError(
                        "observation.stream_id",
                        message.stream_id,
                        f"this topic belongs to {self.stream_id!r}",
                    )
                )
            )
            return
        lookahead_s = self.lookahead_s
        try:
            observation = observation_from_message(message, self._contract, lookahead_s)
        except UserError as error:
            self._refuse(f"{self.stream_id}: {error}")
            return
        if message.instruction != self._instruction:
            self._instruction = message.instruction
            self._follow_instruction()
        number = observation.stamp.observation_id
        with self._lock:
            if number < self._last_id:
                self._given.clear()  # observation_node was started anew and counts from 0
            self._last_id = number
            self._given[number] = (lookahead_s, bool(message.clock_suspect))
            while len(self._given) > _REMEMBERED:
                self._given.popitem(last=False)
        refused = self._engine.observe(self.stream_id, observation)
        if refused is not None:
            self._refuse(f"{self.stream_id}: {refused.reason}")
            return
        self.observations += 1
        self._observed_s = self._node.steady_s()
        self.reason = ""

    def _follow_instruction(self) -> None:
        """Tell the engine the newest instruction, one change at a time so that none overtakes."""
        if self._changing:
            return
        self._changing = True
        sent = self._instruction

        def changed(done: Future[Refused | None]) -> None:
            self._changing = False
            refused = done.result()
            if refused is not None:
                line = one_line(f"{self.stream_id}: instruction: {refused.reason}")
                self._node.get_logger().warning(line)
            if self._instruction != sent:
                self._follow_instruction()

        change = {"instruction": sent}
        self._apart(
            lambda: self._engine.set_condition(self.stream_id, change, timeout_s=_CONDITION_S)
        ).add_done_callback(changed)

    def _refuse(self, reason: str) -> None:
        self.refused += 1
        reason = one_line(reason)
        if reason != self.reason:
            self._node.get_logger().error(reason)
        self.reason = reason

    def _drop_before_clock(self) -> None:
        """A chunk that entered before simulated time began: no stamp can hold its times."""
        self.refused += 1
        if not self._before_clock:
            self._before_clock = True
            self._node.get_logger().error(
                f"{self.stream_id}: /clock has not begun; chunks are dropped until it has"
            )

    def take_chunk(self, chunk: FinishedChunk) -> None:
        """On the engine's thread: publish it."""
        try:
            positions = action_positions(self._contract, chunk.outputs)
        except UserError as error:
            self._refuse(f"{self.stream_id}: chunk {chunk.chunk_id}: {error}")
            return
        steady_s, ros_ns = self._node.both_clocks()
        clock = SteadyToRos(ros_ns=ros_ns, steady_s=steady_s)
        newest = max(chunk.observations, key=lambda stamp: stamp.capture_newest_ns)
        age_s = (clock.ros_ns_at(chunk.exit_s) - newest.capture_newest_ns) / 1e9
        with self._lock:
            given = [self._given.get(stamp.observation_id) for stamp in chunk.observations]
            newest_given = self._given.get(newest.observation_id)
            self._estimator.add(age_s)
        if newest_given is None:
            return  # of an observation_node that is no more
        self.epoch = self._epoch_base + chunk.epoch
        if clock.ros_ns_at(chunk.entry_s) < 0:
            self._drop_before_clock()
            return
        self._before_clock = False
        try:
            message = chunk_message(
                chunk,
                positions,
                self._contract,
                epoch=self.epoch,
                lookahead_s=newest_given[0],
                clock_suspect=any(known is None or known[1] for known in given),
                clock=clock,
            )
        except UserError as error:
            self._refuse(f"{self.stream_id}: chunk {chunk.chunk_id}: {error}")
            return
        self.chunks += 1
        self._chunks.publish(message)
