import pytest

from physis_lab.bench.robot.safety_stack import loop_of


def status(ros_ns, lost, p99):
    jitter = {"p50": 0.1, "p99": p99, "p999": 2 * p99, "max": 9.0}
    return {"ros_ns": ros_ns, "lost_ticks": lost, "loop_jitter_ms": jitter}


def test_a_window_is_its_last_percentiles_and_what_was_lost_while_the_bare_loop_ran():
    seen = [status(5, 3, 9.0), status(10, 7, 5.0), status(15, 8, 0.4), status(20, 9, 0.4)]
    found = loop_of([*seen, status(30, 50, 0.5)], (10, 20))
    assert (found.p99_ms, found.p999_ms, found.max_ms, found.lost) == (0.5, 1.0, 9.0, 2)
    with pytest.raises(ValueError, match="1 safety_status in the window"):
        loop_of(seen, (20, 30))
