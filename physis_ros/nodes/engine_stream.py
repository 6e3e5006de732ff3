"""One robot's stream at the engine node: its topics, its lookahead, its epochs.

Observations come on the executor's thread, chunks on the engine's; what both touch is under a lock.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from physis_core.runtime.engine import Engine
from physis_core.types import FinishedChunk, Refused, UserError
from physis_ros.conversions.chunks import chunk_message, observation_from_message
from physis_ros.conversions.time import SteadyToRos
from physis_ros.interfaces import OBSERVATION, Topic, in_namespace
from physis_ros.lookahead import LookaheadConfig, LookaheadEstimator
from physis_ros.msg import Observation as ObservationMessage
from physis_ros.nodes.base import PhysisNode
from physis_ros.wam_codec import WamContract, action_positions

_REMEMBERED = 512


class EngineStream:
    """`epoch_base` is added to the engine's own count, so that epochs rise over engine restarts
    too."""

    def __init__(
        self,
        node: PhysisNode[Any],
        engine: Engine,
        contract: WamContract,
        *,
        stream_id: str,
        namespace: str,
        chunk_topic: Topic,
        lookahead: LookaheadConfig,
        epoch_base: int,
        clock: Callable[[], SteadyToRos],
    ) -> None:
        self.stream_id = stream_id
        self.namespace = namespace
        self.period_s = 0.0
        self.priority = 0
        self.reason = ""
        self.epoch = epoch_base
        self.observations = 0
        self.chunks = 0
        self.refused = 0
        self.instruction = ""
        self._node = node
        self._engine = engine
        self._contract = contract
        self._epoch_base = epoch_base
        self._clock = clock
        self._lock = threading.Lock()
        self._estimator = LookaheadEstimator(lookahead)
        # By observation id: what the model was told, and whether its stamps are suspect.
        self._told: OrderedDict[int, tuple[float, bool]] = OrderedDict()
        self._last_id = -1
        self._chunks = node.publisher(in_namespace(chunk_topic, namespace))
        self._subscription = node.subscribe(
            in_namespace(OBSERVATION, namespace), self._take_observation
        )

    @property
    def lookahead_s(self) -> float:
        with self._lock:
            return self._estimator.value_s

    @property
    def lookahead_capped(self) -> bool:
        with self._lock:
            return self._estimator.capped

    def destroy(self) -> None:
        self._node.destroy_subscription(self._subscription)
        self._node.destroy_publisher(self._chunks)

    def reopened(self, epoch_base: int) -> None:
        """The engine's count of this stream began anew."""
        self._epoch_base = epoch_base
        self.epoch = epoch_base
        self.reason = ""
        self.instruction = ""
        self.restarted()

    def restarted(self) -> None:
        with self._lock:
            self._estimator.restart()

    def _take_observation(self, message: ObservationMessage) -> None:
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
        if message.instruction != self.instruction:
            self._change_instruction(message.instruction)
        number = observation.stamp.observation_id
        with self._lock:
            if number < self._last_id:
                self._told.clear()  # observation_node was started anew and counts from 0
            self._last_id = number
            self._told[number] = (lookahead_s, bool(message.clock_suspect))
            while len(self._told) > _REMEMBERED:
                self._told.popitem(last=False)
        refused = self._engine.observe(self.stream_id, observation)
        if refused is not None:
            self._refuse(f"{self.stream_id}: {refused.reason}")
            return
        self.observations += 1
        self.reason = ""

    def _change_instruction(self, instruction: str) -> None:
        self.instruction = instruction
        refused = self._engine.set_condition(
            self.stream_id, {"instruction": instruction}, timeout_s=2.0
        )
        if isinstance(refused, Refused):
            self._node.get_logger().warning(f"{self.stream_id}: instruction: {refused.reason}")

    def _refuse(self, reason: str) -> None:
        self.refused += 1
        if reason != self.reason:
            self._node.get_logger().error(reason)
        self.reason = reason

    def take_chunk(self, chunk: FinishedChunk) -> None:
        """On the engine's thread: publish it."""
        try:
            positions = action_positions(self._contract, chunk.outputs)
        except UserError as error:
            self._refuse(f"{self.stream_id}: chunk {chunk.chunk_id}: {error}")
            return
        clock = self._clock()
        newest = max(chunk.observations, key=lambda stamp: stamp.capture_newest_ns)
        age_s = (clock.ros_ns_at(chunk.exit_s) - newest.capture_newest_ns) / 1e9
        with self._lock:
            told = [self._told.get(stamp.observation_id) for stamp in chunk.observations]
            newest_told = self._told.get(newest.observation_id)
            self._estimator.add(age_s)
        if newest_told is None:
            return  # of an observation_node that is no more
        self.epoch = self._epoch_base + chunk.epoch
        self.chunks += 1
        self._chunks.publish(
            chunk_message(
                chunk,
                positions,
                self._contract,
                epoch=self.epoch,
                lookahead_s=newest_told[0],
                clock_suspect=any(known is None or known[1] for known in told),
                clock=clock,
            )
        )
