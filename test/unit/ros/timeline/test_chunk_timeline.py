import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from physis_core.types import UserError
from physis_ros.robot.joint_limits import RobotLimits
from physis_ros.timeline.chunk_overlap import POLICIES, Overlap
from physis_ros.timeline.chunk_timeline import ChunkTimeline
from physis_ros.timeline.timed_chunk import ChunkRefusal, IncomingChunk
from physis_ros.timeline.types import AcceptedChunk, TimelineConfig

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
MS = 1_000_000
T0 = 1_700_000_000_000_000_000
TICK = 10 * MS


def timeline(at=(0.0, 0.0, 0.0), **config):
    made = ChunkTimeline(LIMITS, TimelineConfig(**config))
    made.rebase(np.array(at), np.zeros(3), T0)
    return made


def chunk(chunk_id=0, start_ns=T0, rows=None, **fields):
    rows = [[0.0, 0.0, 0.0]] * 8 if rows is None else rows
    given = {
        "epoch": 1,
        "chunk_id": chunk_id,
        "capture_oldest_ns": start_ns - 100 * MS,
        "start_ns": start_ns,
        "step_ns": 50 * MS,
        "joint_names": NAMES,
        "positions": np.array(rows, dtype=float),
    }
    return IncomingChunk(**{**given, **fields})


def ramp(start, speed, count=8, step_s=0.05):
    times = np.arange(count)[:, None] * step_s
    return (np.array(start) + times * np.array(speed)).tolist()


def play(made, from_ns, to_ns):
    return [made.point(t) for t in range(from_ns, to_ns, TICK)]


def assert_smooth(points):
    """No position step beyond the motion itself, and no velocity step above limit x tick."""
    q = np.array([p.position for p in points])
    v = np.array([p.velocity for p in points])
    assert np.all(np.abs(np.diff(v, axis=0)) <= np.array(LIMITS.acceleration) * 0.01 + 1e-9)
    assert np.all(np.abs(v) <= np.array(LIMITS.velocity) + 1e-9)
    moved = np.diff(q, axis=0) - 0.5 * (v[1:] + v[:-1]) * 0.01
    assert np.max(np.abs(moved), initial=0.0) <= 1e-6
    assert np.all(q >= np.array(LIMITS.lower) - 1e-9)
    assert np.all(q <= np.array(LIMITS.upper) + 1e-9)


def refused(outcome):
    assert not isinstance(outcome, AcceptedChunk)
    assert "\n" not in outcome.reason
    return outcome.why


def test_a_chunk_is_played_where_it_lies_in_time_and_ends_in_rest():
    made = timeline()
    rows = ramp([0.0, 0.0, 0.0], [0.4, -0.2, 0.0], count=20)
    assert isinstance(made.offer(chunk(rows=rows), T0), AcceptedChunk)
    points = play(made, T0, T0 + 2500 * MS)
    assert points[90].position == pytest.approx([0.36, -0.18, 0.0], abs=1e-3)
    assert points[90].valid
    assert not points[-1].valid
    assert not points[-1].velocity.any()
    assert_smooth(points)


def test_the_age_is_of_the_very_point_and_counts_from_its_oldest_observation():
    made = timeline()
    made.offer(chunk(0, T0), T0)
    made.offer(chunk(1, T0 + 100 * MS, capture_oldest_ns=T0), T0 + 100 * MS)
    before, after = made.point(T0 + 110 * MS), made.point(T0 + 200 * MS)
    assert (before.chunk_id, before.age_s) == (0, pytest.approx(0.21))
    assert (after.chunk_id, after.age_s) == (1, pytest.approx(0.2))
    tail = made.point(T0 + 900 * MS)
    assert math.isnan(tail.age_s)
    assert not tail.valid


@pytest.mark.parametrize("policy", ["blend", "ensemble"])
def test_where_two_chunks_share_a_point_the_older_observation_counts(policy):
    made = timeline(overlap=Overlap(policy=policy, fade_s=0.2))
    made.offer(chunk(0, T0), T0)
    made.offer(chunk(1, T0 + 100 * MS), T0 + 100 * MS)
    shared = made.point(T0 + 200 * MS)
    assert shared.chunk_id == 1
    assert shared.capture_oldest_ns == T0 - 100 * MS


