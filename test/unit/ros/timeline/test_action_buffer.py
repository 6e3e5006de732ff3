"""When a window leaves, and when the plan restarts from the commanded state."""

from __future__ import annotations

import math

import numpy as np

from physis_ros.robot.joint_limits import RobotLimits
from physis_ros.timeline.action_buffer import ActionBuffer, BufferInstant
from physis_ros.timeline.timed_chunk import IncomingChunk, RefusedChunk
from physis_ros.timeline.types import AcceptedChunk, TimelineConfig

LIMITS = RobotLimits(
    names=("a", "b"),
    lower=(-2.0, -2.0),
    upper=(2.0, 2.0),
    velocity=(2.0, 2.0),
    acceleration=(8.0, 8.0),
    jump=(0.7, 0.7),
    wraps=(False, False),
)
STILL = np.zeros(2)
BEGUN_NS = 1_700_000_000_000_000_000


def at(seconds: float) -> BufferInstant:
    return BufferInstant(ros_ns=BEGUN_NS + round(seconds * 1e9), steady_s=50.0 + seconds)


def started(position: float = 0.0) -> ActionBuffer:
    buffer = ActionBuffer(LIMITS, TimelineConfig(lead_s=0.06))
    buffer.begin(at(0.0))
    assert not buffer.commanded(np.full(2, position), STILL, at(0.0).ros_ns, at(0.0))
    return buffer


def chunk(number: int, now_s: float, *places: float, epoch: int = 1) -> IncomingChunk:
    return IncomingChunk(
        epoch=epoch,
        chunk_id=number,
        capture_oldest_ns=at(now_s - 0.05).ros_ns,
        start_ns=at(now_s).ros_ns,
        step_ns=100_000_000,
        joint_names=LIMITS.names,
        positions=np.array([[place, place] for place in places]),
    )


def test_a_chunk_leaves_at_once_and_a_burst_with_the_next_tick() -> None:
    buffer = started()
    first = buffer.chunk(chunk(1, 1.0, 0.0, 0.1, 0.2, 0.3, 0.4), at(1.0))
    assert isinstance(first.outcome, AcceptedChunk)
    assert first.send
    window = buffer.window(at(1.0))
    assert window.times_s[0] >= 0.06
    assert not window.velocities[-1].any()
    assert not buffer.waiting
    second = buffer.chunk(chunk(2, 1.002, 0.0, 0.1, 0.2, 0.3, 0.4), at(1.002))
    assert not second.send
    assert buffer.waiting
    assert buffer.tick(at(1.01))
    buffer.window(at(1.01))
    assert not buffer.tick(at(1.02))


def test_nothing_leaves_before_the_state_of_the_robot_is_known() -> None:
    buffer = ActionBuffer(LIMITS, TimelineConfig(lead_s=0.06))
    buffer.begin(at(0.0))
    refused = buffer.chunk(chunk(1, 0.1, 0.0, 0.1), at(0.1))
    assert isinstance(refused.outcome, RefusedChunk)
    assert not refused.send
    assert not buffer.tick(at(0.2))
    assert buffer.point(at(0.2)) is None
    # Without a safety node the measured state counts after a second.
    buffer.robot.measured(LIMITS.names, [0.3, 0.4])
    assert not buffer.tick(at(1.5))
    point = buffer.point(at(1.5))
    assert point is not None
    assert point.position.tolist() == [0.3, 0.4]


def test_a_window_at_rest_reaches_further_than_it_may_come_late() -> None:
    buffer = started()
    buffer.chunk(chunk(1, 1.0, 0.0), at(1.0))
    window = buffer.window(at(1.0))
    assert window.times_s[-1] == 0.3
    assert window.positions[-1].tolist() == [0.0, 0.0]
    assert np.all(np.diff(window.times_s) > 0.0)


def test_an_arm_moved_by_hand_at_rest_is_followed_at_once() -> None:
    buffer = started()
    moved = np.array([0.3, 0.0])
    assert not buffer.commanded(moved, STILL, at(2.0).ros_ns, at(2.0))
    point = buffer.point(at(2.0))
    assert point is not None
    assert point.position.tolist() == moved.tolist()
    assert buffer.rebases == 1
    # The next chunk still begins at the old place: the plan goes there without a step.
    answer = buffer.chunk(chunk(1, 2.1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0), at(2.1))
    assert answer.send
    window = buffer.window(at(2.1))
    assert abs(window.positions[0, 0] - 0.3) < 0.02
    speeds = np.abs(np.diff(window.positions[:, 0]) / np.diff(window.times_s))
    assert speeds.max() <= 2.0
    # One that begins too far away is refused, with the joint and the distance.
    far = buffer.chunk(chunk(2, 2.2, 1.5, 1.5, 1.5, 1.5), at(2.2))
    assert isinstance(far.outcome, RefusedChunk)
    assert "a: " in far.outcome.reason or "b: " in far.outcome.reason
    assert math.isfinite(window.times_s[-1])


def test_a_robot_that_moves_on_another_motion_is_followed_after_several_states() -> None:
    buffer = started()
    buffer.chunk(chunk(1, 1.0, *(0.05 * n for n in range(12))), at(1.0))
    buffer.window(at(1.0))
    elsewhere = np.array([0.4, 0.0])
    moving = np.array([0.5, 0.0])
    for number in range(2):
        now = at(1.2 + 0.02 * number)
        assert not buffer.commanded(elsewhere, moving, now.ros_ns, now)
    assert buffer.rebases == 0
    now = at(1.24)
    # The newest chunk goes on from there, in a window that is due now.
    assert buffer.commanded(elsewhere, moving, now.ros_ns, now)
    assert buffer.rebases == 1
