"""What becomes of a command: what would the robot do?"""

import math
import re

import numpy as np
import pytest
from filtered_robot import LIMITS, NAMES, TICK_S, Robot, smooth, stream
from hypothesis import given, settings
from hypothesis import strategies as st

from physis_ros.robot.joint_motion import CommandedTrajectory
from physis_ros.safety.types import Verdict


def test_a_stream_is_played_within_limits_and_ends_in_a_tail_by_itself():
    robot = Robot()
    answers = stream(robot, 2.0, robot.now_s)
    assert all(a.finding.verdict is Verdict.OK for a in answers), [a.finding for a in answers]
    assert robot.tick.finding.verdict is Verdict.OK
    # From here on nobody commands and nobody ticks: only the controller goes on.
    for _ in range(200):
        state = robot.controller.update(robot.now_s, robot.measured())
        robot.path.append(state.state.position.copy())
        robot.now_s += TICK_S
    robot.assert_resting()
    robot.assert_within_limits()


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 15), min_size=15, max_size=15))
def test_late_messages_do_not_shake_the_robot(delays):
    robot = Robot()
    waits = iter(delays)
    answers = stream(robot, 1.5, robot.now_s, delay=lambda: next(waits) * TICK_S)
    robot.run(1.0)
    robot.assert_resting()
    robot.assert_within_limits()
    assert sum(a.forward is not None for a in answers) >= 1


BROKEN = {
    "nan": (lambda t, p, v: (t, [[math.nan] * 3] + p[1:], v), r"finite: lift: position nan"),
    "infinite velocity": (
        lambda t, p, v: (t, p, [[0.0, math.inf, 0.0]] + v[1:]),
        "finite: bend: velocity inf",
    ),
    "times": (lambda t, p, v: ([t[1], t[0]] + t[2:], p, v), "does not come later"),
    "ragged": (lambda t, p, v: (t, p[:-1] + [[0.0]], v), "has 1 positions for 3 joints"),
    "velocities missing": (lambda t, p, v: (t, p, v[:-1]), "velocities for"),
    "empty": (lambda t, p, v: ([], [], []), "0 points"),
    "jump": (
        lambda t, p, v: (t, [[q[0] + 1.0, q[1], q[2]] for q in p], v),
        r"jump: lift: 1\.0\d+ from the commanded state",
    ),
    "position": (
        lambda t, p, v: ([t[0], 9.0], [p[0], [0.0, 2.5, 0.0]], [v[0], [0.0] * 3]),
        r"position: bend: 2\.5\d* beyond 2\.0",
    ),
    "velocity": (
        lambda t, p, v: ([t[0], 0.4], [p[0], [0.0, 1.5, 0.0]], [v[0], [0.0] * 3]),
        r"(velocity|acceleration): bend",
    ),
    "too long": (lambda t, p, v: (t[:-1] + [99.0], p, v), "lasts 99"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_bad_command_is_rejected_whole_and_the_robot_rests_on_the_last_good_one(name):
    breaks, reason = BROKEN[name]
    robot = Robot()
    begun_s = robot.now_s
    stream(robot, 1.0, begun_s)
    before = robot.filter.counts.accepted
    answer = robot.command(*breaks(*smooth(robot.now_s - begun_s, 0.4)))
    assert answer.forward is None
    assert answer.finding.verdict is Verdict.HOLD
    assert re.search(reason, answer.finding.reason), answer.finding.reason
    assert "\n" not in answer.finding.reason
    assert robot.filter.counts.accepted == before
    assert robot.run(0.005).finding.verdict is Verdict.HOLD
    robot.run(1.0)
    robot.assert_resting()
    robot.assert_within_limits()
    # The cause is gone: a command from where the robot stands is taken again.
    here = robot.path[-1].tolist()
    assert robot.command([0.1, 0.5], [here, here], [[0.0] * 3] * 2).forward is not None
    assert robot.run(0.01).finding.verdict is Verdict.OK


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (("lift", "bend"), "spin is missing"),
        (("lift", "bend", "spin", "tool"), "tool is not a joint"),
        (("lift", "bend", "bend"), "bend is named twice"),
    ],
)
def test_wrong_joints_are_named(names, reason):
    robot = Robot()
    answer = robot.command([0.1], [[0.0] * len(names)], names=names)
    assert reason in answer.finding.reason


def test_names_count_and_not_their_order():
    robot = Robot()
    answer = robot.command([1.0], [[0.3, 0.2, 0.1]], [[0.0] * 3], names=("spin", "bend", "lift"))
    assert answer.forward.positions[-1] == pytest.approx([0.1, 0.2, 0.3])


def test_a_little_too_fast_is_slowed_down_and_said_so():
    robot = Robot()
    decision = robot.command([1.0], [[0.0, 0.7, 0.0]], [[0.0] * 3])
    assert decision.finding.verdict is Verdict.LIMIT
    assert "slowed down" in decision.finding.reason
    assert robot.run(0.01).finding.verdict is Verdict.LIMIT
    robot.run(1.5)
    robot.assert_within_limits()
    assert robot.path[-1][1] == pytest.approx(0.7)


