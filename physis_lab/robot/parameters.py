"""Parameters of the lab's nodes, apart from the nodes because a launcher reads them. Those of
robot_sim_node have their values in config/robot_sim_node.param.yaml.
"""

from __future__ import annotations

from dataclasses import dataclass

from physis_lab.tasks import TASKS
from physis_ros.node.parameters import REQUIRED, BaseParameters, param

CAMERA_FAULTS = ("none", "loss", "freeze", "freeze_restamped")
JOINT_FAULTS = ("none", "loss", "freeze", "nan", "missing_joint")


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotSimParameters(BaseParameters):
    task: str = param("follow", description="Task of the arm", choices=TASKS)
    task_seed: int = param(
        1,
        description="Seed of the task",
        minimum=0,
    )
    task_waits: bool = param(
        True, description="Task time starts with the first accepted trajectory"
    )
    width: int = param(128, description="Camera width", unit="pixel", minimum=8, maximum=1280)
    height: int = param(128, description="Camera height", unit="pixel", minimum=8, maximum=960)
    camera_hz: float = param(30.0, description="Camera rate", unit="Hz", minimum=0.1, maximum=120.0)
    controller_hz: float = param(
        125.0,
        description="Rate of the controller and of joint_states; 500 over a whole number",
        unit="Hz",
        minimum=50.0,
        maximum=500.0,
    )
    interpolate_from_desired_state: bool = param(
        True, description="As in our joint_trajectory_controller YAML"
    )
    cmd_timeout_s: float = param(
        0.5,
        description="After the last point, hold the measured position; 0: never",
        unit="s",
        minimum=0.0,
        maximum=60.0,
    )
    realtime_priority: int = param(
        40,
        description="SCHED_FIFO priority to request; 0: none",
        minimum=0,
        maximum=98,
    )
    joint_prefix: str = param("", description="In front of each joint's name, as a driver has it")
    record_path: str = param("", description="Directory for arm.rows; empty: no record")
    camera_fault: str = param(
        "none", description="Camera fault to simulate", choices=CAMERA_FAULTS, runtime=True
    )
    joint_states_fault: str = param(
        "none", description="joint_states fault to simulate", choices=JOINT_FAULTS, runtime=True
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderParameters(BaseParameters):
    record_path: str = param(REQUIRED, description="Directory to write to; created if missing")
    camera: str = param("front", description="Name of the camera to record")
    max_frames: int = param(100_000, description="Maximum number of recorded frames", minimum=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewerParameters(BaseParameters):
    camera: str = param("front", description="Name of the camera to show")
