"""ActionChunk messages -> chunks and stamps as plain data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from physis_ros.msg import ActionChunk
from physis_ros.node.time_messages import time_to_ns
from physis_ros.robot.joint_motion import Floats
from physis_ros.robot.joint_readings import with_prefix
from physis_ros.timeline.stream_figures import ChunkStamps
from physis_ros.timeline.timed_chunk import IncomingChunk


def from_chunk(message: ActionChunk, joint_prefix: str = "") -> tuple[IncomingChunk, ChunkStamps]:
    """The chunk, its joints under the robot's names, and its stamps. An array whose size is no
    multiple of the number of joints becomes one row; the timeline refuses it for its shape."""
    joints = len(message.joint_names)
    chunk = IncomingChunk(
        epoch=int(message.epoch),
        chunk_id=int(message.chunk_id),
        capture_oldest_ns=time_to_ns(message.capture_oldest),
        start_ns=time_to_ns(message.start),
        step_ns=time_to_ns(message.step),
        joint_names=tuple(with_prefix(name, joint_prefix) for name in message.joint_names),
        positions=_rows(message.positions, joints),
        velocities=_rows(message.velocities, joints) if len(message.velocities) else None,
    )
    stamps = ChunkStamps(
        epoch=chunk.epoch,
        chunk_id=chunk.chunk_id,
        capture_oldest_ns=chunk.capture_oldest_ns,
        capture_newest_ns=time_to_ns(message.capture_newest),
        receipt_ns=time_to_ns(message.receipt),
        entry_ns=time_to_ns(message.entry),
        exit_ns=time_to_ns(message.header.stamp),
        deadline_ns=time_to_ns(message.deadline),
        start_ns=chunk.start_ns,
        missed=bool(message.missed),
        clock_suspect=bool(message.clock_suspect),
    )
    return chunk, stamps


def _rows(values: Sequence[float], joints: int) -> Floats:
    flat = np.asarray(values, dtype=np.float64)
    fits = joints > 0 and flat.size % joints == 0
    return flat.reshape(-1, joints) if fits else flat.reshape(1, -1)
