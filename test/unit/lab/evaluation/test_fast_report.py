"""The report of the fast evaluation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from physis_core.types import UserError
from physis_lab.arm.limits import UR5E_LIMITS
from physis_lab.evaluation.closed_loop import ClosedLoopConfig, LoopRecord
from physis_lab.evaluation.fast_report import evaluate_fast, limit_ticks, report
from physis_lab.tasks.outcome import Arrives, StaysNear


def test_the_report_has_what_every_report_has() -> None:
    config = ClosedLoopConfig(episodes=3, duration_s=4.0, settle_s=1.0)
    still = np.full((3, 400), 0.12)
    errors = np.stack([np.full(400, 0.01), np.full(400, 0.019), np.full(400, 0.031)])
    errors[:, :100] = 1.0
    found = report(
        config, errors, np.zeros_like(errors), still, "here", StaysNear(settle_s=config.settle_s)
    )
    task = found["task"]
    assert task["success"] == pytest.approx(2 / 3)
    assert task["error_m_mean"] == pytest.approx(0.02)
    assert task["error_over_still"] == pytest.approx(1 / 6)
    assert task["beside"]["expert"]["success"] == 1.0 and task["beside"]["still"]["success"] == 0.0
    assert found["chunks"] == 3 * 40
    assert found["output_interval_ms"]["p50"] == pytest.approx(100.0)
    age = found["action_age_ms"]["servo"]
    assert config.lookahead_s * 1e3 <= age["p50"] <= age["max"]
    assert age["max"] < 1e3 * (config.lookahead_s + config.period_s)
    assert {"parts_ms", "rates_hz", "safety", "config", "machine"} <= found.keys()


def test_a_task_that_is_over_once_it_is_done_counts_last_distances_and_times() -> None:
    config = ClosedLoopConfig(task="reach", episodes=3, duration_s=6.0)
    at_s = 0.01 * (1 + np.arange(600))
    still = np.full((3, 600), 0.15)
    errors = np.stack([np.where(at_s < begin_s, 0.15, 0.01) for begin_s in (1.0, 2.0, 5.5)])
    rule = Arrives(tolerance_m=0.02, within_s=5.0)
    task = report(config, errors, errors, still, "here", rule)["task"]
    assert task["success"] == pytest.approx(2 / 3) and task["successes"] == [True, True, False]
    assert task["time_to_success_s_p50"] == pytest.approx(1.5)
    assert task["error_m_mean"] == pytest.approx(0.01)
    assert task["still_error_m_mean"] == pytest.approx(0.15)
    assert task["beside"]["still"]["time_s_p50"] is None
    assert "within 20 mm by 5 s" in task["success_means"]


def test_ticks_past_a_limit_are_counted_on_both_sides() -> None:
    paths = np.zeros((2, 50, 6))
    record = LoopRecord(errors=np.zeros((2, 50)), commands=paths, positions=paths.copy())
    assert limit_ticks(record, UR5E_LIMITS) == {"commanded": 0, "measured": 0}
    record.commands[0, 20:, 2] = 3.0  # there in one tick: too fast, but a place that is allowed
    record.positions[1, :10, 5] = 7.0  # ten ticks beyond two pi, and a leap back
    assert limit_ticks(record, UR5E_LIMITS) == {"commanded": 1, "measured": 10 + 1}


def test_episodes_too_short_to_be_judged_are_refused() -> None:
    config = ClosedLoopConfig(task="reach", episodes=1, duration_s=0.3, settle_s=0.1)
    short = np.full((1, 30), 0.1)
    with pytest.raises(UserError, match="duration"):
        report(config, short, short, short, "x", Arrives(tolerance_m=0.02, within_s=5.0))


def test_an_unknown_task_is_refused() -> None:
    with pytest.raises(UserError, match="dance"):
        evaluate_fast(Path("nowhere"), ClosedLoopConfig(task="dance"))
