import numpy as np
import pytest

from physis_ros.controller_belief import ControllerBelief
from physis_ros.joint_motion import JointMotion

LATE_S = 0.2


def points(first_s, place):
    """A single point at rest."""
    return JointMotion.at_rest(np.array([place]), first_s)


def belief():
    made = ControllerBelief(LATE_S)
    made.stand(np.array([0.0]), 10.0)
    return made


def test_nothing_is_believed_at_first():
    made = ControllerBelief(LATE_S)
    assert made.motion is None
    made.taken(10.0)
    made.look(10.0)
    with pytest.raises(RuntimeError, match="nothing is believed"):
        made.arrivals(10.0)


def test_what_was_sent_counts_when_it_is_acknowledged():
    made = belief()
    made.sent(points(10.3, 1.0), 10.0)
    assert made.in_flight
    assert made.motion.state(10.3)[0] == pytest.approx([0.0])
    made.taken(10.01)
    assert not made.in_flight
    assert made.motion.state(10.3)[0] == pytest.approx([1.0])
    assert made.motion.state(10.01)[0] == pytest.approx([0.0])


def test_acknowledged_is_not_taken_yet():
    made = belief()
    made.sent(points(10.3, 1.0), 10.0)
    made.taken(10.01)
    arrivals = made.arrivals(10.1)
    now = arrivals.positions[arrivals.at_s == 10.1]
    # Taken at once, on its way since then; or not taken at all so far.
    assert now.max() > 0.2
    assert now.min() == pytest.approx(0.0)
    # By the first point everything has become the same.
    made.look(10.31)
    assert np.all(made.arrivals(10.31).positions == 1.0)


def test_what_was_sent_later_puts_an_end_to_what_was_possible_before():
    made = belief()
    made.sent(points(10.3, 1.0), 10.0)
    made.taken(10.01)
    made.sent(points(10.4, 2.0), 10.1)
    made.taken(10.11)
    late = made.arrivals(10.12)
    # Whoever had not taken the first one by 10.2 s has taken the second one by 10.3 s.
    by_then = late.positions[late.at_s > 10.3]
    assert by_then.min() > 0.9


def test_doubt_lasts_until_every_motion_has_ended():
    made = belief()
    made.sent(points(10.3, 1.0), 10.0)
    made.look(10.19)
    assert not made.doubtful
    made.look(10.21)
    assert made.doubtful
    assert made.lost == 1
    assert not made.doubt_is_over(10.25)
    assert made.doubt_is_over(10.31)
    assert {round(float(end[0]), 6) for end in made.ends()} == {0.0, 1.0}
    made.stand(np.array([1.0]), 10.4)
    assert not made.doubtful
    assert made.end_s == 10.4


def test_a_brake_may_overtake_what_is_on_its_way():
    made = belief()
    made.sent(points(10.3, 1.0), 10.0)
    made.sent(points(10.35, 0.2), 10.05)
    assert made.end_s == pytest.approx(10.35)
    made.taken(10.06)
    assert made.motion.state(10.4)[0] == pytest.approx([0.2])


def test_a_copy_goes_its_own_way():
    made = belief()
    copied = made.copy()
    made.sent(points(10.3, 1.0), 10.0)
    assert not copied.in_flight
