"""Limits from YAML: ours and MoveIt's; what is wrong is one line that names field and file."""

from __future__ import annotations

from pathlib import Path

import pytest

from physis_core.types import UserError
from physis_ros.robot.joint_limits import JointLimit
from physis_ros.robot.limits_files import load_limits_file


def yaml_of(joint: str) -> str:
    return f"joints: {{arm: {{{joint}}}}}"


def test_tolerances_of_a_joint_are_read_and_checked(tmp_path: Path) -> None:
    found = load(tmp_path, yaml_of("rest_m: 0.001, tracking_m: 0.02"))["arm"]
    assert (found.rest, found.tracking, found.prismatic) == (0.001, 0.02, True)
    with pytest.raises(UserError, match=r"joints.arm.tracking_rad: 0.0: must be above 0"):
        load(tmp_path, yaml_of("tracking_rad: 0"))


def moveit_of(joint: str) -> str:
    return f"joint_limits: {{arm: {{{joint}}}}}"


def load(tmp_path: Path, text: str) -> dict[str, JointLimit]:
    path = tmp_path / "robot.yaml"
    path.write_text(text)
    return load_limits_file(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must hold a mapping"),
        ("joints: [1]", "must hold a mapping"),
        ("- joints", "must hold a mapping"),
        ("{", "line 1: "),
        ("joints: {}\njoints: {}", "line 2: key .joints. appears twice"),
        ("joints:\n  a: {}\n  a: {}", "line 3: key .a. appears twice"),
        ("joints: {}\nspeed: 3", "speed: 3: unknown key"),
        (yaml_of("velocity: 3.0"), r"arm.velocity: 3.0: .*did you mean 'velocity_rad_s'\?"),
        (yaml_of("upper: 1"), r"joints.arm.upper: 1: .*did you mean 'upper_rad'\?"),
        (yaml_of("lower_m: 0, upper: 1"), r"joints.arm.upper: 1: .*did you mean 'upper_m'\?"),
        (yaml_of("max_acceleration: 1"), "did you mean 'acceleration_rad_s2'"),
        (yaml_of("velocity_rad_s: -3.0"), "joints.arm.velocity_rad_s: -3.0: .*above 0"),
        (yaml_of("velocity_rad_s: true"), "must be a number"),
        (yaml_of("velocity_rad_s: .nan"), "must be finite"),
        (yaml_of("velocity_rad_s: 0.5, velocity_rad_s: 3.0"), "velocity_rad_s' appears twice"),
        (yaml_of("lower_rad: -180, upper_rad: 180"), "is it in degrees"),
        (yaml_of("lower_rad: 2, upper_rad: 1"), "must be below"),
        (yaml_of("lower_rad: 2, upper_m: 3"), "mixes radians and metres"),
        (yaml_of("continuous: 1"), "must be true or false"),
        ("joint_limits: [1]", "must map joint names"),
        (moveit_of("has_velocity_limits: 1"), "has_velocity_limits: 1: must be true or false"),
        (moveit_of("has_velocity_limits: true"), "max_velocity: None: missing beside has_velocity"),
        (moveit_of("max_velocity: 1.0"), "has_velocity_limits: None: missing beside max_velocity"),
        (moveit_of("max_velocty: 1.0"), "max_velocty: 1.0: .*did you mean 'max_velocity'"),
        (moveit_of("has_velocity_limits: true, max_velocity: 180"), "is it in degrees"),
    ],
)
def test_wrong_yaml_gets_one_line_that_names_the_field_and_the_file(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        load(tmp_path, text)
    assert str(tmp_path / "robot.yaml") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_moveits_file_limits_where_it_says_so(tmp_path: Path) -> None:
    text = """
default_velocity_scaling_factor: 0.1
joint_limits:
  arm:
    has_position_limits: true
    min_position: -1.0
    max_position: 2.0
    has_velocity_limits: true
    max_velocity: 0.5
    has_acceleration_limits: false
    max_acceleration: 0.1
    has_jerk_limits: false
  slide: {has_velocity_limits: false, max_velocity: 0}
"""
    found = load(tmp_path, text)
    assert found["arm"] == JointLimit(lower=-1.0, upper=2.0, velocity=0.5)
    assert found["slide"] == JointLimit()
