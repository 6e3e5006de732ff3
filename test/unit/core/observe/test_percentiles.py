import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from physis_core.observe.percentiles import SlidingWindow, percentiles_of

finite = st.floats(-1e6, 1e6)


def test_none_is_nan_and_says_zero() -> None:
    p = percentiles_of([])
    assert p.n == 0
    assert math.isnan(p.p50) and math.isnan(p.max)


@given(st.lists(finite, min_size=1, max_size=200))
def test_ordered_and_within_the_samples(samples: list[float]) -> None:
    p = percentiles_of(samples)
    assert min(samples) <= p.p50 <= p.p99 <= p.p999 <= p.max == max(samples)
    assert p.n == len(samples)


@given(st.lists(finite, max_size=60), st.integers(1, 20))
def test_the_window_is_the_newest_samples_in_order(samples: list[float], capacity: int) -> None:
    window = SlidingWindow(capacity)
    for s in samples:
        window.add(s)
    newest = samples[-capacity:]
    np.testing.assert_array_equal(window.values(), np.array(newest))
    assert len(window) == len(newest)
    if newest:
        assert window.percentiles() == percentiles_of(newest)
