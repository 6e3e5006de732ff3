from physis_ros.bench.safety_start import LIMIT_S, start_time_s


def test_a_start_is_measured_up_to_the_first_state(tmp_path):
    assert 0.0 < start_time_s(tmp_path / "start") < LIMIT_S