def test_expired_steps_are_trimmed_and_the_arm_does_not_step_back():
    made = timeline()
    made.offer(chunk(0, T0, ramp([0, 0, 0], [0.5, 0, 0])), T0)
    play(made, T0, T0 + 250 * MS)
    late = chunk(1, T0 + 100 * MS, ramp([0.05, 0, 0], [0.5, 0, 0]))
    outcome = made.offer(late, T0 + 250 * MS)
    assert outcome.trimmed_s == pytest.approx(0.2)
    points = play(made, T0 + 250 * MS, T0 + 440 * MS)
    assert np.all(np.diff([p.position[0] for p in points]) > 0.0)


def test_a_wholly_late_chunk_is_counted_and_touches_nothing():
    made = timeline()
    made.offer(chunk(0, T0, ramp([0, 0, 0], [0.5, 0, 0], count=20)), T0)
    now = T0 + 500 * MS
    expected = [p.position for p in play(made, now, now + 400 * MS)]
    twin = timeline()
    twin.offer(chunk(0, T0, ramp([0, 0, 0], [0.5, 0, 0], count=20)), T0)
    twin.point(now)
    assert refused(twin.offer(chunk(1, T0), now)) is ChunkRefusal.LATE
    assert twin.counts.late == 1
    assert np.array_equal([p.position for p in play(twin, now, now + 400 * MS)], expected)


def test_order_epochs_and_gaps():
    made = timeline()
    for chunk_id in (0, 1, 4):
        made.offer(chunk(chunk_id), T0)
    assert made.gaps == 2
    assert refused(made.offer(chunk(4), T0)) is ChunkRefusal.REPEATED
    assert refused(made.offer(chunk(2), T0)) is ChunkRefusal.REORDERED
    assert made.gaps == 1
    assert isinstance(made.offer(chunk(0, epoch=2), T0), AcceptedChunk)
    assert refused(made.offer(chunk(5, epoch=1), T0)) is ChunkRefusal.OLD_EPOCH
    assert made.epoch == 2
    made.forget_epoch()
    assert isinstance(made.offer(chunk(0, epoch=0), T0), AcceptedChunk)


