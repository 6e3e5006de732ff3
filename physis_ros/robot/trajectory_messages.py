"""JointTrajectory messages <-> arrays, in both directions."""

from __future__ import annotations

import array
from collections.abc import Sequence

import numpy as np
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from physis_ros.node.time_messages import time_to_ns
from physis_ros.robot.joint_motion import CommandedTrajectory, Floats

_NS_PER_S = 1_000_000_000


class TrajectoryWriter:
    """Makes JointTrajectory messages for `names`.

    The next message reuses the point objects: creating them takes three times as long as filling
    them, for every command to the robot. So publish a message and do not keep it; one thread only.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(names)
        self._points: list[JointTrajectoryPoint] = []

    def write(
        self, times_s: Floats, positions: Floats, velocities: Floats, *, start_ns: int = 0
    ) -> JointTrajectory:
        """Times [N] from the start; positions, velocities [N, joints]. `start_ns` 0: the trajectory
        starts on arrival."""
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
    """The content of a message, unchecked."""
    points = message.points
    return CommandedTrajectory(
        joint_names=tuple(message.joint_names),
        times_s=[time_to_ns(point.time_from_start) * 1e-9 for point in points],
        positions=_together([point.positions for point in points]),
        velocities=_together([point.velocities for point in points]),
    )


def _together(rows: Sequence[array.array[float]]) -> Sequence[Sequence[float]] | Floats:
    """[rows, values] in one copy if all rows have one length; else the rows as they are."""
    longest = max(map(len, rows), default=0)
    if not longest or any(len(row) != longest for row in rows):
        return rows
    return np.frombuffer(b"".join(rows), dtype=np.float64).reshape(-1, longest)
