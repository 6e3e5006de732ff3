"""What a policy is told, and what becomes of its points."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from physis_core.types import Array
from physis_lab.arm.plant import Plant
from physis_lab.evaluation.lookahead import (
    LookaheadCapped,
    LookaheadIgnored,
    LookaheadPerStep,
    shifted,
)


class Line:
    """A policy whose plan is the time since the capture; it notes what it was told."""

    step_s = 0.1

    def __init__(self) -> None:
        self.lookahead_s: list[float] = []

    def chunks(self, now_s: float, plants: Sequence[Plant], lookahead_s: float) -> Array:
        self.lookahead_s.append(lookahead_s)
        return (lookahead_s + 0.1 * np.arange(5))[None, :, None]


@given(steps=st.floats(0.0, 12.0))
def test_a_shifted_path_stays_on_the_path_and_holds_its_end(steps: float) -> None:
    points = np.arange(5.0)[None, :, None]
    seen = shifted(points, steps)[0, :, 0]
    np.testing.assert_allclose(seen, np.minimum(np.arange(5) + steps, 4.0), atol=1e-9)


def test_without_lookahead_points_are_due_by_time_or_on_arrival() -> None:
    line = Line()
    by_time = LookaheadIgnored(line, by_time=True).chunks(0.0, [], 0.2)[0, :, 0]
    on_arrival = LookaheadIgnored(line, by_time=False).chunks(0.0, [], 0.2)[0, :, 0]
    assert line.lookahead_s == [0.0, 0.0]
    np.testing.assert_allclose(by_time, [0.2, 0.3, 0.4, 0.4, 0.4])
    np.testing.assert_allclose(on_arrival, [0.0, 0.1, 0.2, 0.3, 0.4])


def test_a_lookahead_beyond_training_is_capped() -> None:
    line = Line()
    points = LookaheadCapped(line, 0.3).chunks(0.0, [], 0.5)[0, :, 0]
    assert line.lookahead_s == [0.3]
    np.testing.assert_allclose(points, [0.5, 0.6, 0.7, 0.7, 0.7])


class Notes:
    """A policy that notes what each look was told."""

    step_s = 0.05

    def __init__(self) -> None:
        self.lookahead_s: list[float] = []

    def observe(self, chunk: int, plants: Sequence[Plant], lookahead_s: float) -> None:
        self.lookahead_s.append(lookahead_s)

    def chunks(self, now_s: float, plants: Sequence[Plant], lookahead_s: float) -> Array:
        self.lookahead_s.append(lookahead_s)
        return np.zeros((1, 8, 6))


def test_each_observation_has_its_own_lookahead() -> None:
    notes = Notes()
    policy = LookaheadPerStep(notes, 0.6, steps=4, apart_s=0.1)
    # Looks of two chunks that are under way together.
    for chunk in (0, 0, 1, 0):
        policy.observe(chunk, [], 0.12)
    policy.chunks(0.0, [], 0.12)
    assert notes.lookahead_s == pytest.approx([0.42, 0.32, 0.42, 0.22, 0.12])


def test_per_step_lookaheads_are_capped() -> None:
    notes = Notes()
    policy = LookaheadPerStep(notes, 0.3, steps=2, apart_s=0.5)
    policy.observe(0, [], 0.1)
    policy.chunks(0.0, [], 0.4)
    assert notes.lookahead_s == pytest.approx([0.3, 0.3])
