from physis_lab.bench.robot.safety_start import LIMIT_S, start_once


def test_a_start_is_measured_up_to_the_first_state(tmp_path):
    start = start_once(tmp_path / "start")
    assert 0.0 < start.wall_s < LIMIT_S
    assert start.cpu_s > 0.0
