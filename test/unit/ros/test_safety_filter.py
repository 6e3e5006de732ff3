"""The filter against an emulated trajectory controller: what would the robot do?"""

import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from physis_core.types import UserError
from physis_ros.command_judge import judged
from physis_ros.joint_limits import RobotLimits
from physis_ros.point_interpolation import MotionState
from physis_ros.safety_checks import CommandedTrajectory
from physis_ros.safety_filter import SafetyFilter
from physis_ros.safety_types import Instant, SafetyConfig
from physis_ros.safety_verdict import Verdict
from physis_ros.trajectory_controller import (
    ControllerConfig,
    Trajectory,
    TrajectoryController,
    TrajectoryPoint,
)

TICK_S = 0.005
NAMES = ("lift", "bend", "spin")
LIMITS = RobotLimits(
    names=NAMES,
    lower=(-1.5, -2.0, -math.inf),
    upper=(1.5, 2.0, math.inf),
    velocity=(2.0, 1.0, 3.0),
    acceleration=(8.0, 4.0, 10.0),
    jump=(0.4, 0.4, 0.4),
    wraps=(False, False, True),
)


class Robot:
    """A controller that plays what the filter forwards, on the filter's clock; it obeys exactly."""

    def __init__(self, config=None, position=(0.0, 0.0, 0.0)):
        self.filter = SafetyFilter(LIMITS, config or SafetyConfig())
        self.now_s = 100.0
        self.sees = True
        state = MotionState(
            position=np.array(position), velocity=np.zeros(3), acceleration=np.zeros(3)
        )
        self.controller = TrajectoryController(
            ControllerConfig(joint_names=NAMES, interpolate_from_desired_state=True), state
        )
        self.path = [np.array(position)]
        self.tick = None
        self.run(0.02)

    @property
    def now(self):
        return Instant(steady_s=self.now_s, motion_s=self.now_s)

    def play(self, forward):
        if forward is None:
            return
        refused = self.controller.accept(
            Trajectory(
                joint_names=NAMES,
                start_s=self.now_s,
                points=tuple(
                    TrajectoryPoint(
                        time_from_start_s=float(t), positions=tuple(q), velocities=tuple(v)
                    )
                    for t, q, v in zip(forward.times_s, forward.positions, forward.velocities)
                ),
            ),
            self.now_s,
        )
        assert refused is None
        self.filter.handover.taken(self.now_s)

    def run(self, seconds):
        for _ in range(round(seconds / TICK_S)):
            if self.sees:
                self.filter.joints.see(NAMES, self.path[-1].tolist(), [], self.now_s)
            self.tick = self.filter.tick(self.now)
            self.play(self.tick.forward)
            state = self.controller.update(self.now_s, self.measured())
            self.path.append(state.state.position.copy())
            self.now_s += TICK_S
        return self.tick

    def measured(self):
        zeros = np.zeros(3)
        return MotionState(position=self.path[-1], velocity=zeros, acceleration=zeros)

    def command(self, times, positions, velocities=(), names=NAMES, source="model"):
        offered = self.filter.offer(
            CommandedTrajectory(
                joint_names=names, times_s=times, positions=positions, velocities=velocities
            ),
            source,
            self.now,
        )
        self.play(offered.forward)
        return offered

    def assert_within_limits(self):
        path = np.array(self.path)
        assert np.all(path >= np.array(LIMITS.lower) - 1e-6)
        assert np.all(path <= np.array(LIMITS.upper) + 1e-6)
        speed = np.diff(path, axis=0) / TICK_S
        assert np.all(np.abs(speed) <= np.array(LIMITS.velocity) * 1.02)
        change = (speed[3:] - speed[:-3]) / (3 * TICK_S)
        assert np.all(np.abs(change) <= np.array(LIMITS.acceleration) * 1.05)

    def assert_resting(self):
        assert np.allclose(self.path[-1], self.path[-5], atol=1e-12)


