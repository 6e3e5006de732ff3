import pytest

from physis_lab.bench.robot.safety_stack import loop_of


def status(lost, p99):
    jitter = {"p50": 0.1, "p99": p99, "p999": 2 * p99, "max": 9.0}
    return {"lost_ticks": lost, "loop_jitter_ms": jitter}


def test_a_window_is_its_last_percentiles_and_what_was_lost_within_it():
    found = loop_of([status(7, 5.0), status(8, 0.4), status(9, 0.5)])
    assert (found.p99_ms, found.p999_ms, found.max_ms, found.lost) == (0.5, 1.0, 9.0, 2)
    with pytest.raises(ValueError, match="1 safety_status in the window"):
        loop_of([status(7, 5.0)])
