"""The watchdogs, the latch and the sources of the filter: what would the robot do?"""

import numpy as np
import pytest
from filtered_robot import LIMITS, NAMES, TICK_S, Robot, smooth, stream

from physis_core.types import UserError
from physis_ros.robot.joint_motion import CommandedTrajectory
from physis_ros.safety.command_judge import judge_command
from physis_ros.safety.types import Instant, SafetyConfig, Verdict


def test_silence_is_hold_with_the_reason():
    robot = Robot()
    stream(robot, 1.0, robot.now_s)
    tick = robot.run(1.0)
    assert tick.finding.verdict is Verdict.HOLD
    assert "no command for" in tick.finding.reason
    assert robot.filter.counts.trips >= 1
    robot.assert_resting()


def test_a_rejection_is_the_reason_until_the_source_has_been_silent():
    robot = Robot()
    begun_s = robot.now_s
    stream(robot, 1.0, begun_s)
    times, positions, velocities = smooth(robot.now_s - begun_s, 0.4)
    positions[0][0] = np.nan
    for _ in range(10):
        robot.command(times, positions, velocities)
        tick = robot.run(0.1)
        # As long as such commands come, that is why the robot rests.
        assert tick.finding.reason.startswith("model: rejected: finite: lift")
    tick = robot.run(0.6)
    assert tick.finding.verdict is Verdict.HOLD
    silent = "model: no command for 0.7 s, limit 0.5 s; last: model: rejected: finite"
    assert tick.finding.reason.startswith(silent)
    robot.command(*smooth(robot.now_s - begun_s, 0.4))
    here = robot.path[-1].tolist()
    robot.command([0.3], [here], [[0.0] * 3])
    assert robot.run(0.01).finding.verdict is Verdict.OK


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


def test_what_is_not_acknowledged_bars_everything_until_rest():
    robot = Robot()
    begun_s = robot.now_s
    stream(robot, 1.0, begun_s)
    forward = robot.filter.offer(_window(robot, begun_s), "model", robot.now).forward
    assert forward is not None
    # The controller never gets it, and nobody acknowledges it.
    assert (
        "in flight"
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
    robot.filter.handover.set_listening(False)
    answer = robot.command([0.5], [[0.05, 0.0, 0.0]], [[0.0] * 3])
    assert answer.forward is None
    assert "no subscriber" in answer.finding.reason
    assert robot.run(0.01).finding.verdict is Verdict.HOLD
    robot.filter.handover.set_listening(True)
    assert robot.command([0.5], [[0.05, 0.0, 0.0]], [[0.0] * 3]).forward is not None


def test_what_was_judged_before_a_stop_is_overtaken_by_it():
    robot = Robot()
    request = robot.filter.request("model", robot.now)
    judgement = judge_command(
        CommandedTrajectory(
            joint_names=NAMES, times_s=[0.5], positions=[[0.05, 0.0, 0.0]], velocities=[[0.0] * 3]
        ),
        request.estimate,
        robot.now_s,
        LIMITS,
        robot.filter.config,
        started_s=0.0,
    )
    robot.filter.estop(robot.now)
    assert robot.filter.decide(request, judgement, robot.now).forward is None
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
