"""Parameters that buffer_node and safety_node share: the robot's joints and their limits."""

from __future__ import annotations

from dataclasses import dataclass

from physis_ros.node.parameters import BaseParameters, param
from physis_ros.robot.joint_limits import RobotLimits
from physis_ros.robot.robot_files import load_robot_limits


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotParameters(BaseParameters):
    robot_file: str = param("ur5e", description="Joint limits: a name in config/robots, or a path")
    robot_description: str = param("", description="URDF text with further limits")
    robot_description_file: str = param("", description="URDF file with further limits")
    robot_description_topic: str = param(
        "",
        description="Topic that brings the URDF at start (std_msgs/String, latched), such as "
        "/robot_description",
    )
    joint_limits_file: str = param("", description="MoveIt's joint_limits.yaml with further limits")
    joint_names: tuple[str, ...] = param(
        (), description="Commanded joints in order; empty: those of robot_file"
    )
    joint_prefix: str = param(
        "",
        description="In front of each joint's name in the robot's messages (UR: tf_prefix); the "
        "model and robot_file may leave it out",
    )

    def limits(self, published_description: str = "") -> RobotLimits:
        """The tightest of all sources for each quantity, the URDF text of the topic included.

        Raises:
            UserError: a file that cannot be read, or a joint without a limit.
        """
        return load_robot_limits(
            joint_names=self.joint_names,
            robot_file=self.robot_file,
            robot_description=self.robot_description,
            published_description=published_description,
            robot_description_file=self.robot_description_file,
            joint_limits_file=self.joint_limits_file,
            joint_prefix=self.joint_prefix,
        )
