import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from physis_ros.robot.joint_motion import JointMotion, hermite
from physis_ros.safety.motion.possible_motions import (
    STATES,
    Arrivals,
    Paths,
    PossibleMotion,
    arrivals,
)


def left_at(random, since_s, joints=2):
    """Random states at `since_s`, in which speed and position belong together."""
    positions = random.normal(size=(since_s.size, joints))
    velocities = random.normal(size=(since_s.size, joints)) + 2.0 * positions
    return Arrivals(at_s=since_s, positions=positions, velocities=velocities)


def point(random, first_s, joints=2):
    return JointMotion(
        np.array([first_s]), random.normal(size=(1, joints)), random.normal(size=(1, joints))
    )


def cubics(left, points, at_s):
    """The states of every cubic at one moment, by its definition."""
    return hermite(
        left.positions,
        left.velocities,
        points.positions[0],
        points.velocities[0],
        (points.start_s - left.at_s)[:, None],
        (at_s - left.at_s)[:, None],
    )


@given(st.integers(0, 2**32 - 1))
def test_a_path_is_the_cubic_that_the_controller_follows(seed):
    random = np.random.default_rng(seed)
    left = left_at(random, np.sort(random.uniform(10.0, 10.2, 20)))
    points = point(random, 10.201)
    moments = np.array([10.2, 10.2005])
    q, v = Paths.to(points, left).all_states(moments)
    for number, at_s in enumerate(moments):
        wanted_q, wanted_v = cubics(left, points, at_s)
        assert np.allclose(q[number], wanted_q, atol=1e-9)
        assert np.allclose(v[number], wanted_v, atol=1e-6)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.01, 0.6))
def test_the_outermost_bound_all_that_is_possible(seed, lam):
    random = np.random.default_rng(seed)
    left = left_at(random, np.full(200, 10.0))
    q, v = Paths.to(point(random, 10.5), left).outermost(np.array([10.0]))
    assert q.shape == v.shape == (1, STATES, 2)
    reach = left.positions + lam * left.velocities
    # Between the directions that are looked along, a little is lost.
    wide = 0.03 * np.ptp(reach, axis=0)
    found = q[0] + lam * v[0]
    assert np.all(found.max(axis=0) >= reach.max(axis=0) - wide)
    assert np.all(found.min(axis=0) <= reach.min(axis=0) + wide)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_only_what_has_begun_is_bounded(seed):
    random = np.random.default_rng(seed)
    left = left_at(random, np.sort(random.uniform(10.0, 10.2, 200)))
    points = point(random, 10.5)
    moments = np.array([left.at_s[0], 10.1, 10.3])
    q, v = Paths.to(points, left).outermost(moments)
    for number, at_s in enumerate(moments):
        all_q, all_v = (x[left.at_s <= at_s] for x in cubics(left, points, at_s))
        for along_q, along_v in [(1.0, 0.0), (0.0, 1.0), (1.0, 0.02), (1.0, 0.4), (1.0, -0.1)]:
            found = along_q * q[number] + along_v * v[number]
            reach = along_q * all_q + along_v * all_v
            assert np.allclose(found.max(axis=0), reach.max(axis=0), atol=1e-9)
            assert np.allclose(found.min(axis=0), reach.min(axis=0), atol=1e-9)
        # Nothing is invented.
        for joint in range(2):
            apart = np.abs(q[number, :, None, joint] - all_q[None, :, joint])
            apart += np.abs(v[number, :, None, joint] - all_v[None, :, joint])
            assert apart.min(axis=1).max() < 1e-9


def test_paths_that_are_joined_by_others_have_the_states_of_both():
    random = np.random.default_rng(0)
    points = point(random, 10.5)
    first, second = (left_at(random, np.sort(random.uniform(10.0, 10.2, 3))) for _ in range(2))
    both = Paths.to(points, first).joined_by(Paths.to(points, second))
    assert np.all(np.diff(both.since_s) >= 0.0)
    q, _ = both.all_states(np.array([10.3]))
    wanted = np.concatenate([cubics(left, points, 10.3)[0] for left in (first, second)])
    assert np.allclose(np.sort(q[0], axis=0), np.sort(wanted, axis=0))


@pytest.mark.parametrize("many", [1, 30])
def test_after_the_first_point_there_is_one_state_and_after_its_end_none(many):
    """With few states, which are all kept, and with many, which are reduced."""
    random = np.random.default_rng(1)
    before = PossibleMotion(
        points=JointMotion.at_rest(np.array([0.5, -0.5]), 9.0),
        paths=None,
        latest_s=9.0,
        until_s=10.2,
    )
    points = point(random, 10.3)
    left = left_at(random, np.linspace(10.0, 10.2, many))
    later = PossibleMotion(points=points, paths=Paths.to(points, left), latest_s=10.2)
    found = arrivals([before, later], np.array([10.1, 10.3, 10.4]))
    at_first = found.positions[found.at_s == 10.3]
    assert np.allclose(at_first, points.positions[0])
    early, late = (found.positions[found.at_s == at_s] for at_s in (10.1, 10.4))
    held = np.array([0.5, -0.5])
    assert np.all((early.min(axis=0) <= held) & (held <= early.max(axis=0)))
    assert np.allclose(late, points.positions[0])