BAD = {
    "nan": ({"positions": np.array([[0, math.nan, 0]] * 8)}, ChunkRefusal.NON_FINITE, "bend"),
    "bad velocity": (
        {"velocities": np.array([[0, 0, math.inf]] * 8)},
        ChunkRefusal.NON_FINITE,
        "spin: velocity inf at step 0",
    ),
    "joints": ({"joint_names": ("lift", "bend", "tool")}, ChunkRefusal.WRONG_JOINTS, "spin"),
    "shape": ({"positions": np.zeros((8, 2))}, ChunkRefusal.SHAPE, "(8, 2)"),
    "velocity shape": ({"velocities": np.zeros((7, 3))}, ChunkRefusal.SHAPE, "(7, 3)"),
    "step": ({"step_ns": 0}, ChunkRefusal.SHAPE, "0 ns"),
    "limit": (
        {"positions": np.array([[0, 0, 0]] * 7 + [[1.6, 0, 0]])},
        ChunkRefusal.POSITION_LIMIT,
        "lift: 1.6000 beyond 1.5000 at step 7",
    ),
    "jump": (
        {"positions": np.array([[1.0, 0, 0]] * 8)},
        ChunkRefusal.JUMP,
        "lift: 1.0000 away, limit 0.4000",
    ),
    "future": ({"capture_oldest_ns": T0 + 500 * MS}, ChunkRefusal.CLOCK, "0.500 s in the future"),
    "stale": ({"capture_oldest_ns": T0 - 9000 * MS}, ChunkRefusal.STALE, "9.000 s old"),
    "early": (
        {"start_ns": T0 + 60_000 * MS, "capture_oldest_ns": T0},
        ChunkRefusal.EARLY,
        "in 60.000 s",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_chunk_changes_nothing_and_says_why(name):
    fields, why, detail = BAD[name]
    made = timeline()
    made.offer(chunk(0, T0, ramp([0, 0, 0], [0.3, 0, 0])), T0)
    twin = timeline()
    twin.offer(chunk(0, T0, ramp([0, 0, 0], [0.3, 0, 0])), T0)
    outcome = made.offer(chunk(1, **{"start_ns": T0, **fields}), T0)
    assert refused(outcome) is why
    assert detail in outcome.reason
    for one, other in zip(play(made, T0, T0 + 10**9), play(twin, T0, T0 + 10**9)):
        assert np.array_equal(one.position, other.position)


def test_nothing_is_taken_before_the_commanded_state_is_known():
    made = ChunkTimeline(LIMITS, TimelineConfig())
    assert refused(made.offer(chunk(), T0)) is ChunkRefusal.NOT_STARTED
    with pytest.raises(RuntimeError, match="no commanded state"):
        made.point(T0)


def test_after_a_clock_jump_only_new_observations_count():
    made = timeline()
    made.offer(chunk(0), T0)
    jumped = T0 - 3600 * 10**9
    made.clear(jumped)
    assert not made.started
    made.rebase(np.zeros(3), np.zeros(3), jumped)
    assert refused(made.offer(chunk(1, T0), jumped)) is ChunkRefusal.CLOCK
    before = chunk(2, jumped, capture_oldest_ns=jumped - 1)
    assert refused(made.offer(before, jumped)) is ChunkRefusal.CLOCK
    fresh = chunk(3, jumped + 100 * MS, capture_oldest_ns=jumped + 10 * MS)
    assert isinstance(made.offer(fresh, jumped + 100 * MS), AcceptedChunk)


def test_joints_are_taken_by_name_and_continuous_ones_the_short_way():
    made = timeline(at=(0.0, 0.0, math.pi - 0.05))
    rows = [[-math.pi + 0.05, 0.1, 0.2]] * 20
    outcome = made.offer(chunk(rows=rows, joint_names=("spin", "lift", "bend")), T0)
    assert isinstance(outcome, AcceptedChunk)
    end = made.point(T0 + 900 * MS).position
    assert end == pytest.approx([0.1, 0.2, math.pi + 0.05], abs=1e-3)


def test_a_window_is_what_a_trajectory_controller_wants():
    made = timeline(lead_s=0.03)
    made.offer(chunk(0, T0, ramp([0, 0, 0], [0.5, 0.2, 0])), T0)
    window = made.window(T0)
    assert window.times_s[0] >= 0.03 - 1e-12
    assert np.all(np.diff(window.times_s) > 0.0)
    assert not window.velocities[-1].any()
    at = made.point(T0 + round(window.times_s[5] * 1e9))
    assert at.position == pytest.approx(window.positions[5], abs=1e-9)


def test_coasting_goes_on_before_it_brakes():
    made, braking = (timeline(underrun=u, coast_s=0.2) for u in ("coast", "brake"))
    for one in (made, braking):
        one.offer(chunk(0, T0, ramp([0, 0, 0], [0.5, 0, 0], count=20)), T0)
    at = T0 + 1060 * MS
    assert made.point(at).velocity[0] == pytest.approx(0.5, abs=1e-2)
    assert braking.point(at).velocity[0] < 0.1
    assert not made.point(at).valid
    assert_smooth(play(made, T0, T0 + 2 * 10**9))


def test_depth_counts_playable_time_without_the_tail():
    made = timeline()
    made.offer(chunk(0, T0), T0)
    assert made.depth_s(T0) == pytest.approx(0.35)
    assert made.depth_s(T0 + 10**9) == 0.0


def test_a_point_older_than_the_maximum_age_is_not_played():
    made = timeline(max_age_s=0.2)
    made.offer(chunk(0, T0), T0)
    assert made.point(T0 + 90 * MS).valid
    assert not made.point(T0 + 150 * MS).valid


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"tick_s": 0.0}, "tick_s"),
        ({"underrun": "jump"}, "underrun"),
        ({"lead_s": -1.0}, "lead_s"),
        ({"correction_share": 0.0}, "correction_share"),
    ],
)
def test_wrong_configuration_names_the_field(fields, name):
    with pytest.raises(UserError, match=name):
        TimelineConfig(**fields)
    with pytest.raises(UserError, match="overlap.policy"):
        Overlap(policy="average")


@st.composite
def sequences(draw):
    """Chunks near a wandering path: late, early, reordered, repeated, noisy, of several epochs."""
    number = st.floats(-1.0, 1.0)
    steps = []
    for index in range(draw(st.integers(1, 12))):
        fields = {
            "chunk_id": max(0, index + draw(st.sampled_from([0, 0, 0, 1, -1]))),
            "epoch": draw(st.sampled_from([1, 1, 1, 1, 2])),
            "step_ns": draw(st.sampled_from([20, 50, 80])) * MS,
        }
        slope = np.array(draw(st.lists(number, min_size=3, max_size=3)))
        noise = draw(st.sampled_from([0.0, 0.01, 0.2]))
        offset = noise * np.array(draw(st.lists(number, min_size=3, max_size=3)))
        late_ms = draw(st.integers(-80, 300))
        wait = draw(st.integers(1, 30))
        steps.append((fields, slope, offset, late_ms, wait))
    return steps


