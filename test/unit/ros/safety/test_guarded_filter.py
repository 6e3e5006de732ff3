import threading

import numpy as np
import pytest

from physis_ros.robot.joint_limits import RobotLimits
from physis_ros.robot.joint_motion import CommandedTrajectory
from physis_ros.safety import filter as safety_filter
from physis_ros.safety.filter import SafetyFilter
from physis_ros.safety.guarded_filter import GuardedFilter
from physis_ros.safety.motion.controller_estimate import ControllerEstimate
from physis_ros.safety.types import Instant, OfferedCommand, SafetyConfig, Verdict

NAMES = ("lift", "bend")
LIMITS = RobotLimits(
    names=NAMES,
    lower=(-1.5, -2.0),
    upper=(1.5, 2.0),
    velocity=(2.0, 1.0),
    acceleration=(8.0, 4.0),
    jump=(0.4, 0.4),
    wraps=(False, False),
)


class Bench:
    def __init__(self):
        self.now_s = 100.0
        self.forwarded, self.positions, self.changes = [], [], []
        self.guard = GuardedFilter(
            SafetyFilter(LIMITS, SafetyConfig(arm_at_start=True)),
            now=lambda: Instant(steady_s=self.now_s, motion_s=self.now_s),
            forward=self.forwarded.append,
            position=self.positions.append,
            changed=self.changes.append,
        )

        self.see_and_tick(45)
        self.forwarded.clear()
        self.positions.clear()
        self.changes.clear()

    def see_and_tick(self, ticks=1):
        for _ in range(ticks):
            self.guard.joints(NAMES, [0.0, 0.0], [], stamp_ns=0)
            self.guard.tick()
            self.now_s += 0.005

    def command(self, place):
        command = CommandedTrajectory(
            joint_names=NAMES, times_s=[0.6], positions=[[place, 0.0]], velocities=[[0.0, 0.0]]
        )
        asked = Instant(steady_s=self.now_s, motion_s=self.now_s)
        return self.guard.command(
            OfferedCommand(command=command, source="model", asked=asked, started_s=0.0)
        )


def test_a_command_goes_out_and_the_change_of_verdict_is_told_once():
    bench = Bench()
    bench.see_and_tick()
    assert bench.guard.finding.verdict is Verdict.HOLD
    assert bench.command(0.05).forward is not None
    assert len(bench.forwarded) == 1
    bench.see_and_tick(3)
    assert [change.verdict for change in bench.changes] == [Verdict.OK]
    assert bench.guard.command_age_s() == pytest.approx(0.015)
    assert np.allclose(bench.positions[-1], 0.0)
    assert bench.guard.filter.handover.in_flight
    bench.guard.acknowledged()
    assert not bench.guard.filter.handover.in_flight


def test_a_command_that_waited_goes_out_after_the_acknowledgement():
    bench = Bench()
    bench.see_and_tick()
    assert bench.guard.command_that_waited() is None
    bench.command(0.05)
    bench.see_and_tick()
    assert bench.command(0.06).waits
    assert bench.guard.command_that_waited() is None
    bench.see_and_tick()
    bench.guard.acknowledged()
    assert bench.guard.command_that_waited().forward is bench.forwarded[-1]
    assert len(bench.forwarded) == 2
    assert bench.forwarded[-1].positions[-1][0] == pytest.approx(0.06)
    assert bench.guard.command_that_waited() is None


def test_a_stop_brakes_in_the_same_call_and_a_reset_says_why_not():
    bench = Bench()
    bench.see_and_tick()
    bench.command(0.3)
    bench.guard.acknowledged()
    bench.see_and_tick(20)
    bench.guard.estop("by hand")
    assert len(bench.forwarded) == 2
    assert bench.guard.finding.verdict is Verdict.STOP
    assert "still braking" in bench.guard.reset().reason
    bench.guard.acknowledged()
    bench.see_and_tick(400)
    assert bench.guard.reset().done
    assert bench.guard.finding.reason == "disarmed: a STOP came; ~/reset, then ~/enable"
    assert bench.guard.arm().done
    bench.guard.disarm()
    assert bench.guard.finding.reason == "disarmed: ~/enable arms"


def test_a_position_controller_gets_points_only_while_armed_or_braking():
    bench = Bench()
    bench.guard.disarm()
    bench.see_and_tick(50)
    bench.positions.clear()
    bench.see_and_tick(50)
    assert bench.positions == []
    assert bench.guard.arm().done
    bench.see_and_tick(3)
    assert len(bench.positions) == 4


def test_a_jump_of_the_stamps_clock_alone_moves_nothing():
    bench = Bench()
    bench.see_and_tick()
    before = bench.guard.commanded()
    bench.guard.clock_jumped(-50.0, motion_jumped=False)
    assert np.allclose(bench.guard.commanded(), before)
    bench.guard.clock_jumped(-50.0, motion_jumped=True)
    bench.guard.tick()
    assert "ROS time jumped" in bench.guard.finding.reason


def test_where_nobody_listens_nothing_is_forwarded():
    bench = Bench()
    bench.see_and_tick()
    bench.guard.set_listening(False)
    assert bench.command(0.05).forward is None


def test_ticks_go_on_while_a_command_is_judged(monkeypatch):
    bench = Bench()
    bench.see_and_tick()
    judging, may_end = threading.Event(), threading.Event()

    real = safety_filter.judge_command

    def slow(*args, **kwargs):
        judging.set()
        assert may_end.wait(10.0)
        return real(*args, **kwargs)

    monkeypatch.setattr(safety_filter, "judge_command", slow)
    answers = []
    thread = threading.Thread(target=lambda: answers.append(bench.command(0.05)))
    thread.start()
    assert judging.wait(10.0)
    # The lock is free: a tick, and a stop that the judgement must not overtake.
    bench.guard.tick()
    bench.guard.estop("by hand")
    may_end.set()
    thread.join(10.0)
    assert answers[0].forward is None
    assert bench.guard.finding.verdict is Verdict.STOP


def test_what_was_worked_out_ahead_is_what_a_command_would_have_worked_out():
    bench = Bench()
    bench.see_and_tick()
    for place in (0.02, 0.04, 0.05):
        bench.command(place)
        bench.guard.acknowledged()
        bench.see_and_tick(4)
    plain = bench.guard.filter.handover.estimate().arrivals(bench.now_s)
    bench.guard.look_ahead()
    ahead = bench.guard.filter.handover.estimate().arrivals(bench.now_s)
    assert np.array_equal(ahead.at_s, plain.at_s)
    assert np.array_equal(ahead.positions, plain.positions)
    assert np.array_equal(ahead.velocities, plain.velocities)


def test_what_happens_while_it_is_worked_out_makes_it_worthless(monkeypatch):
    bench = Bench()
    bench.see_and_tick()
    bench.command(0.02)
    bench.guard.acknowledged()
    kept = []
    handover = bench.guard.filter.handover
    monkeypatch.setattr(handover, "keep", kept.append)
    bench.guard.look_ahead()
    assert len(kept) == 1
    look_ahead = ControllerEstimate.look_ahead

    def meanwhile(estimate, now_s):
        handover.rest_at(np.zeros(2), bench.now_s)
        return look_ahead(estimate, now_s)

    monkeypatch.setattr(ControllerEstimate, "look_ahead", meanwhile)
    bench.guard.look_ahead()
    assert len(kept) == 1
