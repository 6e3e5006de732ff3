"""One world at the world node: its topics, its time, its arm's commands, its frames.

Everything runs on the executor's thread but `take_chunk`, which the engine's thread calls; what
both touch is under a lock.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
from rclpy.task import Future
from std_msgs.msg import String
from trajectory_msgs.msg import JointTrajectory

from physis_core.engine.engine import Engine
from physis_core.model.description import COMMANDS, FRAMES
from physis_core.types import Array, FinishedChunk, Observation, ObservationStamp, UserError
from physis_ros.node.base import PhysisNode
from physis_ros.node.image_messages import rgb_to_compressed, rgb_to_image
from physis_ros.node.interfaces import (
    WORLD_CAMERA_INFO,
    WORLD_COMMAND,
    WORLD_FRAME,
    WORLD_FRAME_COMPRESSED,
    WORLD_PROMPT,
    in_namespace,
)
from physis_ros.node.threads import OnDemandThread
from physis_ros.node.time_messages import ns_to_time
from physis_ros.robot.point_interpolation import MotionState
from physis_ros.robot.trajectory_controller import ControllerConfig, TrajectoryController
from physis_ros.world.clock import FrameSpread, FreeClock
from physis_ros.world.codec import WorldContract
from physis_ros.world.messages import camera_info, commanded_trajectory, wrong_number
from physis_ros.world.parameters import WorldParameters

_WAITING_CHUNKS = 8
"""Frames of more finished chunks than this do not wait to be published; the oldest go."""
_SPREAD_SHARE = 0.9
_PROMPT_S = 30.0
"""How long the workers may take to come to a new prompt."""


class World:
    """From activate to deactivate. `free`: whether it follows ROS time."""

    def __init__(
        self,
        node: PhysisNode[WorldParameters],
        engine: Engine,
        contract: WorldContract,
        *,
        stream_id: str,
        namespace: str,
        free: bool,
        epoch_base: int,
        prompts: OnDemandThread,
    ) -> None:
        self.stream_id = stream_id
        self.epoch = epoch_base
        self.reason = ""
        self.frames_out = 0
        self.frames_lost = 0
        self.refused = 0
        self._node = node
        self._engine = engine
        self._contract = contract
        self._free = free
        self._prompts = prompts
        self._prompt = self._wanted_prompt = node.params.prompt
        self._first: Mapping[str, Array] | None = None
        self._clock = FreeClock(chunk_ns=contract.chunk_ns, next_ns=0)
        self._origin_ns = 0
        self._controller: TrajectoryController | None = None
        self._number = 0
        self._lock = threading.Lock()
        self._waiting: deque[tuple[int, Array]] = deque()
        self._steps: dict[int, Future[FinishedChunk | None]] = {}
        self._last_step: Future[FinishedChunk | None] | None = None
        self._spread = FrameSpread(gap_s=_SPREAD_SHARE * contract.step_s if free else 0.0)
        self._raw = node.publisher(in_namespace(WORLD_FRAME, namespace))
        self._compressed = node.publisher(in_namespace(WORLD_FRAME_COMPRESSED, namespace))
        self._info = node.publisher(in_namespace(WORLD_CAMERA_INFO, namespace))
        self._subscriptions: list[Any] = []
        if free and contract.joint_names:
            self._subscriptions.append(
                node.subscribe(in_namespace(WORLD_COMMAND, namespace), self._take_command)
            )
        if contract.takes_prompt:
            self._subscriptions.append(
                node.subscribe(in_namespace(WORLD_PROMPT, namespace), self._take_prompt)
            )

    @property
    def begun(self) -> bool:
        """Whether it was given its first frame, or needs none."""
        return self._first is not None

    @property
    def skipped(self) -> int:
        """Chunks left out because the world was behind."""
        return self._clock.skipped

    def destroy(self) -> None:
        self._drop_all()
        for subscription in self._subscriptions:
            self._node.destroy_subscription(subscription)
        for publisher in (self._raw, self._compressed, self._info):
            self._node.destroy_publisher(publisher)

    # Reset and time ----------------------------------------------------------------------------

    def begin(self, blank: Mapping[str, Array], now_ns: int) -> None:
        """Begin without a first frame, now. `blank`: the observation tensors that hold none."""
        self._first = blank
        self._clock.next_ns = now_ns

    def reset(self, first: Mapping[str, Array], start: Array, first_ns: int, now_ns: int) -> int:
        """Begin anew from a first frame; returns the new epoch.

        Args:
            first: the observation tensors that hold it. start: joints [J] rad in the first frame.
            first_ns: what the first frame depicts; the world's own time goes on from there
                (lockstep). A free world goes on from `now_ns`.
        """
        self._engine.restart_stream(self.stream_id, "reset to a first frame")
        self.epoch += 1
        self._drop_all()
        self._first = first
        if self._contract.joint_names:
            self._begin_path(start, now_ns if self._free else first_ns)
        self._clock.next_ns = now_ns if self._free else first_ns + self._contract.step_ns
        return self.epoch

    def clock_jumped(self, now_ns: int) -> None:
        """What was planned on the old time is void; the arm stays where it was commanded last."""
        if not self.begun or not self._free:
            return
        if self._controller is not None:
            self._begin_path(self._controller.commanded.position, now_ns)
        self._clock.jumped(now_ns)

    def _begin_path(self, position: Array, origin_ns: int) -> None:
        self._origin_ns = origin_ns
        self._controller = TrajectoryController(
            ControllerConfig(
                joint_names=self._contract.joint_names,
                interpolate_from_desired_state=True,
                allow_nonzero_velocity_at_trajectory_end=True,
            ),
            _standing(position),
        )

    def _drop_all(self) -> None:
        with self._lock:
            self._waiting.clear()
            steps, self._steps = list(self._steps.values()), {}
        self._last_step = None
        for step in steps:
            step.set_result(None)

    # Free running ------------------------------------------------------------------------------

    def _take_command(self, message: JointTrajectory) -> None:
        if self._controller is None:
            self._refuse("command: the world has no first frame yet: call world/reset")
            return
        now_ns = self._node.now_ns()
        trajectory = commanded_trajectory(message, self._seconds)
        reason = wrong_number(trajectory)
        if reason is None:
            reason = self._controller.accept(trajectory, self._seconds(now_ns))
        if reason is not None:
            self._refuse(f"command: {reason}")
            return
        self.reason = ""

    def go_on(self, now_ns: int) -> None:
        """Start the chunk that is due, if one is."""
        if self._first is None or not self._free:
            return
        first_ns = self._clock.due(now_ns)
        if first_ns is None:
            return
        controller = self._controller
        if controller is None:
            self._observe(None, first_ns, now_ns)
            return
        path = []
        for ns in self._contract.depicted_ns(first_ns):
            state = controller.commanded
            path.append(controller.update(self._seconds(ns), state).state.position)
        self._observe(np.stack(path).astype(np.float32), first_ns, now_ns)

    def _seconds(self, ros_ns: int) -> float:
        return (ros_ns - self._origin_ns) / 1e9

    # The prompt ----------------------------------------------------------------------------------

    def _take_prompt(self, message: String) -> None:
        self._wanted_prompt = message.data
        self._prompts.request()

    def follow_prompt(self) -> None:
        """In the thread of prompts, because to encode one may take seconds: use the newest."""
        wanted = self._wanted_prompt
        if wanted == self._prompt:
            return
        refused = self._engine.set_condition(
            self.stream_id, {"prompt": wanted} if wanted else {}, timeout_s=_PROMPT_S
        )
        self._prompt = wanted
        if refused is not None:
            self._refuse(f"prompt stays as it was: {refused.reason}")

    # Lockstep ----------------------------------------------------------------------------------

    async def step(self, actions: Array) -> tuple[FinishedChunk, list[int]]:
        """Run one chunk of actions [frames, J]; its chunk, and what its frames depict [ns].

        Calls for one world are answered in the order in which they came.

        Raises:
            UserError: the world has no first frame, was reset meanwhile, or the engine refuses.
        """
        future: Future[FinishedChunk | None] = Future(executor=self._node.executor)
        before, self._last_step = self._last_step, future
        epoch = self.epoch
        try:
            if before is not None:
                await before
            if self._first is None:
                raise UserError(
                    "stream_id", self.stream_id, "has no first frame yet: call world/reset"
                )
            if self.epoch != epoch:
                raise UserError("stream_id", self.stream_id, "was reset meanwhile")
            first_ns = self._clock.next_ns
            self._observe(actions, first_ns, self._node.now_ns(), step=future)
            self._clock.next_ns = first_ns + self._contract.chunk_ns
        except UserError:
            # Those behind must not wait for ever.
            future.set_result(None)
            raise
        chunk = await future
        if chunk is None:
            raise UserError("stream_id", self.stream_id, "was reset meanwhile")
        return chunk, self._contract.depicted_ns(first_ns)

    def _observe(
        self,
        actions: Array | None,
        first_ns: int,
        now_ns: int,
        step: Future[FinishedChunk | None] | None = None,
    ) -> None:
        number = self._number
        self._number += 1
        moves = {COMMANDS: actions} if actions is not None and self._contract.joint_names else {}
        assert self._first is not None
        if step is not None:
            with self._lock:
                self._steps[number] = step
        refused = self._engine.observe(
            self.stream_id,
            Observation(
                stamp=ObservationStamp(
                    observation_id=number,
                    capture_oldest_ns=first_ns,
                    capture_newest_ns=first_ns,
                    receipt_ns=now_ns,
                ),
                tensors={**moves, **self._first},
            ),
        )
        if refused is None:
            return
        self._refuse(refused.reason)
        if step is not None:
            with self._lock:
                self._steps.pop(number, None)
            raise UserError("stream_id", self.stream_id, refused.reason)

    def _refuse(self, reason: str) -> None:
        self.refused += 1
        if reason != self.reason:
            self._node.get_logger().error(f"{self.stream_id}: {reason}")
        self.reason = reason

    # Frames out --------------------------------------------------------------------------------

    def take_chunk(self, chunk: FinishedChunk) -> None:
        """On the engine's thread."""
        stamp = chunk.observations[0]
        stamps = self._contract.depicted_ns(stamp.capture_oldest_ns)
        with self._lock:
            self._waiting.extend(zip(stamps, chunk.outputs[FRAMES], strict=True))
            while len(self._waiting) > _WAITING_CHUNKS * self._contract.frames:
                self._waiting.popleft()
                self.frames_lost += 1
            step = self._steps.pop(stamp.observation_id, None)
        if step is not None:
            step.set_result(chunk)

    def publish_due(self, now_s: float) -> None:
        """One frame, where one waits and its turn has come."""
        with self._lock:
            if not self._waiting or not self._spread.may_leave(now_s):
                return
            stamp_ns, frame = self._waiting.popleft()
        params = self._node.params
        stamp = ns_to_time(stamp_ns)
        self._info.publish(camera_info(self._contract, stamp=stamp, frame_id=params.frame_id))
        self._raw.publish(rgb_to_image(frame, stamp=stamp, frame_id=params.frame_id))
        if self._compressed.get_subscription_count():
            self._compressed.publish(
                rgb_to_compressed(
                    frame, stamp=stamp, frame_id=params.frame_id, quality=params.jpeg_quality
                )
            )
        self.frames_out += 1


def _standing(position: Array) -> MotionState:
    zeros = np.zeros(len(position))
    return MotionState(
        position=np.array(position, dtype=np.float64), velocity=zeros, acceleration=zeros
    )
