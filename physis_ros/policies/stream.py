"""One robot's stream at the policy node: its topics, its requests, its epochs.

Observations come on the executor's thread, everything of the server on the link's; what both touch
is under a lock.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from physis_core.observe.percentiles import SlidingWindow
from physis_core.types import FinishedChunk, ObservationStamp, Percentiles, UserError
from physis_ros.engine.chunk_messages import chunk_message, observation_stamp
from physis_ros.engine.lookahead import LookaheadConfig, LookaheadEstimator
from physis_ros.engine.wam_codec import WamContract
from physis_ros.msg import Observation as ObservationMessage
from physis_ros.node.base import PhysisNode
from physis_ros.node.image_messages import image_to_rgb
from physis_ros.node.interfaces import OBSERVATION, action_chunk
from physis_ros.node.time_messages import SteadyToRos
from physis_ros.node.waiting import one_line
from physis_ros.policies.link import LinkConfig, PolicyLink
from physis_ros.policies.parameters import PolicyParameters
from physis_ros.policies.payload import (
    LastChunk,
    RobotInputs,
    actions_of,
    extra_inputs,
    positions_of,
    put,
    request_of,
)
from physis_ros.policies.requests import Request
from physis_ros.policies.server_identity import misfit
from physis_ros.policies.wire import Open, inputs_that_are_taken
from physis_ros.robot.policy_contract import PolicyContract

_ASSERTIONS_A_LEASE = 4
_SILENCE_S = 1.0
"""Without an observation for so long, the stream waits for one."""
_WINDOW = 512
_REMEMBERED = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """An observation that fits the contract. `values`: the request but for what is known only when
    it is sent."""

    stamp: ObservationStamp
    joints: Mapping[str, float]
    values: Mapping[str, Any]
    clock_suspect: bool


class PolicyStream:
    """From open to close. `epoch` rises over restarts of the node too."""

    def __init__(
        self,
        node: PhysisNode[PolicyParameters],
        contract: PolicyContract,
        *,
        link: LinkConfig,
        open_connection: Open,
        epoch: int,
        instruction: str = "",
        failed: Callable[[BaseException], None],
    ) -> None:
        params = node.params
        self.stream_id = params.stream_id
        self.epoch = epoch
        self.reason = ""
        self.observations = 0
        self.chunks = 0
        self.refused = 0
        self._node = node
        self._contract = contract
        self._instruction = instruction
        self._placed = WamContract(
            camera_names=contract.camera_names,
            joint_names=contract.actions.joints,
            image_size=contract.image_size,
            action_steps=contract.actions.horizon,
            step_s=contract.actions.step_s,
            lookahead_max_s=contract.actions.horizon * contract.actions.step_s,
        )
        self._lock = threading.Lock()
        self._estimator = LookaheadEstimator(self._lookahead_config(math.inf))
        self._responses_s = SlidingWindow(_WINDOW)
        self._server_ms = SlidingWindow(_WINDOW)
        self._inputs: frozenset[str] = frozenset()
        self._lookahead_given: dict[int, float] = {}
        self._last: LastChunk | None = None
        self._observed_s = -math.inf
        self.link: PolicyLink[Seen] = PolicyLink(link, open_connection, self, failed)
        topic = action_chunk(params.deadline_s, params.lease_s, offered=True)
        self._chunks = node.publisher(topic)
        self._beat = self.link.beat
        self._alive = node.steady_timer(params.lease_s / _ASSERTIONS_A_LEASE, self._assert_alive)
        self._subscription = node.subscribe(OBSERVATION, self._take_observation)
        self.link.start()

    # The executor's thread ---------------------------------------------------------------------

    def close(self) -> None:
        self.link.stop()
        self._node.destroy_timer(self._alive)
        self._node.destroy_subscription(self._subscription)
        self._node.destroy_publisher(self._chunks)

    def restart(self) -> None:
        """A new epoch: what was seen before counts no more."""
        self.link.restart()

    def waits_for(self, now_s: float) -> str:
        """What does not come; empty where chunks do, or may at once."""
        if self.link.state:
            return f"{self.stream_id}: the policy server: {self.link.state}"
        if now_s - self._observed_s < _SILENCE_S:
            return ""
        if self.reason:
            return f"{self.stream_id}: an observation that fits: {self.reason}"
        topic = self._subscription.topic_name
        if not self._node.count_publishers(topic):
            return f"{self.stream_id}: an observation; nobody publishes {topic}"
        return f"{self.stream_id}: an observation; the publisher of {topic} sends none"

    @property
    def lookahead_s(self) -> float:
        with self._lock:
            return self._estimator.value_s

    def response_s(self) -> Percentiles:
        with self._lock:
            return self._responses_s.percentiles()

    def server_ms(self) -> Percentiles:
        """What the server says that it computed for."""
        with self._lock:
            return self._server_ms.percentiles()

    def _assert_alive(self) -> None:
        """Only while the link's loop turns and a server is connected."""
        beat = self.link.beat
        if beat != self._beat and not self.link.state:
            self._chunks.assert_liveliness()
        self._beat = beat

    def _take_observation(self, message: ObservationMessage) -> None:
        if message.stream_id != self.stream_id:
            reason = f"this topic belongs to {self.stream_id!r}"
            self._refuse(str(UserError("observation.stream_id", message.stream_id, reason)))
            return
        try:
            joints = dict(zip(message.joint_names, message.positions))
            inputs = RobotInputs(
                images={
                    name: image_to_rgb(image, field=f"images[{name}]")
                    for name, image in zip(message.camera_names, message.images)
                },
                joints=joints,
                instruction=message.instruction or self._instruction,
            )
            values = request_of(self._contract, inputs)
        except UserError as error:
            self._refuse(f"{self.stream_id}: {error}")
            return
        self.observations += 1
        self._observed_s = self._node.steady_s()
        self.reason = ""
        seen = Seen(
            stamp=observation_stamp(message),
            joints=joints,
            values=values,
            clock_suspect=bool(message.clock_suspect),
        )
        self.link.offer(seen, self._observed_s)

    # The link's thread -------------------------------------------------------------------------

    def server_known(self, metadata: Mapping[str, Any]) -> str:
        reason = misfit(self._contract, metadata)
        if reason:
            return reason
        taken = inputs_that_are_taken(metadata)
        longest_s = metadata.get("lookahead_max_s")
        with self._lock:
            if taken != self._inputs or not self._estimator.measured:
                most_s = float(longest_s) if isinstance(longest_s, float) else math.inf
                self._estimator = LookaheadEstimator(self._lookahead_config(most_s))
            self._inputs = taken
        self._node.get_logger().info(f"{self.stream_id}: the policy server answers")
        return ""

    def request_values(self, request: Request[Seen]) -> Mapping[str, Any]:
        values = dict(request.observation.values)
        delay_s = self.lookahead_s
        if self._contract.session is not None:
            put(values, self._contract.session, f"{self.stream_id}-{self.epoch}")
        values.update(
            extra_inputs(
                self._contract,
                self._inputs,
                request_id=request.request_id,
                delay_s=delay_s,
                last=self._last,
                capture_ns=request.observation.stamp.capture_newest_ns,
            )
        )
        if "lookahead_s" in self._inputs:
            self._lookahead_given[request.request_id] = delay_s
            while len(self._lookahead_given) > _REMEMBERED:
                self._lookahead_given.pop(next(iter(self._lookahead_given)))
        return values

    def take_reply(self, request: Request[Seen], reply: Mapping[str, Any], now_s: float) -> None:
        seen = request.observation
        given_s = self._lookahead_given.pop(request.request_id, 0.0)
        try:
            actions = actions_of(self._contract, reply)
            positions = positions_of(self._contract, actions, seen.joints)
        except UserError as error:
            self._refuse(f"{self.stream_id}: chunk {request.chunk_id}: {error}")
            return
        steady_s, ros_ns = self._node.both_clocks()
        clock = SteadyToRos(ros_ns=ros_ns, steady_s=steady_s)
        start_ns = seen.stamp.capture_newest_ns + round(given_s * 1e9)
        with self._lock:
            self._estimator.add((clock.ros_ns_at(now_s) - seen.stamp.capture_newest_ns) / 1e9)
            self._responses_s.add(now_s - request.entry_s)
            timing = reply.get("server_timing")
            if isinstance(timing, Mapping) and isinstance(timing.get("infer_ms"), (int, float)):
                self._server_ms.add(float(timing["infer_ms"]))
        self._last = LastChunk(actions=actions, start_ns=start_ns)
        chunk = FinishedChunk(
            stream_id=self.stream_id,
            epoch=self.epoch,
            chunk_id=request.chunk_id,
            outputs={},
            observations=(seen.stamp,),
            release_s=request.release_s,
            entry_s=request.entry_s,
            exit_s=now_s,
            deadline_s=request.deadline_s,
            delivered_s=now_s,
        )
        try:
            message = chunk_message(
                chunk,
                positions,
                self._placed,
                epoch=self.epoch,
                lookahead_s=given_s,
                clock_suspect=seen.clock_suspect,
                clock=clock,
            )
        except UserError as error:
            self._refuse(f"{self.stream_id}: chunk {request.chunk_id}: {error}")
            return
        self.chunks += 1
        self._chunks.publish(message)

    def server_refused(self, reason: str) -> None:
        self._refuse(f"{self.stream_id}: the server refused a request: {reason}")

    def restarted(self) -> None:
        with self._lock:
            self.epoch += 1
            self._estimator.restart()
            self._last = None

    # Either thread -----------------------------------------------------------------------------

    def _refuse(self, reason: str) -> None:
        self.refused += 1
        reason = one_line(reason)
        if reason != self.reason:
            self._node.get_logger().error(reason)
        self.reason = reason

    def _lookahead_config(self, most_s: float) -> LookaheadConfig:
        params = self._node.params
        return LookaheadConfig(
            initial_s=min(params.lookahead_initial_s, most_s),
            max_s=most_s,
            quantile=params.lookahead_quantile,
        )
