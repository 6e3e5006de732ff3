"""Several runs put together have the samples of each, and no interval between two of them."""

from __future__ import annotations

import numpy as np
import pytest

from physis_core.observe.report import (
    BUFFER_CHUNK_COLUMNS,
    BUFFER_SERVO_COLUMNS,
    RunSamples,
    pooled,
    samples_of,
    time_figures,
)
from physis_core.observe.rowlog import RowTable

MS = 1e6


def run_of(begin_s: float, period_ms: float, chunks: int = 10) -> tuple[RowTable, RowTable]:
    """A chunk every `period_ms`, 50 ms from entry to exit; a servo tick every 10 ms."""
    at_ms = 1e3 * begin_s + period_ms * np.arange(chunks)
    ticks = np.arange(round(period_ms * chunks / 10.0))
    own = {
        "t_s": (at_ms + 60.0) / 1e3,
        "chunk_id": np.arange(chunks),
        "exit_ns": (at_ms + 55.0) * MS,
        "capture_oldest_ns": at_ms * MS,
        "capture_newest_ns": at_ms * MS,
        "receipt_ns": (at_ms + 3.0) * MS,
        "entry_ns": (at_ms + 5.0) * MS,
        "deadline_ns": (at_ms + 100.0) * MS,
        "start_ns": (at_ms + 60.0) * MS,
        "handoff_ns": (at_ms + 60.0) * MS,
        "accepted": np.ones(chunks),
    }
    servo = {"t_s": begin_s + 0.01 * ticks, "age_ms": np.full(len(ticks), 70.0)}
    return tuple(
        RowTable(
            columns={n: np.asarray(given.get(n, np.zeros(size)), float) for n in names},
            units=dict(names),
            meta={},
        )
        for given, names, size in (
            (own, BUFFER_CHUNK_COLUMNS, chunks),
            (servo, BUFFER_SERVO_COLUMNS, len(ticks)),
        )
    )  # type: ignore[return-value]


def samples(begin_s: float, period_ms: float) -> RunSamples:
    return samples_of(*run_of(begin_s, period_ms), from_s=begin_s)


def test_two_runs_put_together() -> None:
    both = pooled([samples(10.0, 100.0), samples(500.0, 200.0)])
    assert both.chunks == 20
    # Nine intervals in each run, none across the minutes between them.
    assert sorted(set(np.round(both.interval_ms, 6))) == [100.0, 200.0]
    assert both.interval_ms.size == 18
    assert both.elapsed_s == pytest.approx(0.99 + 1.99)
    figures = time_figures(both, sensor_hz=30.0)
    assert figures["response_latency_ms"]["p50"] == pytest.approx(50.0)
    assert figures["rates_hz"]["chunk"] == pytest.approx(20 / 2.98)
    assert figures["action_age_ms"]["servo"]["n"] == 100 + 200


def test_a_window_of_time_leaves_out_what_is_before_and_after() -> None:
    chunks, servo = run_of(10.0, 100.0)
    cut = samples_of(chunks, servo, from_s=10.2, until_s=10.6)
    assert cut.chunks == 4
    assert cut.age_servo_ms.size == 41
