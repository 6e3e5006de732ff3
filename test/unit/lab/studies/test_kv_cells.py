"""Which runs are compared, and the pace that the hardware allows each schedule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from physis_lab.studies.kv_cells import (
    HOP_S,
    PERIOD_S,
    SCHEDULES,
    Cell,
    all_cells,
    crossed_cells,
    hardware_cells,
    on_tick,
    own_cells,
    pace,
)


@given(stages=st.integers(1, 64), response_s=st.floats(0.01, 1.0))
def test_only_the_noisy_pipeline_is_faster_than_its_response(
    stages: int, response_s: float
) -> None:
    found = {
        schedule: pace(schedule, stages=stages, response_s=response_s) for schedule in SCHEDULES
    }
    stage_s = response_s / stages
    interval_s, whole_s = found["pipelined noisy"]
    assert interval_s == pytest.approx(stage_s)
    assert whole_s == pytest.approx(response_s + (stages - 1) * HOP_S)
    assert found["sequential noisy"] == pytest.approx((response_s, response_s))
    # The next chunk waits for all stages and for the first one of the rerun: D * L + 1 stages.
    clean_interval_s, clean_whole_s = found["pipelined clean"]
    assert clean_whole_s == whole_s
    assert clean_interval_s == pytest.approx((stages + 1) * stage_s + stages * HOP_S)


@given(time_s=st.floats(0.0, 2.0))
def test_a_time_is_rounded_up_to_the_next_servo_tick(time_s: float) -> None:
    tick_s = on_tick(time_s)
    assert round(100 * tick_s) == pytest.approx(100 * tick_s)
    assert time_s - 1e-7 <= tick_s < time_s + 0.01 + 1e-7


def test_schedules_that_cannot_keep_the_period_run_with_and_without_history() -> None:
    cells = hardware_cells(0.4, blocks=4)
    (pipelined,) = cells["pipelined noisy"]
    assert (pipelined.period_s, pipelined.response_s, pipelined.kv) == (PERIOD_S, 0.42, "noisy")
    assert [(c.period_s, c.window_chunks) for c in cells["sequential noisy"]] == [
        (0.4, 8),
        (0.4, 1),
    ]
    # 17 stages of 25 ms and 16 hops of 1 ms.
    assert {(c.period_s, c.response_s, c.trained) for c in cells["pipelined clean"]} == {
        (0.45, 0.42, "clean")
    }


def test_every_cell_is_run_once_under_a_name_of_its_own() -> None:
    cells = all_cells(blocks=4)
    assert len({cell.name for cell in cells}) == len(cells) == len(set(cells))
    assert cells[:4] == [*own_cells(), *crossed_cells()]
    assert Cell(trained="clean", kv="clean", steps=8) in cells
    assert all(cell in cells for group in hardware_cells(0.4, 4).values() for cell in group)
