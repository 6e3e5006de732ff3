"""Observation messages -> core observations, finished chunks -> ActionChunk messages."""

from __future__ import annotations

import array
import math

from physis_core.types import Array, FinishedChunk, Observation, ObservationStamp
from physis_ros.engine.wam_codec import WamContract, observation_tensors
from physis_ros.msg import ActionChunk
from physis_ros.msg import Observation as ObservationMessage
from physis_ros.node.image_messages import image_to_rgb
from physis_ros.node.time_messages import (
    SteadyToRos,
    ns_to_time,
    seconds_to_duration,
    time_to_ns,
)


def observation_stamp(message: ObservationMessage) -> ObservationStamp:
    return ObservationStamp(
        observation_id=int(message.observation_id),
        capture_oldest_ns=time_to_ns(message.capture_oldest),
        capture_newest_ns=time_to_ns(message.capture_newest),
        receipt_ns=time_to_ns(message.receipt),
    )


def observation_from_message(
    message: ObservationMessage, contract: WamContract, lookahead_s: float
) -> Observation:
    """Raise UserError if a camera or joint is missing, or a size or value is wrong."""
    images = {
        name: image_to_rgb(image, field=f"images[{name}]")
        for name, image in zip(message.camera_names, message.images)
    }
    return Observation(
        stamp=observation_stamp(message),
        tensors=observation_tensors(
            contract,
            images=images,
            joint_names=message.joint_names,
            positions=message.positions,
            lookahead_s=lookahead_s,
        ),
    )


def chunk_message(
    chunk: FinishedChunk,
    positions: Array,
    contract: WamContract,
    *,
    epoch: int,
    lookahead_s: float,
    clock_suspect: bool,
    clock: SteadyToRos,
) -> ActionChunk:
    """`positions` float64[steps, joints]; `lookahead_s`: that of the newest observation.

    Ages count from the oldest observation that touched the chunk; its points are placed by the
    newest.
    """
    oldest = min(chunk.observations, key=lambda stamp: stamp.capture_oldest_ns)
    newest_ns = max(stamp.capture_newest_ns for stamp in chunk.observations)
    message = ActionChunk()
    message.header.stamp = ns_to_time(clock.ros_ns_at(chunk.exit_s))
    message.stream_id = chunk.stream_id
    message.epoch = epoch
    message.chunk_id = chunk.chunk_id
    message.capture_oldest = ns_to_time(oldest.capture_oldest_ns)
    message.capture_newest = ns_to_time(newest_ns)
    message.receipt = ns_to_time(oldest.receipt_ns)
    message.entry = ns_to_time(clock.ros_ns_at(chunk.entry_s))
    if math.isfinite(chunk.deadline_s):
        message.deadline = ns_to_time(clock.ros_ns_at(chunk.deadline_s))
    message.missed = chunk.missed
    message.clock_suspect = clock_suspect
    message.start = ns_to_time(newest_ns + round(lookahead_s * 1e9))
    message.step = seconds_to_duration(contract.step_s)
    message.joint_names = list(contract.joint_names)
    message.positions = array.array("d", positions.reshape(-1).tolist())
    return message
