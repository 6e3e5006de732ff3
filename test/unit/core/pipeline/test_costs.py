import pytest
from hypothesis import given
from hypothesis import strategies as st

from physis_core.pipeline.costs import TABLE_BATCH, CostTable, OnlineCosts
from physis_core.types import UserError


def test_measured_points_come_back_and_gaps_are_linear() -> None:
    table = CostTable({0: {1: 1.0, 4: 2.5}})
    assert table.predict_s(0, 1) == 1.0
    assert table.predict_s(0, 4) == 2.5
    assert table.predict_s(0, 2) == pytest.approx(1.5)
    assert table.predict_s(0, 6) == pytest.approx(3.5)
    assert table.predict_s(0, TABLE_BATCH + 10) == pytest.approx(1.0 + 0.5 * (TABLE_BATCH + 9))


def test_one_point_promises_no_gain() -> None:
    assert CostTable({3: {1: 0.5}}).predict_s(3, 4) == 2.0


@pytest.mark.parametrize(
    ("points", "field"),
    [
        ({0: {}}, "costs[0]"),
        ({0: {2: 1.0}}, "costs[0]"),
        ({0: {1: float("nan")}}, "costs[0][1]"),
        ({0: {0: 1.0}}, "costs[0]"),
    ],
)
def test_bad_points_name_the_field(points: dict[int, dict[int, float]], field: str) -> None:
    with pytest.raises(UserError) as error:
        CostTable(points)
    assert error.value.field == field


def test_online_costs_learn_a_slow_device_for_unseen_batches_too() -> None:
    costs = OnlineCosts(CostTable({0: {1: 1.0, 2: 1.5}}))
    for _ in range(100):
        costs.observe(0, 1, 2.0)
    assert costs.predict_s(0, 1) == pytest.approx(2.0, rel=0.01)
    assert costs.predict_s(0, 2) == pytest.approx(3.0, rel=0.01)
    assert costs.ratio(0) == pytest.approx(2.0, rel=0.01)


def test_one_stall_moves_a_prediction_little() -> None:
    costs = OnlineCosts(CostTable({0: {1: 1.0}}), weight=0.1, clip=4.0)
    costs.observe(0, 1, 1000.0)
    assert costs.predict_s(0, 1) <= 1.0 + 0.1 * 3.0 + 1e-9


@given(
    base_s=st.floats(1e-6, 10.0),
    measured_s=st.lists(st.floats(1e-7, 100.0), min_size=1, max_size=50),
)
def test_predictions_stay_positive_and_within_what_was_seen(
    base_s: float, measured_s: list[float]
) -> None:
    costs = OnlineCosts(CostTable({0: {1: base_s}}))
    for value in measured_s:
        costs.observe(0, 1, value)
    low, high = min([base_s, *measured_s]), max([base_s, *measured_s])
    assert low * (1 - 1e-9) <= costs.predict_s(0, 1) <= high * (1 + 1e-9)
    assert costs.ratio(0) > 0.0
