"""Between processes of this machine no large image is lost."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import psutil
import pytest
from sensor_msgs.msg import JointState

from physis_ros.node.image_messages import rgb_to_image
from physis_ros.node.interfaces import JOINT_STATES, OBSERVATION, camera_raw
from physis_ros.node.time_messages import ns_to_time, time_to_ns
from physis_ros.stack.transport import PROFILE_VARIABLES

IMAGES = 20
INPUTS = (
    "model:=''",
    "camera_names:=[left, right]",
    "joint_names:=[a]",
    "image_height:=32",
    "image_width:=32",
    "max_age_s:=10.0",
    "max_rate_hz:=1000.0",
)


def test_every_large_image_arrives(ros: Any) -> None:
    if not os.environ.get(PROFILE_VARIABLES[0]):
        pytest.skip("too little room in /dev/shm for the profile of ours")
    cameras = [ros.publisher(camera_raw(name)) for name in ("left", "right")]
    joints = ros.publisher(JOINT_STATES)
    heard = ros.listen(OBSERVATION)
    node = ros.start("observation_node", *INPUTS)
    ros.wait(
        lambda: all(p.get_subscription_count() for p in (*cameras, joints)), "the node to listen"
    )
    rgb = np.zeros((480, 640, 3), np.uint8)
    seen = 0
    for _ in range(IMAGES):
        now_ns = ros.node.get_clock().now().nanoseconds
        state = JointState(name=["a"], position=[0.5])
        state.header.stamp = ns_to_time(now_ns)
        joints.publish(state)
        for camera in cameras:
            camera.publish(rgb_to_image(rgb, stamp=state.header.stamp, frame_id="c"))
        try:
            ros.wait(
                lambda at=now_ns: any(time_to_ns(m.capture_newest) == at for m in heard), "", 10.0
            )
        except pytest.fail.Exception:
            continue
        seen += 1
    # The first may be sent before both ends know of each other.
    assert seen >= IMAGES - 1
    assert psutil.Process(node.pid).environ()["ROS_AUTOMATIC_DISCOVERY_RANGE"] == "LOCALHOST"
    assert ros.stop(node) == 0
