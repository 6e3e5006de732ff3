"""The watchdogs, the latch and the sources of the filter: what would the robot do?"""

from dataclasses import replace

import numpy as np
import pytest
from filtered_robot import LIMITS, NAMES, TICK_S, Robot, controller, smooth, stream

from physis_core.types import UserError
from physis_ros.robot.joint_motion import CommandedTrajectory
from physis_ros.safety.types import Instant, OfferedCommand, SafetyConfig, Verdict


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
    assert "the cause persists" in robot.filter.reset(robot.now).reason
    robot.run(0.7)
    assert "cooling down" in robot.filter.reset(robot.now).reason
    assert robot.run(2.0).finding.verdict is Verdict.STOP
    robot.assert_resting()
    robot.assert_within_limits()
    assert not robot.filter.arm(robot.now).done
    assert robot.filter.reset(robot.now).done
    here = robot.path[-1].tolist()
    # Chunks that go on flowing move nothing: a reset does not arm.
    for _ in range(20):
        assert robot.command([0.1], [here], [[0.0] * 3]).forward is None
        tick = robot.run(0.1)
    assert tick.finding.reason == "disarmed: a STOP came; ~/reset, then ~/enable"
    robot.assert_resting()
    assert robot.filter.arm(robot.now).done
    robot.command([0.1], [here], [[0.0] * 3])
    assert robot.run(0.01).finding.verdict is Verdict.OK


def test_it_starts_disarmed_and_says_all_that_is_not_right():
    robot = Robot(SafetyConfig())
    assert robot.tick.finding.reason == "disarmed: ~/enable arms"
    here = robot.path[-1].tolist()
    assert robot.command([0.3], [here], [[0.0] * 3]).forward is None
    robot.filter.handover.set_listening(False)
    robot.filter.surroundings(["/rqt publishes on it, too"])
    robot.filter.joints.see(NAMES, [0.1, 0.0, 0.0], [], robot.now_s)
    answer = robot.filter.arm(robot.now)
    assert not answer.done
    for part in ("lift moved by 0.1", "no subscriber", "/rqt publishes on it, too"):
        assert part in answer.reason
    robot.filter.handover.set_listening(True)
    robot.filter.surroundings([])
    robot.run(0.3)
    assert robot.filter.arm(robot.now).done
    assert robot.command([0.3], [here], [[0.0] * 3]).forward is not None


def test_what_is_wrong_around_it_disarms_and_brakes():
    robot = Robot()
    stream(robot, 1.0, robot.now_s)
    robot.filter.surroundings(["/rqt publishes on it, too"])
    tick = robot.run(0.005)
    assert tick.finding.reason == "disarmed: /rqt publishes on it, too"
    assert tick.forward is not None
    robot.filter.surroundings([])
    robot.run(1.0)
    robot.assert_resting()
    robot.assert_within_limits()
    assert not robot.filter.enabled


def test_a_teleoperator_pre_empts_the_model_until_it_hands_back():
    robot = Robot()
    begun_s = robot.now_s
    stream(robot, 1.0, begun_s)
    here, speed = robot.filter.commanded(robot.now)
    goal = (here + 0.2 * speed).tolist()
    assert robot.command([0.5], [goal], [[0.0] * 3], source="teleop").forward is not None
    answer = robot.command(*smooth(robot.now_s - begun_s, 0.4))
    assert answer.forward is None
    assert answer.finding.reason == ("model: pre-empted by teleop; ~/hand_back gives control back")
    assert robot.run(0.1).finding.verdict is Verdict.OK
    tick = robot.run(3.0)
    assert tick.finding.verdict is Verdict.HOLD
    assert "teleop: in control, no command for 3.1 s; ~/hand_back" in tick.finding.reason
    here = robot.path[-1].tolist()
    assert robot.command([0.1], [here], [[0.0] * 3]).forward is None
    assert robot.filter.hand_back(robot.now).reason == "teleop handed back; the model is in control"
    assert robot.command([0.1], [here], [[0.0] * 3]).forward is not None
    assert robot.filter.source == "model"
    robot.assert_within_limits()


