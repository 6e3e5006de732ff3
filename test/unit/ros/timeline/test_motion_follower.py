import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from physis_ros.timeline.motion_follower import JointFollower

TICK_S = 0.01


def follower(acceleration=8.0, velocity=2.0):
    return JointFollower(
        tick_s=TICK_S,
        lower=-1.5,
        upper=1.5,
        velocity=velocity,
        acceleration=acceleration,
        correction_share=0.5,
    )


def run(joint, position, velocity, reference):
    path = [(position, velocity)]
    for begin, end in zip(reference, reference[1:]):
        path.append(joint.follow(*path[-1], *begin, *end))
    return path


@settings(max_examples=100, deadline=None)
@given(
    st.floats(-1.2, 1.2),
    st.lists(st.tuples(st.floats(-3.0, 3.0), st.floats(-5.0, 5.0)), min_size=2, max_size=80),
)
def test_any_reference_is_followed_within_every_limit(start, reference):
    path = run(follower(), start, 0.0, reference)
    for (q0, v0), (q1, v1) in zip(path, path[1:]):
        assert abs(v1 - v0) <= 8.0 * TICK_S * (1 + 1e-9)
        assert abs(v1) <= 2.0 + 1e-9
        assert q1 - q0 == pytest.approx((v0 + v1) * TICK_S / 2, abs=1e-12)
        assert -1.5 - 1e-9 <= q1 <= 1.5 + 1e-9
    position, velocity = path[-1]
    while velocity != 0.0:
        position, velocity = follower().brake(position, velocity)
        assert -1.5 - 1e-9 <= position <= 1.5 + 1e-9


@settings(max_examples=50, deadline=None)
@given(st.floats(-1.0, 1.0), st.floats(-1.0, 1.0))
def test_a_resting_reference_is_reached_and_kept(start, goal):
    path = run(follower(), start, 0.0, [(goal, 0.0)] * 400)
    assert path[-1] == pytest.approx((goal, 0.0), abs=1e-6)
    assert path[-2] == pytest.approx((goal, 0.0), abs=1e-6)
    # Nearly time optimal: not much slower than full acceleration and braking at the given share.
    soonest_s = 2.0 * math.sqrt(abs(goal - start) / (0.5 * 8.0)) + abs(goal - start) / 2.0
    arrived = next(i for i, (q, _) in enumerate(path) if abs(q - goal) < 1e-3)
    assert arrived * TICK_S <= soonest_s + 0.1


def test_on_a_smooth_reference_the_motion_is_the_reference():
    def at(t):
        return 0.5 * math.sin(2 * t), math.cos(2 * t)

    reference = [at(k * TICK_S) for k in range(500)]
    path = run(follower(), *at(0.0), reference)
    assert max(abs(q - r) for (q, _), (r, _) in zip(path, reference)) < 2e-6


def test_a_reference_that_shakes_beyond_the_limit_does_not_lead_astray():
    # Its velocity steps by 2 rad/s at every tick, twenty times what the limit allows.
    shaking = [(0.0, 1.0 if k % 2 else -1.0) for k in range(1000)]
    path = run(follower(), 1.0, 0.0, shaking)
    assert max(abs(q) for q, _ in path[600:]) < 0.3


def test_braking_ends_at_exactly_zero():
    state = (0.0, 1.0)
    for _ in range(13):
        state = follower().brake(*state)
    assert state[1] == 0.0
