import math

from physis_core.observe.figures import Figure, repeated, result


def test_met_is_decided_by_the_side_that_is_better() -> None:
    assert Figure(value=1.0, unit="", aim=1.03).met is True
    assert Figure(value=1.1, unit="", aim=1.03).met is False
    assert Figure(value=1.9, unit="x", aim=1.8, better="higher").met is True
    assert Figure(value=1.9, unit="x").met is None


def test_repetitions_give_median_and_half_range() -> None:
    figure = repeated([3.0, 1.0, 2.0, 10.0], "ms")
    assert figure.value == 2.5
    assert figure.spread == 4.5
    assert math.isnan(repeated([1.0], "ms").spread)


def test_a_missed_aim_is_a_result_and_not_a_failure() -> None:
    out = result({"a.b": Figure(value=2.0, unit="x", aim=1.0)}, {"n": 1})
    assert out["ok"] is True
    assert out["figures"]["a.b"] == {
        "value": 2.0,
        "unit": "x",
        "spread": None,
        "aim": 1.0,
        "met": False,
    }
    assert out["machine"]["cores"] >= 1