@pytest.mark.parametrize("bad", ["jump", "nan", "in flight"])
def test_a_command_of_a_teleoperator_that_is_refused_ends_the_models_motion(bad):
    robot = Robot()
    begun_s = robot.now_s
    stream(robot, 1.0, begun_s)
    if bad == "in flight":
        forward = robot.filter.offer(_window(robot, begun_s), "model", robot.now).forward
        assert forward is not None
    here, _ = robot.filter.commanded(robot.now)
    goal = [float("nan")] * 3 if bad == "nan" else (here + 1.0).tolist()
    assert robot.command([0.1], [goal], [[0.0] * 3], source="teleop").forward is None
    assert robot.run(0.005).forward is not None
    for _ in range(10):
        assert robot.command(*smooth(robot.now_s - begun_s, 0.4)).forward is None
        robot.run(0.1)
    robot.assert_resting()
    robot.assert_within_limits()
    assert np.abs(robot.path[-1] - here).max() < 0.2


def test_disarmed_it_brakes_and_refuses():
    robot = Robot()
    stream(robot, 1.0, robot.now_s)
    robot.filter.disarm(robot.now)
    assert robot.run(0.005).finding.reason == "disarmed: ~/enable arms"
    robot.run(0.7)
    robot.assert_resting()
    assert robot.command([0.1], [robot.path[-1].tolist()]).forward is None
    assert robot.filter.arm(robot.now).done
    assert robot.run(0.01).finding.reason == "no command since arming"


def _obeys_badly(share, limits=LIMITS):
    """Stream to a robot that moves by `share` of what is commanded, and return the last tick."""
    robot = Robot(limits=limits)
    begun_s = robot.now_s
    stream(robot, 0.5, begun_s)
    start = robot.path[-1]
    for _ in range(30):
        robot.command(*smooth(robot.now_s - begun_s, 0.4))
        for _ in range(10):
            commanded, _ = robot.filter.commanded(robot.now)
            at = start + share * (commanded - start)
            robot.filter.joints.see(NAMES, at.tolist(), [], robot.now_s)
            tick = robot.filter.tick(robot.now)
            robot.now_s += TICK_S
    return robot, tick


def test_a_robot_that_obeys_badly_is_stopped():
    _, tick = _obeys_badly(0.1)
    assert tick.finding.verdict is Verdict.STOP
    assert tick.finding.reason.startswith("tracking: ")


def test_a_joint_may_have_a_tracking_tolerance_of_its_own():
    limits = replace(LIMITS, tracking=(3.0, None, 3.0))
    _, tick = _obeys_badly(0.1, limits)
    assert "tracking" not in tick.finding.reason
    _, tick = _obeys_badly(0.1, replace(limits, tracking=(3.0, 0.01, 3.0)))
    assert tick.finding.verdict is Verdict.STOP
    assert f"tracking: {NAMES[1]}" in tick.finding.reason


def test_a_gripper_that_holds_something_goes_on_pressing():
    """Joint 2 stands at 0.02 and is commanded to 0.0; the arm moves, and rests."""
    limits = replace(LIMITS, tracking=(None, None, 0.1), rest=(None, None, 0.1))
    robot = Robot(limits=limits)

    def run(seconds):
        for _ in range(round(seconds / TICK_S)):
            state = robot.controller.update(robot.now_s, robot.measured()).state.position
            robot.path.append(state.copy())
            seen = [state[0], state[1], max(state[2], 0.02)]
            robot.filter.joints.see(NAMES, seen, [], robot.now_s)
            tick = robot.filter.tick(robot.now)
            robot.play(tick.forward)
            robot.now_s += TICK_S
        return tick

    for place in (0.05, 0.1):
        assert robot.command([0.5], [[place, 0.0, 0.0]], [[0.0] * 3]).forward is not None
        run(2.0)
        commanded, _ = robot.filter.commanded(robot.now)
        assert commanded[2] == pytest.approx(0.0, abs=1e-9)
        assert commanded[0] == pytest.approx(place, abs=2e-3)
        assert robot.filter.enabled


def test_a_robot_that_does_not_move_disarms():
    robot, tick = _obeys_badly(0.0)
    assert not robot.filter.enabled
    assert tick.finding.verdict >= Verdict.HOLD
    assert "the robot stood still where it was commanded to move" in tick.finding.reason


def _guided(robot, goal, seconds):
    """A hand takes the idle robot to `goal`; the controller, which starts from there, lets it."""
    start = robot.path[-1]
    ticks = round(seconds / TICK_S)
    for number in range(1, ticks + 1):
        at = start + (np.array(goal) - start) * number / ticks
        robot.filter.joints.see(NAMES, at.tolist(), [], robot.now_s)
        robot.tick = robot.filter.tick(robot.now)
        robot.path.append(at)
        robot.now_s += TICK_S


