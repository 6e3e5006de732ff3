import pytest

from physis_ros.node.loop_timing import LoopTiming


def test_lateness_is_jitter_and_whole_periods_are_lost_ticks():
    timing = LoopTiming(period_s=0.01, window=10)
    due = timing.tick(1.0, 1.0)
    assert due == pytest.approx(1.01)
    due = timing.tick(1.013, due)
    assert due == pytest.approx(1.02)
    due = timing.tick(1.0451, due)
    assert due == pytest.approx(1.05)
    assert timing.lost == 2
    assert timing.ticks == 3
    assert timing.jitter_ms().max == pytest.approx(25.1)
    assert timing.jitter_ms().p50 == pytest.approx(3.0)


def test_an_early_wake_up_is_no_jitter():
    timing = LoopTiming(period_s=0.01, window=10)
    timing.tick(0.999, 1.0)
    assert timing.jitter_ms().max == 0.0
