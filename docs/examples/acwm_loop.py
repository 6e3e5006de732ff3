"""A simulator's loop beside a world model, as a Gazebo or Isaac user would write it.

Nothing of physis but its message package: a camera picture and `joint_states` of your simulator
begin the world; then trajectories go in and frames come out.

    physis up acwm                                     # the world model
    python -m physis_lab.robot.robot_sim_node          # or your own simulator with a camera
    python docs/examples/acwm_loop.py --seconds 10

`--lockstep` asks for one chunk at a time by `world/step` (`physis up acwm --set
world_node.mode=lockstep`): the world then waits for your simulator, however slow it is.
"""

from __future__ import annotations

import argparse
import array
import math
import sys
import time
from typing import Any

import cv2
import numpy as np
import rclpy
from rclpy.executors import ExternalShutdownException
from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import Image, JointState
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from physis_ros.srv import ResetWorld, StepWorld

SIZE = 96
"""Pixels along one side of the frames of `physis_tiny_world`."""
FRAME_S = 1.0 / 30.0
CHUNK = 3
SWING_RAD = 0.4
SWING_HZ = 0.3


class Loop(Node):
    """Your simulation: it commands the arm and receives the world's frames."""

    def __init__(self, camera: str, world: str) -> None:
        super().__init__("acwm_loop")
        self.world = world
        self.picture: Image | None = None
        self.joints: JointState | None = None
        self.ages_s: list[float] = []
        self.depicted_s: list[float] = []
        self.create_subscription(Image, camera, self._on_image, qos_profile_sensor_data)
        self.create_subscription(
            JointState, "joint_states", self._on_joints, qos_profile_sensor_data
        )
        self.create_subscription(Image, "world/frame", self._on_frame, 2)
        # A topic of the world alone: nothing of this file can move a robot.
        self.commands = self.create_publisher(JointTrajectory, "world/command", 8)
        self.reset = self.create_client(ResetWorld, "world/reset")
        self.step = self.create_client(StepWorld, "world/step")

    def _on_image(self, message: Image) -> None:
        self.picture = message

    def _on_joints(self, message: JointState) -> None:
        self.joints = message

    def _on_frame(self, message: Image) -> None:
        stamp = message.header.stamp
        depicted_s = stamp.sec + stamp.nanosec / 1e9
        self.depicted_s.append(depicted_s)
        self.ages_s.append(self.get_clock().now().nanoseconds / 1e9 - depicted_s)

    def wait(self, what: str, done: Any, patience_s: float = 60.0) -> None:
        end_s = time.monotonic() + patience_s
        while not done():
            if time.monotonic() > end_s:
                sys.exit(f"timed out waiting for {what}")
            rclpy.spin_once(self, timeout_sec=0.02)

    def ask(self, client: Any, request: Any) -> Any:
        self.wait(client.srv_name, client.service_is_ready)
        answer = client.call_async(request)
        self.wait(f"an answer of {client.srv_name}", answer.done)
        return answer.result()

    def begin(self) -> tuple[list[str], np.ndarray]:
        """Start the world from what the camera shows now; the joints' names and positions."""
        self.wait("a picture and joint states", lambda: self.picture and self.joints)
        assert self.picture is not None and self.joints is not None
        given = self.picture
        pixels = np.frombuffer(given.data, dtype=np.uint8).reshape(given.height, given.step)
        rgb = pixels[:, : 3 * given.width].reshape(given.height, given.width, 3)
        small = cv2.resize(rgb, (SIZE, SIZE), interpolation=cv2.INTER_AREA)
        first = Image(height=SIZE, width=SIZE, step=3 * SIZE, encoding="rgb8")
        first.header = given.header
        first.data = array.array("B", small.tobytes())
        answer = self.ask(
            self.reset,
            ResetWorld.Request(
                stream_id=self.world,
                first_frame=first,
                joint_names=self.joints.name,
                positions=self.joints.position,
            ),
        )
        if not answer.success:
            sys.exit(f"world/reset: {answer.reason}")
        return list(self.joints.name), np.array(self.joints.position)

    def free(self, seconds: float) -> None:
        """Send where the arm is to be, ten times a second; frames come at their own pace."""
        names, home = self.begin()
        begun_s = time.monotonic()
        next_s = begun_s
        while (now_s := time.monotonic()) - begun_s < seconds:
            if now_s >= next_s:
                next_s += 0.1
                message = JointTrajectory(joint_names=names)
                for ahead_s in (0.1, 0.2, 0.3):
                    point = JointTrajectoryPoint(
                        positions=swing(home, now_s - begun_s + ahead_s).tolist()
                    )
                    point.time_from_start.nanosec = round(ahead_s * 1e9)
                    message.points.append(point)
                self.commands.publish(message)
            rclpy.spin_once(self, timeout_sec=0.005)
        spans = np.diff(self.depicted_s)
        print(
            f"{len(self.ages_s)} frames in {seconds:g} s, depicting {spans.sum():.2f} s; age at"
            f" arrival: median {1e3 * float(np.median(self.ages_s)):.0f} ms"
        )

    def lockstep(self, seconds: float) -> None:
        """One chunk of actions, its frames back, and so on: time passes only when you say so."""
        names, home = self.begin()
        begun_s = time.monotonic()
        frames = 0
        for chunk in range(round(seconds / (CHUNK * FRAME_S))):
            at_s = [(chunk * CHUNK + k + 1) * FRAME_S for k in range(CHUNK)]
            positions = np.stack([swing(home, t) for t in at_s])
            answer = self.ask(
                self.step,
                StepWorld.Request(
                    stream_id=self.world,
                    joint_names=names,
                    positions=positions.reshape(-1).tolist(),
                ),
            )
            if not answer.success:
                sys.exit(f"world/step: {answer.reason}")
            frames += len(answer.frames)
        spent_s = time.monotonic() - begun_s
        print(f"{frames} frames, depicting {frames * FRAME_S:.2f} s, took {spent_s:.2f} s")


def swing(home: np.ndarray, t_s: float) -> np.ndarray:
    """Where your simulation wants the arm: a slow turn of the base."""
    out = home.copy()
    out[0] += SWING_RAD * math.sin(2.0 * math.pi * SWING_HZ * t_s)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--camera", default="camera/front/image_raw")
    parser.add_argument("--world", default="world", help="stream_id of the world")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--lockstep", action="store_true")
    args = parser.parse_args()
    rclpy.init()
    loop = Loop(args.camera, args.world)
    try:
        if args.lockstep:
            loop.lockstep(args.seconds)
        else:
            loop.free(args.seconds)
    except (KeyboardInterrupt, ExternalShutdownException):
        sys.exit("stopped")
    finally:
        loop.destroy_node()
        rclpy.try_shutdown()


if __name__ == "__main__":
    main()
