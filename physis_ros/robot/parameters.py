"""Parameters that buffer_node and safety_node share: the robot's joints and their limits."""

from __future__ import annotations

from dataclasses import dataclass

from physis_ros.node.base import BaseParameters
from physis_ros.node.parameters import param
from physis_ros.robot.joint_limits import RobotLimits
from physis_ros.robot.robot_files import load_robot_limits


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotParameters(BaseParameters):
    robot_file: str = param("ur5e", description="Joint limits: a name in config/robots, or a path")
    robot_description: str = param("", description="URDF text with further limits")
    robot_description_file: str = param("", description="URDF file with further limits")
    joint_names: tuple[str, ...] = param(
        (), description="Commanded joints in order; empty: those of robot_file"
    )

    def limits(self) -> RobotLimits:
        """The tighter of file and URDF for each quantity.

        Raises:
            UserError: a file that cannot be read, or a joint without a limit.
        """
        return load_robot_limits(
            joint_names=self.joint_names,
            robot_file=self.robot_file,
            robot_description=self.robot_description,
            robot_description_file=self.robot_description_file,
        )
