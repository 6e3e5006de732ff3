import math
from pathlib import Path

import pytest

from physis_core.types import UserError
from physis_ros.robot.joint_limits import JointLimit, merge_limits, robot_limits
from physis_ros.robot.limits_files import load_limits_file

ROBOTS = Path(__file__).parents[4] / "config" / "robots"


def test_each_robot_that_goes_with_us_is_complete():
    found = sorted(ROBOTS.glob("*.yaml"))
    assert len(found) >= 3
    for path in found:
        limits = load_limits_file(path)
        robot = robot_limits(tuple(limits), [limits])
        assert len(robot.names) >= 6
        assert all(low < high for low, high in zip(robot.lower, robot.upper))


def test_the_tighter_of_two_sources_wins_in_each_quantity():
    one = JointLimit(lower=-2.0, upper=1.0, velocity=3.0)
    other = JointLimit(lower=-1.0, upper=2.0, velocity=2.0, acceleration=5.0, jump=0.1)
    for sources in ([{"arm": one}, {"arm": other}], [{"arm": other}, {"arm": one}]):
        assert merge_limits(sources)["arm"] == JointLimit(
            lower=-1.0, upper=1.0, velocity=2.0, acceleration=5.0, jump=0.1
        )


def test_sources_that_leave_no_room_are_refused_by_joint():
    with pytest.raises(UserError, match=r"joints\.arm\.lower_rad: 1\.0: must be below"):
        merge_limits([{"arm": JointLimit(lower=1.0, upper=2.0)}, {"arm": JointLimit(upper=0.5)}])


def test_a_limit_that_nobody_gives_is_refused_not_assumed():
    bare = {"arm": JointLimit(lower=-1.0, upper=1.0, velocity=1.0, jump=0.1)}
    with pytest.raises(
        UserError, match=r"joints\.arm\.acceleration_rad_s2: None: missing in a\.yaml"
    ):
        robot_limits(("arm",), [bare], where="a.yaml")
    with pytest.raises(UserError, match=r"joint_names: 'leg': no limits.*known: arm"):
        robot_limits(("leg",), [bare])
    with pytest.raises(UserError, match="named twice"):
        robot_limits(("arm", "arm"), [bare])


def test_a_missing_limit_is_called_as_the_file_would_call_it():
    lift = {"lift": JointLimit(lower=0.0, velocity=0.1, acceleration=1.0, prismatic=True)}
    with pytest.raises(UserError, match=r"joints\.lift\.upper_m: None: missing in a\.yaml"):
        robot_limits(("lift",), [lift], where="a.yaml")


def test_only_unbounded_continuous_joints_wrap():
    full = {"velocity": 1.0, "acceleration": 1.0, "jump": 0.1}
    free = {"spin": JointLimit(continuous=True, **full)}
    robot = robot_limits(("spin",), [free])
    assert robot.wraps == (True,)
    assert robot.unwrapped(0, -math.pi + 0.1, math.pi - 0.1) == pytest.approx(math.pi + 0.1)
    bounded = robot_limits(("spin",), [free, {"spin": JointLimit(lower=-3.0, upper=3.0)}])
    assert bounded.wraps == (False,)
    assert bounded.unwrapped(0, -3.0, 3.0) == -3.0


def test_a_share_of_the_limits_leaves_positions_alone():
    limits = load_limits_file(ROBOTS / "ur5e.yaml")
    robot = robot_limits(tuple(limits), [limits])
    half = robot.scaled(velocity=0.5, acceleration=0.25)
    assert half.velocity[0] == robot.velocity[0] / 2
    assert half.acceleration[0] == robot.acceleration[0] / 4
    assert half.upper == robot.upper
    with pytest.raises(UserError, match="acceleration_share"):
        robot.scaled(velocity=1.0, acceleration=0.0)
