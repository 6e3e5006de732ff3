"""A run whose every number is known by construction."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from physis_core.observe.plots import plot_run, run_figure
from physis_core.observe.report import (
    BUFFER_CHUNK_COLUMNS,
    BUFFER_SERVO_COLUMNS,
    RunTables,
    build_report,
)
from physis_core.observe.rowlog import RowTable
from physis_core.observe.tables import print_report

MS = 1_000_000


def table(columns: dict[str, list[float]], units: dict[str, str]) -> RowTable:
    return RowTable(
        columns={k: np.array(v, float) for k, v in columns.items()}, units=units, meta={}
    )


@pytest.fixture
def tables() -> RunTables:
    n = 20
    c = range(n)
    base = 10_000 * MS
    capture = [base + i * 100 * MS for i in c]
    chunks = {
        "t_s": [1.0 + 0.1 * i for i in c],
        "epoch": [0.0] * n,
        "chunk_id": list(map(float, c)),
        "capture_oldest_ns": capture,
        "capture_newest_ns": capture,
        "receipt_ns": [x + 5 * MS for x in capture],
        "entry_ns": [x + 12 * MS for x in capture],
        "exit_ns": [x + 92 * MS for x in capture],
        "deadline_ns": [x + (100 if i % 10 else 90) * MS for i, x in enumerate(capture)],
        "start_ns": [x + 90 * MS for x in capture],
        "handoff_ns": [x + 97 * MS for x in capture],
        "accepted": [1.0] * n,
    }
    m = 200
    servo = {
        "t_s": [0.0 + 0.02 * i for i in range(m)],
        "ros_ns": [base + 20 * MS * i for i in range(m)],
        "age_ms": [float("nan") if i < 50 else 150.0 for i in range(m)],
        "epoch": [0.0] * m,
        "chunk_id": [0.0] * m,
        "depth_s": [0.3] * m,
        "underrun": [1.0 if i < 50 else 0.0 for i in range(m)],
    }
    return RunTables(
        chunks=table(chunks, dict(BUFFER_CHUNK_COLUMNS)),
        servo=table(servo, dict(BUFFER_SERVO_COLUMNS)),
    )


def report_of(tables: RunTables, warmup_s: float) -> dict:
    return build_report(
        tables,
        sensor_hz=30.0,
        task={"name": "follow", "success": True, "error_m_p50": 0.01},
        safety={"state": "OK", "trips": 0},
        config={},
        machine={},
        warmup_s=warmup_s,
        dropped=0,
    )


def test_interval_latency_age_and_parts_are_different_numbers(tables: RunTables) -> None:
    report = report_of(tables, warmup_s=1.0)
    assert report["output_interval_ms"]["p50"] == pytest.approx(100)
    assert report["response_latency_ms"]["max"] == pytest.approx(80)
    assert report["action_age_ms"]["handoff"]["p99"] == pytest.approx(97)
    assert report["action_age_ms"]["servo"]["p50"] == pytest.approx(150)
    parts = {k: v["p50"] for k, v in report["parts_ms"].items()}
    assert parts == pytest.approx({"capture": 5, "queue": 7, "response": 80, "handoff": 5})
    assert sum(parts.values()) == pytest.approx(report["action_age_ms"]["handoff"]["p50"])
    assert report["rates_hz"]["sensor"] == 30.0
    assert report["rates_hz"]["servo"] == pytest.approx(50, rel=0.02)
    assert report["deadline_misses"] == 2
    assert report["underruns"] == 0
    assert report["chunks"] == 20


def test_warm_up_is_left_out_and_reported_by_itself(tables: RunTables) -> None:
    report = report_of(tables, warmup_s=2.0 - 1e-9)
    assert report["chunks"] == 10
    assert report["deadline_misses"] == 1
    assert report["warmup_s"] == pytest.approx(2.0)


def test_an_interval_across_a_restart_is_no_interval(tables: RunTables) -> None:
    tables.chunks["epoch"][10:] = 1
    tables.chunks["exit_ns"][10:] += 5_000 * MS
    report = report_of(tables, warmup_s=1.0)
    assert report["output_interval_ms"]["max"] == pytest.approx(100)
    assert report["output_interval_ms"]["n"] == 18


def test_can_be_read_printed_and_drawn(tables: RunTables, tmp_path: Path) -> None:
    report = report_of(tables, warmup_s=1.0)
    json.dumps(report, allow_nan=True)
    out = io.StringIO()
    print_report(report, Console(file=out, width=120))
    assert "not a latency" in out.getvalue()
    assert "servo 5" in out.getvalue()
    plot_run(tables, None, tmp_path / "run.png", period_ms=100, warmup_s=1.0)
    assert (tmp_path / "run.png").stat().st_size > 10_000


@pytest.mark.parametrize("seed", range(5))
def test_the_picture_counts_and_greys_what_the_report_says(tables: RunTables, seed: int) -> None:
    random = np.random.default_rng(seed)
    warmup_s = float(random.uniform(0.5, 3.0))
    servo, chunks = tables.servo, tables.chunks
    servo["underrun"][:] = random.random(servo.rows) < 0.3
    chunks["accepted"][:] = random.random(chunks.rows) < 0.7
    chunks["deadline_ns"][:] += random.normal(0.0, 50.0 * MS, chunks.rows)
    report = report_of(tables, warmup_s=warmup_s)
    figure = run_figure(tables, None, period_ms=100, warmup_s=report["warmup_s"])
    labels = [text.get_text() for text in figure.axes[2].get_legend().get_texts()]
    assert labels == [
        f"deadline misses ({report['deadline_misses']})",
        f"underruns ({report['underruns']})",
    ]
    for axis in figure.axes:
        assert axis.patches[0].get_x() == 0.0
        assert axis.patches[0].get_width() == pytest.approx(report["warmup_s"])
    out = io.StringIO()
    print_report(report, Console(file=out, width=160))
    for text in (out.getvalue(), figure.axes[-1].get_xlabel()):
        assert f"the first {warmup_s:.1f} s" in text