def test_an_idle_robot_is_where_it_is_measured():
    robot = Robot()
    robot.run(0.5)
    _guided(robot, [0.3, 0.0, 0.0], 0.5)
    assert robot.tick.finding.reason.startswith("moved by something else: joint_states: lift moved")
    assert robot.filter.commanded(robot.now)[0] == pytest.approx([0.3, 0.0, 0.0], abs=0.003)
    # While it moves no command is accepted, at rest only one that begins where it is.
    here = robot.path[-1].tolist()
    assert robot.command([0.3], [here], [[0.0] * 3]).forward is None
    _guided(robot, [0.3, 0.0, 0.0], 0.3)
    assert robot.command([0.1], [[-0.15, 0.0, 0.0]], [[0.0] * 3]).finding.reason.startswith(
        "model: rejected: jump: lift"
    )
    assert robot.command([0.3], [here], [[0.0] * 3]).forward is not None


@pytest.mark.parametrize("taken_late_s", [0.0, 0.15])
@pytest.mark.parametrize("from_desired", [True, False])
def test_the_first_command_after_hand_guiding_keeps_the_limits(taken_late_s, from_desired):
    """A controller that was activated again starts from the measured state."""
    robot = Robot()
    robot.run(0.5)
    _guided(robot, [0.3, 0.0, 0.0], 0.5)
    _guided(robot, [0.3, 0.0, 0.0], 0.5)
    robot.controller = controller(robot.path[-1], from_desired=from_desired)
    times, positions, velocities = smooth(0.0, 0.6, scale=0.05)
    positions = (np.array(positions) + robot.path[-1]).tolist()
    robot.path = robot.path[-1:]
    decision = robot.offer(times, positions, velocities)
    assert decision.forward is not None
    robot.run(taken_late_s)
    robot.play(decision.forward, sent_s=robot.now_s - taken_late_s)
    robot.run(1.0)
    robot.assert_within_limits()
    assert np.abs(robot.path[-1] - robot.path[0]).max() > 0.01


def test_noise_of_the_sensors_changes_nothing():
    robot = Robot()
    robot.run(0.5)
    changes = robot.filter.handover.changes
    for number in range(200):
        noise = 0.0009 if number % 2 else -0.0009
        robot.filter.joints.see(NAMES, [noise, 0.0, 0.0], [], robot.now_s)
        tick = robot.filter.tick(robot.now)
        robot.now_s += TICK_S
    assert robot.filter.handover.changes == changes
    assert tick.finding.reason == "no command yet"


def test_a_robot_that_sags_rests_where_it_is_measured_and_may_hold_what_was_commanded():
    robot = Robot()
    robot.run(0.5)
    for _ in range(100):
        robot.filter.joints.see(NAMES, [-0.02, 0.0, 0.0], [], robot.now_s)
        robot.filter.tick(robot.now)
        robot.now_s += TICK_S
    assert robot.filter.commanded(robot.now)[0] == pytest.approx([-0.02, 0.0, 0.0])
    seen = robot.filter.handover.estimate().arrivals(robot.now_s)
    assert {round(float(q), 3) for q in seen.positions[:, 0]} == {-0.02, 0.0}


def test_measured_samples_beyond_a_limit_are_a_stop_where_they_last():
    robot = Robot()
    for number in range(3):
        robot.filter.joints.see(NAMES, [0.0] * 3, [3.5, 0.0, 0.0], robot.now_s)
        tick = robot.filter.tick(robot.now)
        assert (tick.finding.verdict is Verdict.STOP) is (number == 2)
        robot.now_s += TICK_S
    assert tick.finding.reason.startswith("measured velocity: lift: 3.5")
    assert tick.finding.reason.endswith("in 3 of the last 10 messages")


def test_a_stop_brakes_also_where_nobody_knows_what_the_controller_plays():
    """One subscriber hangs, so nothing is acknowledged, but the controller takes everything."""
    robot = Robot()
    robot.run(0.3)
    long_way = robot.filter.offer(
        CommandedTrajectory(
            joint_names=NAMES,
            times_s=[2.0, 4.8],
            positions=[[0.6, 0.0, 0.0], [1.4, 0.0, 0.0]],
            velocities=[[0.5, 0.0, 0.0], [0.0] * 3],
        ),
        "model",
        robot.now,
    ).forward
    assert long_way is not None
    robot.acknowledges = False
    robot.play(long_way)
    robot.run(0.35)
    assert robot.filter.handover.unreachable()
    robot.run(0.9)
    before = robot.path[-1]
    robot.filter.estop(robot.now)
    robot.run(1.2)
    robot.assert_resting()
    robot.assert_within_limits()
    assert np.abs(robot.path[-1] - before).max() < 0.3
    robot.run(0.5)
    assert robot.filter.stopping == ""
    assert robot.filter.reset(robot.now).done