def smooth(start_s, seconds, scale=0.3, step_s=0.05):
    """A slow sine seen from `start_s` on: times from now, positions, velocities."""
    times = np.arange(1, round(seconds / step_s) + 1) * step_s
    at = start_s + times
    weights = np.array([1.0, 0.5, -1.0])
    positions = scale * (1.0 - np.cos(1.5 * at))[:, None] * weights
    velocities = scale * 1.5 * np.sin(1.5 * at)[:, None] * weights
    return times.tolist(), positions.tolist(), velocities.tolist()


def stream(robot, seconds, begun_s, delay=lambda: 0.0):
    """Commands every 0.1 s, each delivered `delay()` late."""
    answers = []
    for _ in range(round(seconds / 0.1)):
        window = smooth(robot.now_s - begun_s, 0.4)
        late_s = delay()
        robot.run(late_s)
        answers.append(robot.command(*window))
        robot.run(0.1 - late_s)
    return answers


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


def test_silence_is_hold_with_the_reason():
    robot = Robot()
    stream(robot, 1.0, robot.now_s)
    tick = robot.run(1.0)
    assert tick.finding.verdict is Verdict.HOLD
    assert "no command for" in tick.finding.reason
    assert robot.filter.counts.trips >= 1
    robot.assert_resting()


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
    offered = robot.command([1.0], [[0.0, 0.7, 0.0]], [[0.0] * 3])
    assert offered.finding.verdict is Verdict.LIMIT
    assert "slowed down" in offered.finding.reason
    assert robot.run(0.01).finding.verdict is Verdict.LIMIT
    robot.run(1.5)
    robot.assert_within_limits()
    assert robot.path[-1][1] == pytest.approx(0.7)


def test_a_last_velocity_gets_a_tail():
    robot = Robot()
    offered = robot.command([0.2, 0.4], [[0.05, 0, 0], [0.15, 0, 0]], [[0.5, 0, 0]] * 2)
    assert not offered.forward.velocities[-1].any()
    assert offered.forward.times_s[-1] > 0.4


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
    offered = robot.command([0.5, 1.0], [[0.1, 0, 0], [0.2, 0, 0]])
    assert not offered.forward.velocities[-1].any()
    robot.run(1.2)
    robot.assert_within_limits()
    assert robot.path[-1][0] == pytest.approx(0.2)


def test_continuous_joints_take_the_short_way():
    robot = Robot(position=(0.0, 0.0, math.pi - 0.05))
    offered = robot.command([0.5], [[0.0, 0.0, -math.pi + 0.05]], [[0.0] * 3])
    assert offered.forward.positions[-1][2] == pytest.approx(math.pi + 0.05)


def test_lost_joint_states_brake_at_once_and_bar_commands():
    robot = Robot()
    begun_s = robot.now_s
    stream(robot, 1.0, begun_s)
    robot.sees = False
    tick = robot.run(0.15)
    assert tick.finding.verdict is Verdict.HOLD
    assert tick.finding.reason.startswith("joint_states: lift: nothing for")
    assert robot.command(*smooth(robot.now_s - begun_s, 0.4)).forward is None
    robot.run(0.4)
    robot.assert_resting()
    robot.assert_within_limits()
    robot.sees = True
    robot.run(0.05)
    here = robot.path[-1].tolist()
    assert robot.command([0.1], [here], [[0.0] * 3]).forward is not None
    assert robot.run(0.01).finding.verdict is Verdict.OK


def test_a_stop_is_latched_and_resets_only_by_hand_after_rest_and_cooldown():
    robot = Robot()
    begun_s = robot.now_s
    stream(robot, 1.0, begun_s)
    robot.filter.estop(robot.now)
    tick = robot.run(0.005)
    assert tick.finding.verdict is Verdict.STOP
    assert tick.forward is not None
    assert robot.command(*smooth(robot.now_s - begun_s, 0.4)).forward is None
    assert "still braking" in robot.filter.reset(robot.now).reason
    robot.run(0.5)
    assert "cooling down" in robot.filter.reset(robot.now).reason
    assert robot.run(2.0).finding.verdict is Verdict.STOP
    robot.assert_resting()
    robot.assert_within_limits()
    assert robot.filter.reset(robot.now).done
    tick = robot.run(0.01)
    assert tick.finding.verdict is Verdict.HOLD
    here = robot.path[-1].tolist()
    robot.command([0.1], [here], [[0.0] * 3])
    assert robot.run(0.01).finding.verdict is Verdict.OK


