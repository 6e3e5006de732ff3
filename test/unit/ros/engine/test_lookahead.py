"""The lookahead follows what is measured, and neither warm-up nor a bad clock spoils it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from physis_core.types import UserError
from physis_ros.engine.lookahead import LookaheadConfig, LookaheadEstimator


def test_a_slow_first_inference_is_left_out() -> None:
    estimator = LookaheadEstimator(LookaheadConfig(initial_s=0.15, max_s=0.6))
    for _ in range(8):
        estimator.add(5.0)
    assert estimator.value_s == 0.15
    for _ in range(50):
        estimator.add(0.08)
    assert estimator.value_s == 0.08
    assert not estimator.capped


def test_it_is_a_high_quantile_of_the_window() -> None:
    estimator = LookaheadEstimator(LookaheadConfig(initial_s=0.1, max_s=1.0, warmup=0))
    for index in range(100):
        estimator.add(index / 1000)
    assert estimator.value_s == pytest.approx(0.089)
    for _ in range(100):
        estimator.add(0.2)
    assert estimator.value_s == 0.2


def test_it_never_leaves_what_the_model_knows_and_says_so() -> None:
    estimator = LookaheadEstimator(LookaheadConfig(initial_s=0.1, max_s=0.6, warmup=0))
    for _ in range(20):
        estimator.add(3.0)
    assert estimator.value_s == 0.6
    assert estimator.capped


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=60))
def test_whatever_is_measured_it_stays_in_range(ages_s: list[float]) -> None:
    estimator = LookaheadEstimator(LookaheadConfig(initial_s=0.1, max_s=0.6))
    for age_s in ages_s:
        estimator.add(age_s)
        assert 0.0 <= estimator.value_s <= 0.6
        assert math.isfinite(estimator.value_s)


def test_a_new_epoch_fills_the_pipeline_again() -> None:
    estimator = LookaheadEstimator(LookaheadConfig(initial_s=0.1, max_s=0.6, warmup=2))
    for _ in range(30):
        estimator.add(0.05)
    estimator.restart()
    estimator.add(0.5)
    estimator.add(0.5)
    assert estimator.value_s == 0.05


def test_an_initial_value_beyond_the_model_is_refused() -> None:
    with pytest.raises(UserError, match="lookahead_initial_s"):
        LookaheadConfig(initial_s=0.7, max_s=0.6)