def test_a_stop_is_repeated_and_says_that_the_robot_moves_on():
    robot = Robot()
    stream(robot, 1.0, robot.now_s)
    robot.filter.estop(robot.now)
    brakes = 0
    for _ in range(round(3.0 / TICK_S)):
        # Somebody else drives it, slowly.
        robot.path.append(robot.path[-1] + np.array([0.001, 0.0, 0.0]))
        robot.filter.joints.see(NAMES, robot.path[-1].tolist(), [], robot.now_s)
        tick = robot.filter.tick(robot.now)
        brakes += tick.forward is not None
        if tick.forward is not None:
            robot.filter.handover.acknowledged(robot.now_s)
        robot.now_s += TICK_S
    assert brakes >= 3
    assert tick.finding.verdict is Verdict.STOP
    assert "NOT AT REST after 3.0 s: joint_states: lift moved" in tick.finding.reason
    assert robot.filter.stopping
    assert not robot.filter.reset(robot.now).done


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
    offered = OfferedCommand(
        command=CommandedTrajectory(
            joint_names=NAMES, times_s=[0.5], positions=[[0.05, 0.0, 0.0]], velocities=[[0.0] * 3]
        ),
        source="model",
        asked=robot.now,
        started_s=0.0,
    )
    request = robot.filter.request(offered)
    judgement = robot.filter.judge(request, offered)
    robot.filter.estop(robot.now)
    assert robot.filter.decide(request, judgement, robot.now).forward is None
    assert robot.run(0.01).finding.verdict is Verdict.STOP


def test_the_newest_command_waits_for_the_acknowledgement():
    robot = Robot()
    begun_s = robot.now_s
    robot.acknowledges = False
    assert robot.filter.waiting(robot.now) is None
    assert robot.command(*smooth(0.0, 0.6)).forward is not None
    robot.run(0.02)
    for _ in range(2):
        answer = robot.command(*smooth(robot.now_s - begun_s, 0.6))
        assert answer.forward is None
        assert answer.waits
        asked_s = robot.now_s
        robot.run(0.02)
    assert robot.filter.waiting(robot.now) is None, "nothing is acknowledged yet"
    robot.filter.handover.acknowledged(robot.now_s)
    waiting = robot.filter.waiting(robot.now)
    # The second one, whose times still count from when it came.
    assert waiting.asked == robot.now
    assert waiting.started_s == pytest.approx(robot.now_s - asked_s)
    assert robot.filter.waiting(robot.now) is None, "only once"
    robot.acknowledges = True
    request = robot.filter.request(waiting)
    decision = robot.filter.decide(request, robot.filter.judge(request, waiting), robot.now)
    assert decision.finding.verdict is Verdict.OK
    robot.play(decision.forward)
    robot.run(1.5)
    robot.assert_resting()
    robot.assert_within_limits()


def test_a_command_that_waits_is_forgotten_when_a_newer_one_is_refused():
    robot = Robot()
    robot.acknowledges = False
    robot.command([0.5], [[0.05, 0.0, 0.0]], [[0.0] * 3])
    assert robot.command([0.5], [[0.05, 0.0, 0.0]], [[0.0] * 3]).waits
    robot.filter.estop(robot.now)
    assert not robot.command([0.5], [[0.05, 0.0, 0.0]], [[0.0] * 3]).waits
    robot.filter.handover.acknowledged(robot.now_s)
    assert robot.filter.waiting(robot.now) is None


def test_a_forward_position_controller_needs_no_acknowledgement():
    robot = Robot(SafetyConfig(late_s=0.0, acknowledged=False, arm_at_start=True))
    robot.command([0.3], [[0.1, 0.0, 0.0]], [[0.0] * 3])
    assert not robot.filter.handover.in_flight
    robot.run(0.1)
    robot.filter.estop(robot.now)
    forward = robot.filter.tick(robot.now).forward
    assert 0.02 < forward.times_s[-1] < 0.2
    assert not forward.velocities[-1].any()