def test_a_teleoperator_pre_empts_the_model_until_silent():
    robot = Robot()
    begun_s = robot.now_s
    stream(robot, 1.0, begun_s)
    here, speed = robot.filter.commanded(robot.now)
    goal = (here + 0.2 * speed).tolist()
    assert robot.command([0.5], [goal], [[0.0] * 3], source="teleop").forward is not None
    answer = robot.command(*smooth(robot.now_s - begun_s, 0.4))
    assert answer.forward is None
    assert answer.finding.reason == "model: pre-empted by teleop"
    assert robot.run(0.1).finding.verdict is Verdict.OK
    robot.run(0.6)
    here = robot.path[-1].tolist()
    assert robot.command([0.1], [here], [[0.0] * 3]).forward is not None
    assert robot.filter.source == "model"
    robot.assert_within_limits()


def test_disabled_brakes_and_refuses():
    robot = Robot()
    stream(robot, 1.0, robot.now_s)
    robot.filter.enable(False)
    assert robot.run(0.005).finding.reason == "disabled"
    robot.run(0.5)
    robot.assert_resting()
    assert robot.command([0.1], [robot.path[-1].tolist()]).forward is None
    robot.filter.enable(True)
    assert robot.run(0.01).finding.reason == "no command since enabling"


def test_a_robot_that_does_not_obey_is_stopped():
    robot = Robot()
    begun_s = robot.now_s
    stream(robot, 0.5, begun_s)
    stuck = robot.path[-1].tolist()
    for _ in range(30):
        robot.command(*smooth(robot.now_s - begun_s, 0.4))
        for _ in range(10):
            robot.filter.joints.see(NAMES, stuck, [], robot.now_s)
            tick = robot.filter.tick(robot.now)
            robot.now_s += TICK_S
    assert tick.finding.verdict is Verdict.STOP
    assert tick.finding.reason.startswith("tracking: ")


def test_a_robot_moved_by_somebody_else_is_followed_while_idle():
    robot = Robot()
    robot.run(1.5)
    for _ in range(100):
        robot.filter.joints.see(NAMES, [1.0, 0.0, 0.0], [], robot.now_s)
        tick = robot.filter.tick(robot.now)
        robot.now_s += TICK_S
    assert tick.finding.verdict is Verdict.HOLD
    assert robot.filter.commanded(robot.now)[0] == pytest.approx([1.0, 0.0, 0.0])


def test_hold_is_from_the_commanded_state():
    robot = Robot()
    sagging = [-0.02, 0.0, 0.0]
    for _ in range(40):
        robot.filter.joints.see(NAMES, sagging, [], robot.now_s)
        robot.filter.tick(robot.now)
        robot.now_s += TICK_S
    robot.filter.estop(robot.now)
    # It rests where it was told to; there is nothing to tell it.
    assert robot.filter.tick(robot.now).forward is None
    assert robot.filter.commanded(robot.now)[0] == pytest.approx([0.0, 0.0, 0.0])


def test_a_measured_position_beyond_its_limit_is_a_stop():
    robot = Robot()
    robot.filter.joints.see(NAMES, [1.7, 0.0, 0.0], [], robot.now_s)
    tick = robot.filter.tick(robot.now)
    assert tick.finding.verdict is Verdict.STOP
    assert "measured position: lift: 1.7" in tick.finding.reason


def test_a_stamp_far_from_now_is_refused():
    robot = Robot()
    offered = robot.filter.offer(
        CommandedTrajectory(joint_names=NAMES, times_s=[1.0], positions=[[0.0] * 3]),
        "model",
        robot.now,
        started_s=1.7e9,
    )
    assert offered.finding.reason.startswith("model: rejected: age")


def test_frozen_joint_states_are_not_fresh():
    robot = Robot()
    for _ in range(60):
        robot.filter.joints.see(NAMES, [0.0] * 3, [], robot.now_s, stamp_ns=7)
        tick = robot.filter.tick(robot.now)
        robot.now_s += TICK_S
    assert "stamp does not advance" in tick.finding.reason


