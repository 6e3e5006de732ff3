"""The Pareto study: what the engine does on emulated devices, and what is on the front."""

from __future__ import annotations

from pathlib import Path

from physis_lab.studies.pareto_study import draw, measure, on_front, points_of

CHECKPOINT = Path(__file__).parents[4] / "checkpoints" / "physis_tiny_follow.safetensors"


def row(kind: str, devices: int, error_m: float, interval_ms: float = 100.0) -> dict:
    return {
        "partition": kind,
        "devices": devices,
        "interval_ms": interval_ms,
        "response_ms": 300.0,
        "device_s_per_output": devices * interval_ms / 1e3,
        "task": {"mean_m": error_m, "mean_ci95_m": 0.001},
        "on_front": True,
    }


def test_no_map_is_run_twice() -> None:
    points = points_of(4, 4)
    assert len(set(points)) == len(points)
    assert ("sequential", 1) in points
    assert ("stage", 16) in points


def test_more_devices_stand_on_the_front_only_where_the_error_falls() -> None:
    rows = [row("sequential", 1, 0.05), row("step", 2, 0.03), row("block", 2, 0.04),
            row("step", 4, 0.03), row("stage", 16, 0.02)]  # fmt: skip
    assert on_front(rows) == [True, True, False, False, True]


def test_sixteen_devices_give_more_output_and_no_fresher_one() -> None:
    # Durations that a busy machine keeps, too: only that pipelining helps is asked for.
    alone, many = (
        measure(CHECKPOINT, kind, devices, stage_s=0.01, batch_slope=0.25, chunks=8)
        for kind, devices in (("sequential", 1), ("stage", 16))
    )
    assert alone.devices == 1
    assert many.devices == 16
    assert alone.interval_ms >= 160.0
    assert many.interval_ms < 0.8 * alone.interval_ms
    assert many.response_ms >= 150.0
    assert 0.0 <= many.on_time <= 1.0


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "pareto.png"
    draw(path, [row("sequential", 1, 0.05, 300.0), row("step", 2, 0.03), row("step", 4, 0.02)], 0.1)
    assert path.stat().st_size > 5_000
