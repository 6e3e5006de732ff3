"""Joints by name, never by order."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sensor_msgs.msg import JointState

from physis_core.types import UserError
from physis_ros.robot.joint_readings import joint_readings, whole_state

WANTED = ("shoulder", "elbow", "wrist")
STAMP_NS = 5_000_000_007


def state(names: list[str], positions: list[float], velocities: list[float] | None = None):
    return JointState(
        name=names,
        position=positions,
        velocity=velocities or [],
    )


@given(st.permutations(["shoulder", "elbow", "wrist", "gripper", "finger_mimic"]))
def test_any_order_and_extra_joints(names: list[str]) -> None:
    truth = {name: float(index) for index, name in enumerate(sorted(names))}
    positions = [truth[name] for name in names]
    got = joint_readings(
        state(names, positions, [10 * p for p in positions]), WANTED, stamp_ns=STAMP_NS
    )
    assert [reading.name for reading in got] == list(WANTED)
    for reading in got:
        assert reading.position == truth[reading.name]
        assert reading.velocity == 10 * truth[reading.name]
        assert reading.stamp_ns == STAMP_NS


def test_half_a_robot_gives_half_the_readings() -> None:
    got = joint_readings(state(["wrist", "gripper"], [1.0, 2.0]), WANTED, stamp_ns=STAMP_NS)
    assert [(reading.name, reading.velocity) for reading in got] == [("wrist", None)]


def test_nan_in_a_wanted_joint_is_refused_by_name() -> None:
    with pytest.raises(UserError, match=r"joint_states.position\[elbow\]: nan"):
        joint_readings(state(["shoulder", "elbow"], [0.0, math.nan]), WANTED, stamp_ns=STAMP_NS)


def test_nan_elsewhere_does_no_harm() -> None:
    got = joint_readings(state(["gripper", "elbow"], [math.nan, 1.0]), WANTED, stamp_ns=STAMP_NS)
    assert [reading.position for reading in got] == [1.0]


def test_nan_velocity_is_unknown_not_zero() -> None:
    (reading,) = joint_readings(state(["elbow"], [1.0], [math.nan]), WANTED, stamp_ns=STAMP_NS)
    assert reading.velocity is None


@pytest.mark.parametrize(
    ("names", "positions", "velocities", "said"),
    [
        (["elbow", "wrist"], [1.0], [], "2 names need 2 positions"),
        (["elbow"], [1.0], [1.0, 2.0], "must be empty or 1 values"),
        (["elbow", "elbow"], [1.0, 2.0], [], "stands in one message twice"),
    ],
)
def test_contradictions_are_refused(
    names: list[str], positions: list[float], velocities: list[float], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        joint_readings(state(names, positions, velocities), WANTED, stamp_ns=STAMP_NS)


def test_a_whole_state_has_every_joint_and_its_velocity() -> None:
    whole = state(["wrist", "other", "elbow", "shoulder"], [3.0, 9.0, 2.0, 1.0], [0.3, 9.0, 0.2, 0])
    found = whole_state(whole, WANTED)
    assert found is not None
    assert found[0].tolist() == [1.0, 2.0, 3.0]
    assert found[1].tolist() == [0.0, 0.2, 0.3]
    assert whole_state(state(["wrist", "elbow"], [3.0, 2.0], [0.0, 0.0]), WANTED) is None
    assert whole_state(state([*WANTED], [1.0, 2.0, 3.0]), WANTED) is None
    unknown = state([*WANTED], [1.0, 2.0, 3.0], [0.0, math.nan, 0.0])
    assert whole_state(unknown, WANTED) is None