@pytest.mark.parametrize("delta_s", [-50.0, 50.0])
def test_a_jump_of_the_motion_clock_brakes_where_the_robot_was(delta_s):
    robot = Robot()
    stream(robot, 1.0, robot.now_s)
    before, speed = robot.filter.commanded(robot.now)
    jumped = Instant(steady_s=robot.now_s, motion_s=robot.now_s + delta_s)
    robot.filter.clock_jumped(jumped, delta_s=delta_s)
    assert robot.filter.commanded(jumped)[0] == pytest.approx(before)
    tick = robot.filter.tick(jumped)
    assert tick.finding.verdict is Verdict.HOLD
    assert "ROS time jumped" in tick.finding.reason
    assert not tick.forward.velocities[-1].any()
    assert np.all(np.abs(tick.forward.positions[-1] - before) < np.abs(speed) * 0.2 + 1e-6)


def test_wrong_configuration_names_the_field():
    with pytest.raises(UserError, match="late_s"):
        SafetyConfig(late_s=-1.0)


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


def test_what_is_not_acknowledged_bars_everything_until_rest():
    robot = Robot()
    begun_s = robot.now_s
    stream(robot, 1.0, begun_s)
    forward = robot.filter.offer(_window(robot, begun_s), "model", robot.now).forward
    assert forward is not None
    # The controller never gets it, and nobody acknowledges it.
    assert (
        "on its way"
        in robot.filter.offer(_window(robot, begun_s), "model", robot.now).finding.reason
    )
    tick = robot.run(0.25)
    assert tick.finding.verdict is Verdict.HOLD
    assert tick.finding.reason.startswith("handover: not acknowledged within 0.2 s")
    assert robot.filter.offer(_window(robot, begun_s), "model", robot.now).forward is None
    assert robot.filter.handover.lost == 1
    robot.run(0.6)
    robot.assert_resting()
    robot.assert_within_limits()
    assert robot.filter.commanded(robot.now)[0] == pytest.approx(robot.path[-1])
    here = robot.path[-1].tolist()
    assert robot.command([0.1], [here], [[0.0] * 3]).forward is not None
    assert robot.run(0.01).finding.verdict is Verdict.OK


def _window(robot, begun_s):
    times, positions, velocities = smooth(robot.now_s - begun_s, 0.4)
    return CommandedTrajectory(
        joint_names=NAMES, times_s=times, positions=positions, velocities=velocities
    )


def test_nothing_is_forwarded_where_nobody_receives_it():
    robot = Robot()
    robot.filter.handover.listened_to(False)
    answer = robot.command([0.5], [[0.05, 0.0, 0.0]], [[0.0] * 3])
    assert answer.forward is None
    assert "nobody receives" in answer.finding.reason
    assert robot.run(0.01).finding.verdict is Verdict.HOLD
    robot.filter.handover.listened_to(True)
    assert robot.command([0.5], [[0.05, 0.0, 0.0]], [[0.0] * 3]).forward is not None


def test_what_was_judged_before_a_stop_is_overtaken_by_it():
    robot = Robot()
    question = robot.filter.question("model", robot.now)
    judgement = judged(
        CommandedTrajectory(
            joint_names=NAMES, times_s=[0.5], positions=[[0.05, 0.0, 0.0]], velocities=[[0.0] * 3]
        ),
        question.belief,
        robot.now_s,
        LIMITS,
        robot.filter.config,
        started_s=0.0,
    )
    robot.filter.estop(robot.now)
    assert robot.filter.answer(question, judgement, robot.now).forward is None
    assert robot.run(0.01).finding.verdict is Verdict.STOP


def test_a_forward_position_controller_needs_no_acknowledgement():
    robot = Robot(SafetyConfig(late_s=0.0, acknowledged=False))
    robot.command([0.3], [[0.1, 0.0, 0.0]], [[0.0] * 3])
    assert not robot.filter.handover.in_flight
    robot.run(0.1)
    robot.filter.estop(robot.now)
    forward = robot.filter.tick(robot.now).forward
    assert 0.02 < forward.times_s[-1] < 0.2
    assert not forward.velocities[-1].any()
