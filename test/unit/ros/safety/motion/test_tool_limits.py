import math

import numpy as np
import pytest
from filtered_robot import NAMES, Robot

from physis_core.types import UserError
from physis_ros.robot.joint_motion import JointMotion
from physis_ros.robot.kinematic_chain import KinematicChain
from physis_ros.safety.motion.tool_limits import ToolLimits
from physis_ros.safety.parameters import SafetyParameters
from physis_ros.safety.types import SafetyConfig, Verdict

# An arm of 0.5 m about the vertical axis, on a lift.
URDF = """<robot name="r"><link name="base"/><link name="car"/><link name="hub"/><link name="tool"/>
<joint name="lift" type="prismatic"><parent link="base"/><child link="car"/><axis xyz="0 0 1"/>
</joint>
<joint name="spin" type="continuous"><parent link="car"/><child link="hub"/><axis xyz="0 0 1"/>
</joint>
<joint name="end" type="fixed"><parent link="hub"/><child link="tool"/><origin xyz="0.5 0 0"/>
</joint></robot>"""


def limits(low=(-1.0, -1.0, -0.1), high=(1.0, 0.4, 0.3), speed=1.0):
    chain = KinematicChain(URDF, NAMES, "tool")
    return ToolLimits(chain, lower=np.array(low), upper=np.array(high), speed_m_s=speed)


def motion(times, positions, velocities=None):
    positions = np.array(positions, dtype=float)
    given = np.zeros_like(positions) if velocities is None else np.array(velocities, dtype=float)
    return JointMotion(np.array(times, dtype=float), positions, given)


def test_the_box_is_checked_between_the_points_too():
    # Both ends are inside; half way round, the tool is at y = 0.5.
    round_trip = motion([0.0, 4.0], [[0.0, 0.0, 0.0], [0.0, 0.0, math.pi]])
    found = limits().check(round_trip)
    assert found.reason.startswith("workspace: tool y 0.40")
    assert "beyond 0.400 m" in found.reason
    assert limits(high=(1.0, 0.6, 0.3)).check(round_trip) is None


def test_a_tool_outside_may_move_back_but_not_further_out():
    assert limits().check(motion([0.0, 3.0], [[0.5, 0.0, 0.0], [0.2, 0.0, 0.0]])) is None
    found = limits().check(motion([0.0, 3.0], [[0.5, 0.0, 0.0], [0.6, 0.0, 0.0]]))
    assert found.reason.startswith("workspace: tool z 0.50")


def test_the_speed_of_the_tool_is_that_of_all_joints_together():
    fast = motion([0.0, 0.4], [[0, 0, 0], [0, 0, 0.6]], [[0, 0, 1.5], [0, 0, 1.5]])
    assert limits(speed=0.8).check(fast) is None
    assert limits(speed=0.7).check(fast).reason.startswith("tool speed: 0.750 m/s above 0.700 m/s")


def test_the_filter_refuses_what_leaves_the_box_and_names_it():
    robot = Robot(SafetyConfig(arm_at_start=True, tool=limits(high=(1.0, 1.0, 0.05))))
    answer = robot.command([1.0], [[0.2, 0.0, 0.0]], [[0.0] * 3])
    assert answer.forward is None
    assert answer.finding.reason.startswith("model: rejected: workspace: tool z 0.05")
    assert robot.command([1.0], [[0.04, 0.0, 0.0]], [[0.0] * 3]).forward is not None


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"tool_speed": 0.2}, "tool_link: '': a tool's limit needs the link"),
        ({"tool_link": "tool"}, "needs a URDF"),
        ({"workspace_min": (0.0, 1.0)}, "workspace_min: .* finite x, y, z"),
        (
            {
                "tool_link": "tool",
                "robot_description": URDF,
                "workspace_min": (0.0, 0.0, 1.0),
                "workspace_max": (1.0, 1.0, 1.0),
            },
            "workspace_min: .* must be below",
        ),
    ],
)
def test_wrong_parameters_name_the_field(values, reason):
    with pytest.raises(UserError, match=reason):
        SafetyParameters(**values).tool_limits(NAMES, "")


def test_without_a_tool_link_nothing_is_checked():
    assert SafetyParameters().tool_limits(NAMES, "") is None
    assert SafetyParameters(tool_link="tool", tool_speed=0.1).tool_limits(NAMES, URDF) is not None


def test_a_deadman_that_is_released_or_silent_brakes():
    robot = Robot(SafetyConfig(arm_at_start=True, deadman_timeout_s=0.3))
    robot.filter.deadman(True, robot.now)
    assert robot.command([1.0], [[0.3, 0.0, 0.0]], [[0.0] * 3]).forward is not None
    robot.run(0.29)
    assert robot.tick.finding.verdict is Verdict.OK
    tick = robot.run(0.02)
    assert tick.finding.reason == "deadman: not held"
    assert robot.command([1.0], [[0.3, 0.0, 0.0]], [[0.0] * 3]).forward is None
    robot.run(0.8)
    robot.assert_resting()
    robot.assert_within_limits()
    assert robot.path[-1][0] < 0.2
    robot.filter.deadman(True, robot.now)
    here = robot.path[-1].tolist()
    assert robot.command([0.3], [here], [[0.0] * 3]).forward is not None
    robot.filter.deadman(False, robot.now)
    assert robot.run(0.01).finding.reason == "deadman: not held"
