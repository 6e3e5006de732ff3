"""How a chunk is refreshed in the latency study, and what each of its observations is told."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from physis_core.arm.plant import Plant
from physis_core.learn.closed_loop import ClosedLoopConfig
from physis_core.learn.latency_study import ToldEach, refreshed
from physis_core.types import Array


class Notes:
    """A policy that notes what each look was told."""

    step_s = 0.05

    def __init__(self) -> None:
        self.told_s: list[float] = []

    def look(self, chunk: int, plants: Sequence[Plant], lookahead_s: float) -> None:
        self.told_s.append(lookahead_s)

    def chunks(self, now_s: float, plants: Sequence[Plant], lookahead_s: float) -> Array:
        self.told_s.append(lookahead_s)
        return np.zeros((1, 8, 6))


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


def test_each_observation_is_told_its_own_time_to_the_exit() -> None:
    notes = Notes()
    policy = ToldEach(notes, 0.6, steps=4, apart_s=0.1)
    # Looks of two chunks that are under way together.
    for chunk in (0, 0, 1, 0):
        policy.look(chunk, [], 0.12)
    policy.chunks(0.0, [], 0.12)
    assert notes.told_s == pytest.approx([0.42, 0.32, 0.42, 0.22, 0.12])


def test_nothing_longer_than_trained_is_told() -> None:
    notes = Notes()
    policy = ToldEach(notes, 0.3, steps=2, apart_s=0.5)
    policy.look(0, [], 0.1)
    policy.chunks(0.0, [], 0.4)
    assert notes.told_s == pytest.approx([0.3, 0.3])
