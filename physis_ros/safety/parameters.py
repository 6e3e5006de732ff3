"""Parameters of safety_node, with ranges and units; their values are in
config/safety_node.param.yaml.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from physis_core.types import UserError
from physis_ros.node.parameters import param
from physis_ros.robot.kinematic_chain import KinematicChain
from physis_ros.robot.parameters import RobotParameters
from physis_ros.robot.robot_files import read_description
from physis_ros.safety.command_sources import Source
from physis_ros.safety.joint_watch import JointRules
from physis_ros.safety.motion.tool_limits import ToolLimits
from physis_ros.safety.types import SafetyConfig

OUTPUTS = ("trajectory", "position")
STARTS = ("stamped", "immediate")


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetyParameters(RobotParameters):
    rate_hz: float = param(
        200.0, description="Rate of the safety loop", unit="Hz", minimum=10.0, maximum=1000.0
    )
    output: str = param(
        "trajectory",
        description="trajectory for a joint_trajectory_controller (ends in a braking tail), "
        "position for a forward_position_controller (no tail without this process)",
        choices=OUTPUTS,
    )
    gripper_joint: str = param(
        "",
        description="The joint of a gripper with a position controller of its own: it is checked "
        "with the others, and its position goes to gripper_controller/commands "
        "(Float64MultiArray, one value) commanded_hz times a second, not to the arm's controller. "
        "Give it a rest_rad or rest_m above its stroke, so that it goes on pressing. Empty: none",
    )
    forward_start: str = param(
        "stamped",
        description="stamped: every point has its exact time (clocks must agree); "
        "immediate: stamp 0, time counts from arrival",
        choices=STARTS,
    )
    late_s: float = param(
        0.2,
        description="The controller may take a forwarded trajectory up to this late and stay "
        "within the limits; not acknowledged by then, it counts as lost. Its first point is due "
        "slightly later, so a command must reach further than this",
        unit="s",
        minimum=0.02,
        maximum=0.5,
    )
    joint_state_timeout_s: float = param(
        0.1,
        description="Brake and hold when joint states are older than this",
        unit="s",
        minimum=0.005,
        maximum=10.0,
    )
    command_age_s: float = param(
        0.5,
        description="HOLD after this time without a command; also the largest accepted difference "
        "between a command's stamp and now",
        unit="s",
        minimum=0.01,
        maximum=60.0,
    )
    longest_command_s: float = param(
        30.0, description="Longest accepted trajectory", unit="s", minimum=0.1, maximum=3600.0
    )
    slow_most: float = param(
        1.2,
        description="A command that is too fast is slowed down by at most this factor",
        minimum=1.0,
        maximum=10.0,
    )
    tracking_tolerance: float = param(
        0.35,
        description="STOP when a measured joint is further than this from the commanded state",
        unit="rad",
        minimum=0.001,
        maximum=10.0,
    )
    tracking_time_s: float = param(
        0.25,
        description="tracking_tolerance must be exceeded for this long",
        unit="s",
        minimum=0.0,
        maximum=10.0,
    )
    reset_cooldown_s: float = param(
        1.0,
        description="A reset is refused for this long after the last cause of a STOP",
        unit="s",
        minimum=0.0,
        maximum=600.0,
    )
    enabled_at_start: bool = param(
        False,
        description="True: arm once without ~/enable, as soon as nothing stands against it. Only "
        "for a simulated arm",
    )
    rest_tolerance: float = param(
        0.002,
        description="The robot rests while no joint leaves a band of this half width; at rest, a "
        "smaller difference between commanded and measured is sensor noise",
        unit="rad",
        minimum=1e-6,
        maximum=1.0,
    )
    rest_time_s: float = param(
        0.2,
        description="The robot rests after this long within rest_tolerance",
        unit="s",
        minimum=0.0,
        maximum=10.0,
    )
    settle_s: float = param(
        0.3,
        description="This long after our last motion ended, commanded = measured. Longer than the "
        "robot lags",
        unit="s",
        minimum=0.0,
        maximum=10.0,
    )
    bad_samples: int = param(
        3,
        description="STOP when this many of the last sample_window joint states are beyond a "
        "measured limit",
        minimum=1,
        maximum=1000,
    )
    sample_window: int = param(
        10, description="Joint states that bad_samples counts in", minimum=1, maximum=1000
    )
    tool_link: str = param(
        "",
        description="Link of the URDF whose origin workspace_min, workspace_max and tool_speed "
        "limit; empty: none of them is checked",
    )
    workspace_min: tuple[float, ...] = param(
        (),
        description="Lowest x, y, z of tool_link in the URDF's root link; empty: open",
        unit="m",
    )
    workspace_max: tuple[float, ...] = param(
        (),
        description="Highest x, y, z of tool_link in the URDF's root link; empty: open",
        unit="m",
    )
    tool_speed: float = param(
        0.0,
        description="Highest speed of tool_link; 0: no limit",
        unit="m/s",
        minimum=0.0,
        maximum=100.0,
    )
    deadman: bool = param(False, description="Commands pass only while safety/deadman says true")
    deadman_timeout_s: float = param(
        0.3,
        description="The deadman counts as released this long after its last message",
        unit="s",
        minimum=0.02,
        maximum=10.0,
    )
    stop_answer_s: float = param(
        5.0,
        description="~/estop answers when the robot is measured at rest, or after this long, when "
        "it says that the robot is not",
        unit="s",
        minimum=0.1,
        maximum=60.0,
    )
    teleop_timeout_s: float = param(
        0.5,
        description="A teleoperator in control is reported as silent after this long without a "
        "command; it keeps control until ~/hand_back",
        unit="s",
        minimum=0.01,
        maximum=60.0,
    )
    realtime_priority: int = param(
        50, description="Requested SCHED_FIFO priority; 0: none", minimum=0, maximum=98
    )
    status_hz: float = param(
        20.0,
        description="Rate of safety_status and safety/heartbeat; changes are published at once",
        unit="Hz",
        minimum=0.1,
        maximum=200.0,
    )
    commanded_hz: float = param(
        50.0,
        description="Rate of safety/commanded_state",
        unit="Hz",
        minimum=1.0,
        maximum=1000.0,
    )
    jitter_window: int = param(
        12000,
        description="Ticks in the sliding window of loop jitter",
        minimum=10,
        maximum=10000000,
    )

    def tool_limits(self, names: Sequence[str], published_description: str) -> ToolLimits | None:
        """None without `tool_link`. `names`: of the commanded joints.

        Raises:
            UserError: no URDF, or one in which commanded joints do not lead to `tool_link`.
        """
        corners = {"workspace_min": self.workspace_min, "workspace_max": self.workspace_max}
        for field, corner in corners.items():
            if len(corner) not in (0, 3) or not all(map(math.isfinite, corner)):
                raise UserError(field, list(corner), "must be empty, or finite x, y, z")
        if not self.tool_link:
            if any(corners.values()) or self.tool_speed:
                raise UserError("tool_link", "", "a tool's limit needs the link that it limits")
            return None
        text = self.robot_description or published_description
        if not text and self.robot_description_file:
            text = read_description(self.robot_description_file)
        if not text:
            raise UserError("tool_link", self.tool_link, "needs a URDF: set robot_description_file")
        lower = np.array(self.workspace_min or (-math.inf,) * 3)
        upper = np.array(self.workspace_max or (math.inf,) * 3)
        if not (lower < upper).all():
            raise UserError("workspace_min", lower.tolist(), f"must be below {upper.tolist()}")
        return ToolLimits(
            KinematicChain(text, names, self.tool_link, prefix=self.joint_prefix),
            lower=lower,
            upper=upper,
            speed_m_s=self.tool_speed or math.inf,
        )

    def filter(self, tool: ToolLimits | None = None) -> SafetyConfig:
        return SafetyConfig(
            tool=tool,
            deadman_timeout_s=self.deadman_timeout_s if self.deadman else None,
            # A forward position controller applies a point at once and acknowledges nothing.
            late_s=self.late_s if self.output == "trajectory" else 0.0,
            acknowledged=self.output == "trajectory",
            joints=JointRules(
                timeout_s=self.joint_state_timeout_s,
                rest_tolerance=self.rest_tolerance,
                rest_time_s=self.rest_time_s,
                bad_samples=self.bad_samples,
                sample_window=self.sample_window,
            ),
            settle_s=self.settle_s,
            command_age_s=self.command_age_s,
            longest_command_s=self.longest_command_s,
            slow_most=self.slow_most,
            tracking_tolerance=self.tracking_tolerance,
            tracking_time_s=self.tracking_time_s,
            reset_cooldown_s=self.reset_cooldown_s,
            arm_at_start=self.enabled_at_start,
            sources={
                "teleop": Source(priority=10, timeout_s=self.teleop_timeout_s),
                "model": Source(priority=0, timeout_s=self.command_age_s),
            },
        )
