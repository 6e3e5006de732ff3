"""JointTrajectory and ActionChunk messages <-> arrays, in both directions."""

from __future__ import annotations

import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from physis_ros.safety.checks import CommandedTrajectory
from physis_ros.timeline.stream_figures import ChunkStamps
from physis_ros.timeline.timed_chunk import IncomingChunk

Floats = npt.NDArray[np.float64]

_NS_PER_S = 1_000_000_000


def nanoseconds(stamp: Any) -> int:
    """builtin_interfaces Time or Duration."""
    return int(stamp.sec) * _NS_PER_S + int(stamp.nanosec)


class TrajectoryWriter:
    """Makes JointTrajectory messages for `names`. The points of a message are used again by the
    next one: to make them anew takes three times as long as to fill them, for each command on its
    way to the robot. So a message is to be published, not kept; one thread calls.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(names)
        self._points: list[JointTrajectoryPoint] = []

    def write(
        self, times_s: Floats, positions: Floats, velocities: Floats, *, start_ns: int = 0
    ) -> JointTrajectory:
        """times [N] from the start; positions, velocities [N, joints]. `start_ns` 0: it starts on
        arrival."""
        message = JointTrajectory(joint_names=self._names)
        message.header.stamp.sec, message.header.stamp.nanosec = divmod(start_ns, _NS_PER_S)
        while len(self._points) < len(times_s):
            self._points.append(JointTrajectoryPoint())
        points = self._points[: len(times_s)]
        for point, time_s, position, velocity in zip(
            points, times_s.tolist(), positions.tolist(), velocities.tolist()
        ):
            point.positions, point.velocities = position, velocity
            offset = point.time_from_start
            offset.sec, offset.nanosec = divmod(round(time_s * 1e9), _NS_PER_S)
        message.points = points
        return message


def from_trajectory(message: JointTrajectory) -> CommandedTrajectory:
    """As it came: nothing is checked here."""
    points = message.points
    return CommandedTrajectory(
        joint_names=tuple(message.joint_names),
        times_s=[nanoseconds(point.time_from_start) * 1e-9 for point in points],
        positions=_together([point.positions for point in points]),
        velocities=_together([point.velocities for point in points]),
    )


def _together(rows: Sequence[array.array[float]]) -> Sequence[Sequence[float]] | Floats:
    """[rows, values] at once, where all rows are as long; numpy would look at every value."""
    longest = max(map(len, rows), default=0)
    if not longest or any(len(row) != longest for row in rows):
        return rows
    return np.frombuffer(b"".join(rows), dtype=np.float64).reshape(-1, longest)


def from_chunk(message: Any) -> tuple[IncomingChunk, ChunkStamps]:
    """An ActionChunk. Arrays that do not divide by the number of joints keep one row, and are
    refused
    as such by the timeline."""
    joints = len(message.joint_names)
    chunk = IncomingChunk(
        epoch=int(message.epoch),
        chunk_id=int(message.chunk_id),
        capture_oldest_ns=nanoseconds(message.capture_oldest),
        start_ns=nanoseconds(message.start),
        step_ns=nanoseconds(message.step),
        joint_names=tuple(message.joint_names),
        positions=_rows(message.positions, joints),
        velocities=_rows(message.velocities, joints) if len(message.velocities) else None,
    )
    stamps = ChunkStamps(
        epoch=chunk.epoch,
        chunk_id=chunk.chunk_id,
        capture_oldest_ns=chunk.capture_oldest_ns,
        capture_newest_ns=nanoseconds(message.capture_newest),
        receipt_ns=nanoseconds(message.receipt),
        entry_ns=nanoseconds(message.entry),
        exit_ns=nanoseconds(message.header.stamp),
        deadline_ns=nanoseconds(message.deadline),
        start_ns=chunk.start_ns,
        missed=bool(message.missed),
        clock_suspect=bool(message.clock_suspect),
    )
    return chunk, stamps


def _rows(values: Sequence[float], joints: int) -> Floats:
    flat = np.asarray(values, dtype=np.float64)
    fits = joints > 0 and flat.size % joints == 0
    return flat.reshape(-1, joints) if fits else flat.reshape(1, -1)
