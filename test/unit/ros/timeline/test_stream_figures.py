from dataclasses import replace

import pytest

from physis_ros.timeline.stream_figures import ChunkStamps, EventRate, StreamFigures

MS = 1_000_000


def stamps(chunk_id, capture_ms, exit_ms, epoch=1):
    return ChunkStamps(
        epoch=epoch,
        chunk_id=chunk_id,
        capture_oldest_ns=capture_ms * MS,
        capture_newest_ns=capture_ms * MS,
        receipt_ns=(capture_ms + 5) * MS,
        entry_ns=(capture_ms + 15) * MS,
        exit_ns=exit_ms * MS,
        deadline_ns=exit_ms * MS,
        start_ns=exit_ms * MS,
        missed=False,
        clock_suspect=False,
    )


def figures():
    return StreamFigures(window=10, servo_window=10, rate_window_s=1.0)


def test_interval_latency_and_age_are_different_numbers():
    seen = figures()
    seen.chunk(stamps(0, 1000, 1200), 1.2)
    seen.chunk(stamps(1, 1100, 1290), 1.29)
    seen.handed_off(stamps(1, 1100, 1290), 1300 * MS)
    seen.servo_point(0.25, 1.3)
    now = seen.snapshot(1.3)
    assert now.output_interval_ms.p50 == pytest.approx(90.0)
    assert now.response_latency_ms.max == pytest.approx(185.0)
    assert now.capture_ms.p50 == pytest.approx(5.0)
    assert now.queue_ms.p50 == pytest.approx(10.0)
    assert now.handoff_ms.p50 == pytest.approx(10.0)
    assert now.action_age_handoff_ms.p50 == pytest.approx(200.0)
    assert now.action_age_servo_ms.p50 == pytest.approx(250.0)
    parts = now.capture_ms.p50 + now.queue_ms.p50 + 175.0 + now.handoff_ms.p50
    assert parts == pytest.approx(200.0)


@pytest.mark.parametrize("ahead_ms", [-500, -25, 0, 25, 500])
def test_two_clocks_that_disagree_are_found_in_both_directions(ahead_ms):
    """The engine stamps entry and exit; the way takes 10 ms before it and 10 ms after it."""
    seen = figures()
    skewed = stamps(0, 1000, 1200 + ahead_ms)
    skewed = replace(skewed, entry_ns=skewed.entry_ns + ahead_ms * MS)
    seen.chunk(skewed, 1.2)
    seen.handed_off(skewed, 1210 * MS)
    now = seen.snapshot(1.3)
    at_least_s = max(0.0, abs(ahead_ms) - 10.0) * 1e-3
    assert abs(now.engine_ahead_s) == pytest.approx(at_least_s)
    assert now.engine_ahead_s * ahead_ms >= 0.0
    assert now.clock_suspect == (ahead_ms != 0)
    # What both stamps of one clock say stays true.
    assert now.response_latency_ms.p50 == pytest.approx(185.0)
    assert now.action_age_handoff_ms.p50 == pytest.approx(210.0)


def test_a_new_epoch_makes_no_interval():
    seen = figures()
    seen.chunk(stamps(7, 1000, 1200), 1.2)
    seen.chunk(stamps(0, 9000, 9200, epoch=2), 9.2)
    assert seen.snapshot(9.2).output_interval_ms.n == 0


def test_four_rates_do_not_stand_for_one_another():
    seen = figures()
    for k in range(11):
        seen.observation(k * 0.05)
        seen.chunk(stamps(k, 1000 + 100 * (k // 2), 2000 + 100 * k), k * 0.1)
        seen.servo_point(0.1, k * 0.01)
    now = seen.snapshot(1.0)
    assert now.chunk_hz == pytest.approx(10.0)
    assert now.replan_hz == pytest.approx(5.0)
    assert now.sensor_hz == pytest.approx(10.0)
    assert now.servo_hz == pytest.approx(9.0 / (1.0 - 0.01), rel=0.2)


def test_a_silent_stream_slows_down_at_once_and_its_window_empties():
    rate = EventRate(window_s=1.0, capacity=100)
    for k in range(11):
        rate.event(k * 0.1)
    assert rate.hz(1.0) == pytest.approx(10.0)
    assert rate.hz(1.5) < 7.0
    assert rate.hz(9.0) == 0.0
