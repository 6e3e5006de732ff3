from physis_lab.bench.robot.handover import measure


def test_no_random_sequence_of_chunks_makes_a_step():
    found = measure(sequences=60, seed=7)
    assert found.chunks_accepted > 100
    assert found.chunks_refused > 100
    assert found.position_step_rad <= 1e-6
    assert found.velocity_step_ratio <= 1.0 + 1e-9
    assert found.limit_ratio <= 1.0 + 1e-9
    assert found.not_at_rest == 0