def test_a_last_velocity_gets_a_tail():
    robot = Robot()
    decision = robot.command([0.2, 0.4], [[0.05, 0, 0], [0.15, 0, 0]], [[0.5, 0, 0]] * 2)
    assert not decision.forward.velocities[-1].any()
    assert decision.forward.times_s[-1] > 0.4


def test_a_command_joined_at_its_very_end_rests_all_the_same():
    robot = Robot()
    zeros = [0.0, 0.0, 0.0]
    robot.command([0.5] * 1, [zeros], [zeros])
    robot.run(0.02)
    answer = robot.command([0.5], [zeros], [[0.0, 0.0, 0.00390625]])
    assert answer.forward is not None
    assert not answer.forward.velocities[-1].any()
    robot.run(1.0)
    robot.assert_resting()


def test_points_without_velocities_end_at_rest():
    robot = Robot()
    decision = robot.command([0.5, 1.0], [[0.1, 0, 0], [0.2, 0, 0]])
    assert not decision.forward.velocities[-1].any()
    robot.run(1.2)
    robot.assert_within_limits()
    assert robot.path[-1][0] == pytest.approx(0.2)


def test_continuous_joints_take_the_short_way():
    robot = Robot(position=(0.0, 0.0, math.pi - 0.05))
    decision = robot.command([0.5], [[0.0, 0.0, -math.pi + 0.05]], [[0.0] * 3])
    assert decision.forward.positions[-1][2] == pytest.approx(math.pi + 0.05)


def test_a_stamp_far_from_now_is_refused():
    robot = Robot()
    decision = robot.filter.offer(
        CommandedTrajectory(joint_names=NAMES, times_s=[1.0], positions=[[0.0] * 3]),
        "model",
        robot.now,
        started_s=1.7e9,
    )
    assert decision.finding.reason.startswith("model: rejected: age")


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_whatever_is_commanded_no_limit_is_passed(data):
    robot = Robot()
    number = st.floats(-3.0, 3.0)
    for _ in range(6):
        count = data.draw(st.integers(1, 4))
        steps = data.draw(st.lists(st.floats(0.03, 0.5), min_size=count, max_size=count))
        rows = st.lists(st.lists(number, min_size=3, max_size=3), min_size=count, max_size=count)
        near = robot.filter.commanded(robot.now)[0]
        scale = data.draw(st.sampled_from([0.02, 0.1, 1.0]))
        positions = (near + scale * np.array(data.draw(rows))).tolist()
        velocities = (scale * np.array(data.draw(rows))).tolist()
        robot.command(np.cumsum(steps).tolist(), positions, velocities)
        robot.run(data.draw(st.floats(0.01, 0.3)))
    robot.run(3.0)
    robot.assert_resting()
    robot.assert_within_limits()


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.floats(-0.3, 0.3), min_size=3, max_size=3),
    st.floats(0.4, 0.9),
    st.floats(0.0, 1.0),
)
def test_the_way_to_a_command_takes_no_longer_than_the_command(change, lasts_s, moves_s):
    robot = Robot()
    stream(robot, 0.3 + moves_s, robot.now_s)
    here, speed = robot.filter.commanded(robot.now)
    goal = here + 0.1 * speed + np.array(change)
    times = np.arange(0.06, lasts_s, 0.05)
    rows = [(here + (goal - here) * min(1.0, t / times[-1])).tolist() for t in times]
    answer = robot.command(times.tolist(), rows)
    if answer.forward is None:
        return
    # Were this the last command, the robot would rest when it was told to, made whole or in part.
    braked_s = np.abs(answer.forward.velocities[0]) / np.array(LIMITS.acceleration)
    stretched_s = times[-1] * robot.filter.config.slow_most
    assert answer.forward.times_s[0] <= stretched_s + 1e-6
    if answer.finding.verdict is Verdict.OK:
        assert answer.forward.times_s[-1] <= times[-1] + 1e-6
    else:
        assert answer.forward.times_s[-1] <= stretched_s + braked_s.max() + 1e-6


def test_a_command_that_ends_in_motion_too_soon_names_the_horizon_that_it_needs():
    """As MoveIt Servo's: three points 34 ms apart, with velocities."""
    robot = Robot()
    times = [0.034, 0.068, 0.102]
    moving = [[0.2 * t, 0.0, 0.0] for t in times]
    answer = robot.command(times, moving, [[0.2, 0.0, 0.0]] * 3, source="teleop")
    assert answer.forward is None
    assert "horizon: it ends in motion 0.102 s ahead" in answer.finding.reason
    assert "at least 0.250 s ahead" in answer.finding.reason
    # One that comes to rest as soon is a stop, and is followed.
    resting = robot.command(times, [[0.0, 0.0, 0.0]] * 3, [[0.0] * 3] * 3, source="teleop")
    assert resting.forward is not None
