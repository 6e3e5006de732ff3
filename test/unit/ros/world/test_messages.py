"""A world's camera, and a trajectory on the world's own time."""

from __future__ import annotations

import pytest
from builtin_interfaces.msg import Time
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from physis_ros.world.codec import WorldContract
from physis_ros.world.messages import camera_info, commanded_trajectory


def test_the_camera_is_a_pinhole_in_the_middle_of_the_frame() -> None:
    contract = WorldContract(
        joint_names=("a",), frame_size=(48, 96), frames=3, step_s=0.1, camera_fovy_deg=90.0
    )
    info = camera_info(contract, stamp=Time(sec=7), frame_id="here")
    assert (info.width, info.height) == (96, 48)
    assert list(info.k) == pytest.approx([24.0, 0.0, 48.0, 0.0, 24.0, 24.0, 0.0, 0.0, 1.0])
    assert list(info.p[:3]) == list(info.k[:3])
    assert (info.header.stamp.sec, info.header.frame_id) == (7, "here")


@pytest.mark.parametrize(("stamp", "start_s"), [(Time(), None), (Time(sec=12), 2.0)])
def test_a_stamp_is_a_start_and_none_is_now(stamp: Time, start_s: float | None) -> None:
    point = JointTrajectoryPoint(positions=[1.0], velocities=[0.5])
    point.time_from_start.nanosec = 250_000_000
    message = JointTrajectory(joint_names=["a"], points=[point])
    message.header.stamp = stamp
    found = commanded_trajectory(message, lambda ns: (ns - 10_000_000_000) / 1e9)
    assert found.start_s == start_s
    assert found.joint_names == ("a",)
    assert found.points[0].time_from_start_s == pytest.approx(0.25)
    assert found.points[0].positions == (1.0,)
    assert found.points[0].velocities == (0.5,)
