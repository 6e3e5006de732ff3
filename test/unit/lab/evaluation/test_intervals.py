from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from physis_lab.evaluation.intervals import mean_interval, paired_difference, wilson


def test_the_interval_of_four_values_by_hand() -> None:
    mean, half = mean_interval(np.array([1.0, 2.0, 3.0, 4.0]))
    assert mean == 2.5
    # Standard deviation 1.29099, standard error 0.645497, t(0.975, 3) = 3.182446.
    assert half == pytest.approx(3.182446 * 0.645497, rel=1e-3)


def test_one_value_has_no_interval() -> None:
    mean, half = mean_interval(np.array([7.0]))
    assert mean == 7.0
    assert math.isnan(half)


@pytest.mark.parametrize(("freedom", "quantile"), [(1, 12.7062), (30, 2.0423), (60, 2.0003)])
def test_the_quantile_is_that_of_student(freedom: int, quantile: float) -> None:
    values = np.arange(freedom + 1.0)
    _, half = mean_interval(values)
    error = values.std(ddof=1) / math.sqrt(len(values))
    assert half / error == pytest.approx(quantile, rel=2e-3)


@given(
    st.lists(st.floats(-1.0, 1.0), min_size=2, max_size=40),
    st.floats(-1.0, 1.0),
)
def test_what_is_common_to_both_falls_out(theirs: list[float], apart: float) -> None:
    mean, half = paired_difference(np.array(theirs) + apart, np.array(theirs))
    assert mean == pytest.approx(apart, abs=1e-9)
    assert half == pytest.approx(0.0, abs=1e-9)


@given(of=st.integers(1, 200), share=st.floats(0.0, 1.0))
def test_wilsons_interval_holds_the_share(of: int, share: float) -> None:
    hits = round(share * of)
    low, high = wilson(hits, of)
    assert 0.0 <= low <= hits / of + 1e-12
    assert hits / of - 1e-12 <= high <= 1.0
