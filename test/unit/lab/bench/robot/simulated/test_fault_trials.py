"""A few fault trials of each kind; `physis bench safety` runs thousands."""

import numpy as np
import pytest

from physis_lab.bench.robot.simulated.chunk_source import ChunkSource
from physis_lab.bench.robot.simulated.closed_loop import ClosedLoop
from physis_lab.bench.robot.simulated.fault_trials import FAULTS, play_trial, play_trials
from physis_lab.bench.robot.simulated.random_series import HOME_RAD, ur5e_limits


@pytest.mark.parametrize("kind", sorted(FAULTS))
def test_no_fault_passes_a_limit_and_each_ends_at_rest(kind):
    found = play_trials(2, seed=0, kinds=[kind], tell=lambda _: None)[kind]
    assert found.trials == 2
    assert found.violated_seeds == []
    assert found.restless_seeds == []
    assert found.said or kind == "safety_dead"


@pytest.mark.parametrize(("kind", "seed"), [("delay", 1074), ("delay", 1080)])
def test_joint_states_that_lag_do_not_hide_the_end_of_a_lost_motion(kind, seed):
    assert play_trial(kind, seed).use.violations == 0


@pytest.mark.parametrize("seed", [15, 63, 68, 94, 102])
def test_what_a_restarted_controller_lost_is_not_taken_as_followed(seed):
    assert play_trial("controller_restart", seed).use.violations == 0


def test_a_trial_is_determined_by_kind_and_seed():
    one, other = play_trial("loss", 4), play_trial("loss", 4)
    assert one == other
    assert one.said != play_trial("loss", 5).said


def test_what_is_wrong_is_said():
    def said(kind):
        return " ".join(play_trials(3, seed=10, kinds=[kind], tell=lambda _: None)[kind].said)

    assert "not acknowledged within" in said("hung_subscriber")
    assert "/foreign publishes on" in said("foreign_publisher")
    assert "must be active" in said("controller_restart")


@pytest.mark.parametrize("observes", [True, False])
@pytest.mark.parametrize("seed", range(2))
def test_an_arm_moved_by_hand_goes_on_from_where_it_is(seed, observes):
    """The chunks after it begin where the arm is, or where it was before."""
    random = np.random.default_rng(seed)
    limits, home = ur5e_limits(), np.array(HOME_RAD)
    source = ChunkSource.any(limits, home, random)
    source.habits.observes = observes
    loop = ClosedLoop(limits, home, random, source=source)
    loop.run(1.0)
    source.silent = True
    loop.run(2.0)
    begin = loop.robot.position.copy()
    moved = begin + np.array([0.0, 0.1, 0.3, 0.0, -0.2, 0.0])
    loop.robot.stop()
    loop.guide(lambda since_s: begin + min(since_s, 1.0) * (moved - begin))
    loop.run(1.2)
    loop.guide(None)
    loop.robot.start()
    loop.run(1.5)
    # Safety and buffer both know where the arm is, before anything moves it.
    commanded = loop.safety.commanded(loop.instant)
    planned = loop.buffer.timeline.point(loop.ros_ns).position
    assert np.allclose(commanded[0], moved, atol=0.01)
    assert np.allclose(planned, moved, atol=0.01)
    loop.operator_arms = True
    source.silent = False
    before = loop.buffer.timeline.counts.accepted
    loop.run(2.0)
    refused = sum(loop.counts.refused_chunks.values())
    assert loop.buffer.timeline.counts.accepted > before or refused > 0
    source.silent = True
    loop.run_to_rest(4.0)
    assert loop.rests
    assert loop.robot.motion.limit_use().violations == 0
