import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from physis_ros.robot.joint_limits import RobotLimits
from physis_ros.safety.position_output import PositionOutput

LIMITS = RobotLimits(
    names=("lift", "bend"),
    lower=(-math.inf, -math.inf),
    upper=(math.inf, math.inf),
    velocity=(2.0, 1.0),
    acceleration=(8.0, 4.0),
    jump=(0.4, 0.4),
    wraps=(False, False),
)


def test_it_begins_where_the_robot_is_measured_and_goes_on_within_the_velocity_limits():
    output = PositionOutput(LIMITS)
    commanded, measured = np.array([0.45, 0.0]), np.array([0.0, 0.1])
    assert np.allclose(output.point(commanded, measured, 1.0), measured)
    assert np.allclose(output.point(commanded, measured, 1.005), [0.01, 0.095])
    # A loop that stood still for a second makes no step of a second.
    assert np.allclose(output.point(commanded, measured, 2.0), [0.05, 0.075])
    output.pause()
    assert np.allclose(output.point(commanded, measured, 2.005), measured)


@given(st.lists(st.tuples(st.floats(-3, 3), st.floats(-3, 3), st.booleans()), max_size=40))
def test_no_step_is_larger_than_the_velocity_limit_allows(series):
    output, last, now_s = PositionOutput(LIMITS), None, 1.0
    for lift, bend, pause in series:
        if pause:
            output.pause()
            last = None
        point = output.point(np.array([lift, bend]), np.zeros(2), now_s)
        if last is not None:
            assert (np.abs(point - last) <= np.array([2.0, 1.0]) * 0.005 + 1e-12).all()
        last, now_s = point, now_s + 0.005
