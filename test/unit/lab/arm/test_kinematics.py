from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from physis_lab.arm.kinematics import HOME_RAD, TOOL_DOWN, Kinematics, Unreachable
from physis_lab.arm.limits import UR5E_LIMITS
from physis_lab.arm.scene import build_model
from physis_lab.tasks.ball import BOX_HIGH_M, BOX_LOW_M, HOVER_M

KINEMATICS = Kinematics(build_model())


def test_forward_matches_the_makers_table() -> None:
    """At zero: a2 + a3 ahead, d4 + d6 to the side, d1 - d5 up (the maker's DH parameters)."""
    assert KINEMATICS.forward(np.zeros(6)).position == pytest.approx(
        [0.425 + 0.3922, 0.1333 + 0.0996, 0.1625 - 0.0997], abs=1e-9
    )


def test_home_hovers_with_the_tool_down() -> None:
    pose = KINEMATICS.forward(np.array(HOME_RAD))
    assert pose.rotation == pytest.approx(TOOL_DOWN, abs=1e-3)
    assert pose.position == pytest.approx([0.46, 0.0, 0.3], abs=1e-3)


box = st.tuples(*(st.floats(a, b) for a, b in zip(BOX_LOW_M, BOX_HIGH_M, strict=True)))


@settings(max_examples=40, deadline=None)
@given(box)
def test_inverse_reaches_the_whole_box_in_one_branch(ball: tuple[float, float, float]) -> None:
    wanted = np.array(ball) + (0.0, 0.0, HOVER_M)
    joints = KINEMATICS.inverse(wanted)
    pose = KINEMATICS.forward(joints)
    assert pose.position == pytest.approx(wanted, abs=2e-5)
    assert pose.rotation == pytest.approx(TOOL_DOWN, abs=1e-3)
    assert np.all((joints >= UR5E_LIMITS.lower) & (joints <= UR5E_LIMITS.upper))
    # Elbow up and not far from home: the branch is the same all over the box.
    assert joints[2] > 0.0
    assert np.abs(joints - HOME_RAD).max() < 1.2


@settings(max_examples=20, deadline=None)
@given(box, box)
def test_answer_does_not_depend_on_where_it_started(
    a: tuple[float, float, float], b: tuple[float, float, float]
) -> None:
    lift = (0.0, 0.0, HOVER_M)
    there = KINEMATICS.inverse(np.array(b) + lift)
    assert KINEMATICS.inverse(np.array(a) + lift, there) == pytest.approx(
        KINEMATICS.inverse(np.array(a) + lift), abs=2e-3
    )


def test_out_of_reach_is_said() -> None:
    with pytest.raises(Unreachable, match="off by"):
        KINEMATICS.inverse(np.array([2.0, 0.0, 0.3]))
