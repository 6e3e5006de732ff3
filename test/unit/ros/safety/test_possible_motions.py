import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from physis_ros.safety.possible_motions import STATES, outermost


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.01, 0.6))
def test_the_outermost_bound_all_that_is_possible(seed, lam):
    random = np.random.default_rng(seed)
    positions = random.normal(size=(3, 200, 2))
    velocities = random.normal(size=(3, 200, 2)) + 2.0 * positions
    possible = random.random((3, 200)) < 0.5
    possible[:, 0] = True
    q, v = outermost(positions, velocities, possible)
    assert q.shape == v.shape == (3, STATES, 2)
    for moment in range(3):
        kept = possible[moment]
        reach = positions[moment, kept] + lam * velocities[moment, kept]
        # Between the directions that are looked along, a little is lost.
        wide = 0.03 * np.ptp(reach, axis=0)
        found = q[moment] + lam * v[moment]
        assert np.all(found.max(axis=0) >= reach.max(axis=0) - wide)
        assert np.all(found.min(axis=0) <= reach.min(axis=0) + wide)
        # Nothing is invented, and nothing impossible is taken.
        for joint in range(2):
            assert np.isin(q[moment, :, joint], positions[moment, kept, joint]).all()
            assert np.isin(v[moment, :, joint], velocities[moment, kept, joint]).all()


def test_one_possible_state_is_all_of_them():
    positions, velocities = np.array([[[1.0], [9.0]]]), np.array([[[2.0], [9.0]]])
    q, v = outermost(positions, velocities, np.array([[True, False]]))
    assert np.all(q == 1.0)
    assert np.all(v == 2.0)
