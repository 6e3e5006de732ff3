import numpy as np
import pytest
from rclpy.serialization import deserialize_message, serialize_message
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from physis_ros.robot.trajectory_messages import TrajectoryWriter, from_trajectory

NAMES = ("lift", "bend")


def sent(message):
    """What the other side reads."""
    return deserialize_message(serialize_message(message), JointTrajectory)


def test_a_trajectory_arrives_as_it_was_written():
    times = np.array([0.05, 0.1, 1.25])
    positions, velocities = np.arange(6.0).reshape(3, 2), -np.arange(6.0).reshape(3, 2)
    message = sent(
        TrajectoryWriter(NAMES).write(times, positions, velocities, start_ns=2_000_000_007)
    )
    assert (message.header.stamp.sec, message.header.stamp.nanosec) == (2, 7)
    read = from_trajectory(message)
    assert read.joint_names == NAMES
    assert read.times_s == pytest.approx(times)
    assert np.array_equal(read.positions, positions)
    assert np.array_equal(read.velocities, velocities)


@pytest.mark.parametrize("counts", [(4, 2), (2, 4), (3, 3)])
def test_nothing_of_a_message_is_left_in_the_next(counts):
    writer = TrajectoryWriter(NAMES)
    for number, count in enumerate(counts):
        positions = np.full((count, 2), float(number))
        read = from_trajectory(
            sent(writer.write(np.arange(count) + 1.0, positions, -positions, start_ns=0))
        )
        assert read.times_s == pytest.approx(np.arange(count) + 1.0)
        assert np.array_equal(read.positions, positions)
        assert np.array_equal(read.velocities, -positions)


def test_ragged_rows_arrive_as_they_came():
    message = JointTrajectory(joint_names=NAMES)
    message.points = [
        JointTrajectoryPoint(positions=[1.0, 2.0], velocities=[0.5]),
        JointTrajectoryPoint(positions=[3.0]),
    ]
    read = from_trajectory(sent(message))
    assert [list(row) for row in read.positions] == [[1.0, 2.0], [3.0]]
    assert [list(row) for row in read.velocities] == [[0.5], []]
