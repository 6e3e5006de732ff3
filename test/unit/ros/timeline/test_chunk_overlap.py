import numpy as np
import pytest

from physis_ros.timeline.chunk_overlap import Overlap, reference
from physis_ros.timeline.timed_chunk import TimedChunk

MS = 1_000_000


def chunk(chunk_id, start_ms, value, *, slope=0.0, steps=11, fade_ms=0, valid_ms=10**6):
    times = np.arange(steps)[:, None] * 0.01
    return TimedChunk(
        epoch=1,
        chunk_id=chunk_id,
        capture_oldest_ns=(start_ms - 50) * MS,
        start_ns=start_ms * MS,
        step_ns=10 * MS,
        positions=value + slope * times,
        velocities=np.full((steps, 1), slope),
        valid_until_ns=valid_ms * MS,
        fade_begin_ns=start_ms * MS,
        fade_ns=fade_ms * MS,
    )


def merged(chunks, times_ms, **overlap):
    times = np.array(times_ms, dtype=np.int64) * MS
    return reference(chunks, times, Overlap(**overlap), 1)


def test_replace_takes_the_newest_and_does_not_go_on_with_an_older_one():
    long, short = chunk(0, 0, 1.0, steps=31), chunk(1, 100, 2.0)
    found = merged([long, short], [50, 100, 200, 250], policy="replace")
    assert found.positions[:3, 0] == pytest.approx([1.0, 2.0, 2.0])
    assert found.valid.tolist() == [True, True, True, False]
    assert found.chunk_id[:3].tolist() == [0, 1, 1]


def test_blend_is_continuous_in_position_and_velocity():
    old, new = chunk(0, 0, 1.0, slope=1.0, steps=31), chunk(1, 100, 2.0, fade_ms=80)
    times = list(range(60, 200))
    found = merged([old, new], times, policy="blend")
    assert np.max(np.abs(np.diff(found.positions[:, 0]))) < 0.03
    slope = np.gradient(found.positions[:, 0], 1e-3)
    assert found.velocities[2:-2, 0] == pytest.approx(slope[2:-2], abs=0.3)
    assert found.positions[-1, 0] == pytest.approx(2.0)
    assert found.capture_oldest_ns[times.index(150)] == -50 * MS
    assert found.capture_oldest_ns[times.index(190)] == 50 * MS


def test_ensemble_weighs_the_n_th_newest_by_its_decay():
    chunks = [chunk(k, 10 * k, float(k), steps=31) for k in range(3)]
    found = merged(chunks, [25], policy="ensemble", decay=0.7)
    weights = np.exp(-0.7 * np.array([2.0, 1.0, 0.0]))
    assert found.positions[0, 0] == pytest.approx(weights @ [0.0, 1.0, 2.0] / weights.sum())
    assert found.capture_oldest_ns[0] == -50 * MS


def test_too_old_is_not_valid():
    found = merged([chunk(0, 0, 1.0, valid_ms=60)], [50, 70], policy="replace")
    assert found.valid.tolist() == [True, False]


def test_no_chunk_is_no_reference():
    assert not merged([], [0, 10], policy="replace").valid.any()


@pytest.mark.parametrize("overlap", [{"policy": "replace"}, {"policy": "blend", "fade_s": 0.05}])
def test_what_a_newer_chunk_hides_does_not_matter(overlap):
    """The last of three covers from 40 ms on, and has faded in by 90 ms."""
    older = [chunk(1, 0, 5.0, slope=3.0, steps=30), chunk(2, 20, 7.0, steps=30)]
    newest = chunk(3, 40, 1.0, slope=2.0, fade_ms=50)
    for first_ms, alone in ((30, False), (100, True)):
        times_ms = range(first_ms, 200, 10)
        all_of_them, one = merged([*older, newest], times_ms, **overlap), merged([newest], times_ms)
        at_the_end = all_of_them.valid & (np.array(times_ms) >= 100)
        assert np.allclose(all_of_them.positions[at_the_end], one.positions[at_the_end])
        same = np.array_equal(all_of_them.positions, one.positions)
        assert same == alone
        assert not alone or np.array_equal(all_of_them.valid, one.valid)