@settings(max_examples=120, deadline=None)
@given(sequences(), st.sampled_from(POLICIES), st.sampled_from(["brake", "coast"]))
def test_no_sequence_of_chunks_makes_the_motion_step(steps, policy, underrun):
    made = timeline(overlap=Overlap(policy=policy, fade_s=0.08), underrun=underrun, coast_s=0.05)
    now, points = T0, []
    for fields, slope, offset, late_ms, wait in steps:
        here = made.point(now).position
        rows = np.clip(here + offset + np.outer(np.arange(8) * 0.05, slope), -1.4, 1.4)
        start = now - late_ms * MS
        made.offer(chunk(start_ns=start, rows=rows, capture_oldest_ns=start, **fields), now)
        points += play(made, now, now + wait * TICK)
        now += wait * TICK
    points += play(made, now, now + 3 * 10**9)
    assert_smooth(points)
    assert not points[-1].velocity.any()
    assert all(p.age_s >= 0.0 for p in points if p.valid)
    assert made.counts.accepted + made.counts.refused == len(steps)


def test_a_burst_costs_one_plan_and_keeps_the_newest():
    made = timeline()
    for chunk_id in range(1000):
        made.offer(chunk(chunk_id, T0, ramp([0, 0, 0], [chunk_id * 1e-4, 0, 0])), T0)
    assert made.counts.accepted == 1000
    assert made.point(T0 + 100 * MS).chunk_id == 999
    assert_smooth(play(made, T0, T0 + 10**9))


def test_given_velocities_are_used():
    made = timeline()
    rows = ramp([0, 0, 0], [0.3, 0, 0], count=20)
    given = chunk(0, T0, rows, velocities=np.tile([0.3, 0.0, 0.0], (20, 1)))
    made.offer(given, T0)
    assert made.point(T0 + 900 * MS).velocity[0] == pytest.approx(0.3, abs=1e-3)


def test_another_motion_keeps_the_newest_chunk_where_it_is_no_jump():
    made = timeline()
    made.offer(chunk(rows=ramp([0.0, 0.0, 0.0], [0.4, -0.2, 0.0], count=20)), T0)
    play(made, T0, T0 + 200 * MS)
    elsewhere = made.point(T0 + 200 * MS).position + np.array([0.05, 0.0, 0.0])
    now = T0 + 200 * MS
    assert made.rebase(elsewhere, np.zeros(3), now, keep_newest=True)
    points = play(made, now, T0 + 800 * MS)
    assert points[0].position == pytest.approx(elsewhere)
    lead = round(made.config.lead_s / made.config.tick_s)
    assert all(point.valid for point in points[lead + 2 :])
    assert_smooth(points)
    assert points[-1].position == pytest.approx(np.array([0.4, -0.2, 0.0]) * 0.79, abs=0.02)


def test_another_motion_far_away_forgets_the_chunk_and_brakes():
    made = timeline()
    made.offer(chunk(rows=ramp([0.0, 0.0, 0.0], [0.4, -0.2, 0.0], count=20)), T0)
    play(made, T0, T0 + 200 * MS)
    now = T0 + 200 * MS
    assert not made.rebase(np.array([1.0, 0.5, 0.0]), np.zeros(3), now, keep_newest=True)
    points = play(made, now, now + 300 * MS)
    assert not any(point.valid for point in points)
    assert points[-1].position == pytest.approx([1.0, 0.5, 0.0])


def test_another_motion_after_the_chunk_has_ended_forgets_it():
    made = timeline()
    made.offer(chunk(rows=ramp([0.0, 0.0, 0.0], [0.1, 0.0, 0.0])), T0)
    now = T0 + 500 * MS
    here = made.point(now).position
    assert not made.rebase(here, np.zeros(3), now, keep_newest=True)


@settings(max_examples=60, deadline=None)
@given(
    at=st.lists(st.floats(-0.3, 0.3), min_size=3, max_size=3),
    speed=st.lists(st.floats(-0.9, 0.9), min_size=3, max_size=3),
    when_ms=st.integers(0, 500),
    overlap=st.sampled_from(POLICIES),
)
def test_whatever_motion_it_is_brought_to_the_plan_is_smooth(at, speed, when_ms, overlap):
    made = timeline(overlap=Overlap(policy=overlap))
    made.offer(chunk(rows=ramp([0.0, 0.0, 0.0], [0.4, -0.2, 0.3], count=16)), T0)
    now = T0 + when_ms * MS
    play(made, T0, now)
    made.rebase(np.array(at), np.array(speed), now, keep_newest=True)
    assert_smooth(play(made, now, now + 900 * MS))
