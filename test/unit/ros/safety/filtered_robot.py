"""A robot behind the safety filter: an emulated trajectory controller that obeys it exactly."""

import math

import numpy as np

from physis_ros.robot.joint_limits import RobotLimits
from physis_ros.robot.joint_motion import CommandedTrajectory
from physis_ros.robot.point_interpolation import MotionState
from physis_ros.robot.trajectory_controller import (
    ControllerConfig,
    Trajectory,
    TrajectoryController,
    TrajectoryPoint,
)
from physis_ros.safety.filter import SafetyFilter
from physis_ros.safety.types import Instant, SafetyConfig

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


def controller(position, *, from_desired=True):
    state = MotionState(position=np.array(position), velocity=np.zeros(3), acceleration=np.zeros(3))
    return TrajectoryController(
        ControllerConfig(joint_names=NAMES, interpolate_from_desired_state=from_desired), state
    )


class Robot:
    """A controller that plays what the filter forwards, on the filter's clock; it obeys exactly."""

    def __init__(self, config=None, position=(0.0, 0.0, 0.0), limits=LIMITS):
        self.filter = SafetyFilter(limits, config or SafetyConfig(arm_at_start=True))
        self.now_s = 100.0
        self.sees = True
        self.acknowledges = True
        self.controller = controller(position)
        self.path = [np.array(position)]
        self.tick = None
        self.run(0.3)

    @property
    def now(self):
        return Instant(steady_s=self.now_s, motion_s=self.now_s)

    def play(self, forward, sent_s=None):
        """The controller takes what was sent at `sent_s` (now, if not given)."""
        if forward is None:
            return
        refused = self.controller.accept(
            Trajectory(
                joint_names=NAMES,
                start_s=self.now_s if sent_s is None else sent_s,
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
        if self.acknowledges:
            self.filter.handover.acknowledged(self.now_s)

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

    def offer(self, times, positions, velocities=(), names=NAMES, source="model"):
        return self.filter.offer(
            CommandedTrajectory(
                joint_names=names, times_s=times, positions=positions, velocities=velocities
            ),
            source,
            self.now,
        )

    def command(self, *args, **kwargs):
        decision = self.offer(*args, **kwargs)
        self.play(decision.forward)
        return decision

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
