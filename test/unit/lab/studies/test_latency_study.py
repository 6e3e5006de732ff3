"""How a chunk is refreshed in the latency study."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from physis_lab.evaluation.closed_loop import ClosedLoopConfig
from physis_lab.studies.latency_study import refreshed


@given(response_ms=st.integers(0, 900), steps=st.integers(1, 8))
def test_each_step_looks_at_its_own_time_and_points_begin_at_the_exit(
    response_ms: int, steps: int
) -> None:
    config = ClosedLoopConfig(episodes=1, duration_s=3.0, response_s=response_ms / 1e3)
    for number, chunk in enumerate(refreshed(config, steps)):
        begin_s = number * config.period_s
        exit_s = begin_s + config.lookahead_s
        assert len(chunk.captures_s) == steps
        assert chunk.captures_s[0] == pytest.approx(begin_s)
        assert np.diff(chunk.captures_s) == pytest.approx(config.response_s / steps)
        assert chunk.start_s == pytest.approx(exit_s)
        assert chunk.arrives_s == pytest.approx(exit_s)
