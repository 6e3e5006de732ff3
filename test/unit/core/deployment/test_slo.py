from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from physis_core.decoding import decode
from physis_core.deployment.slo import Slo, SloFields, rate_text, same_meaning
from physis_core.types import UserError


def test_the_period_is_q_over_f_and_says_so() -> None:
    slo = Slo(count="control_steps", per_chunk=16, rate_hz=50)
    assert slo.period_s == pytest.approx(0.32)
    assert "16 / 50 = 320 ms" in slo.explain()
    assert "control step" in slo.explain()


def test_one_rate_in_three_meanings() -> None:
    chunk_hz = 1000 / 4.083
    assert rate_text(chunk_hz, "frames", 4) == "244.9 chunk/s (= 979.7 frame/s at 4 per chunk)"
    assert "3919 control step/s" in rate_text(chunk_hz, "control_steps", 16)
    assert "122.5 action chunk/s" in rate_text(chunk_hz, "action_chunks", 0.5)


def test_different_meanings_are_not_compared() -> None:
    frames = Slo(count="frames", per_chunk=4, rate_hz=30)
    steps = Slo(count="control_steps", per_chunk=16, rate_hz=30)
    same_meaning(frames, frames)
    with pytest.raises(UserError, match="cannot be compared with frames"):
        same_meaning(frames, steps)


@pytest.mark.parametrize(
    ("values", "field", "says"),
    [
        ({"per_chunk": 4, "rate": 30}, "count", "is needed"),
        ({"count": "pixels", "per_chunk": 4, "rate": 30}, "count", "one of"),
        ({"count": "frames", "per_chunk": 0, "rate": 30}, "per_chunk", "above 0"),
        ({"count": "frames", "per_chunk": 4}, "rate", "either"),
        ({"count": "frames", "per_chunk": 4, "rate": 30, "period_ms": 9}, "rate", "not both"),
        ({"count": "frames", "per_chunk": 4, "rate": "30 control steps"}, "rate", "counts control"),
        ({"count": "frames", "per_chunk": 4, "rate": "30 apples"}, "rate", "counts none"),
        ({"count": "frames", "per_chunk": 4, "rate": "fast frames"}, "rate", "number"),
        ({"count": "frames", "per_chunk": 4, "rate": 30, "speed": 1}, "speed", "unknown"),
    ],
)
def test_bad_levels_name_the_field(values: dict[str, object], field: str, says: str) -> None:
    with pytest.raises(UserError, match=says) as error:
        decode(values, SloFields, "streams[0].slo")
    assert error.value.field == f"streams[0].slo.{field}"


@pytest.mark.parametrize("rate", [30, "30 frames", "30 frames/s", "30 frame", "3e1 frames"])
def test_rates_may_say_their_unit(rate: object) -> None:
    slo = decode({"count": "frames", "per_chunk": 4, "rate": rate}, SloFields).slo()
    assert slo.rate_hz == 30
    assert slo.max_response_s == math.inf


@given(q=st.floats(0.1, 100.0), period_s=st.floats(1e-4, 100.0))
def test_a_period_gives_back_its_period(q: float, period_s: float) -> None:
    slo = Slo.of_period("latents", q, period_s)
    assert slo.period_s == pytest.approx(period_s)
    assert slo.with_period(2 * period_s).rate_hz == pytest.approx(slo.rate_hz / 2)
