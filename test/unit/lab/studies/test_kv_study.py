"""The study's results: figures from cells, and a study that goes on where it stopped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from physis_core.model.tiny import checkpoint
from physis_core.model.tiny.config import TinyConfig
from physis_core.model.tiny.loading import random_tiny
from physis_core.types import KVMode, UserError
from physis_lab.arm.limits import JOINT_NAMES
from physis_lab.evaluation.closed_loop import ClosedLoopConfig
from physis_lab.studies import kv_study
from physis_lab.studies.kv_cells import Cell, all_cells, own_cells
from physis_lab.studies.kv_report import difference, draw, found_of, print_tables, trend

torch.set_num_threads(1)
LOOP = ClosedLoopConfig(episodes=2, duration_s=0.4, settle_s=0.1)


def write_policy(path: Path, kv: KVMode, **changes: Any) -> Path:
    config = TinyConfig(
        joint_names=JOINT_NAMES,
        camera_names=("front",),
        position_mean=(0.0,) * 6,
        position_std=(1.0,) * 6,
        grid=1,
        keypoints=2,
        image_channels=2,
        blocks=1,
        dim=16,
        heads=2,
        ffn=16,
        kv=kv,
        **changes,
    )
    checkpoint.save(path, config, random_tiny(config).network.state_dict(), {})
    return path


def made_up(cell: Cell) -> dict[str, Any]:
    """Clean errs by 1 mm more; the first episode of three is lost."""
    error_m = 0.011 if cell.kv == "clean" else 0.010
    return {
        "errors_m": [error_m + 0.03, error_m, error_m + 0.001],
        "successes": [False, True, True],
        "still_m": [0.15, 0.14, 0.13],
    }


def results() -> dict[str, Any]:
    drift = {
        "chunks": 1000,
        "error_m": [0.01, 0.02],
        "error_p95_m": [0.02, 0.04],
        "still_m": [0.1, 0.1],
        "command_mean_rad": [[0.0] * 6] * 2,
        "command_std_rad": [0.2, 0.1],
    }
    cells = {cell.name: made_up(cell) for cell in all_cells(blocks=4)}
    return {**cells, "drift_noisy": drift, "drift_clean": drift}


def test_differences_are_of_the_same_episodes() -> None:
    noisy, clean = (made_up(cell) for cell in own_cells())
    apart = difference(clean, noisy)
    assert apart["error_m"] == pytest.approx(0.001)
    # Every episode differs by as much: their common spread does not widen the interval.
    assert apart["error_ci95_m"] == pytest.approx(0.0, abs=1e-12)
    assert apart["success_points"] == 0.0


def test_figures_table_and_picture_come_from_the_cells(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = found_of(results(), blocks=4)
    assert found["still_m"] == pytest.approx(0.14)
    assert found["steps"]["1"]["noisy"]["success"] == pytest.approx(2 / 3)
    assert found["window"]["4"]["clean_minus_noisy"]["error_m"] == pytest.approx(0.001)
    assert found["equal_hardware"]["0.4"]["pipelined clean"]["period_s"] == 0.45
    assert found["drift"]["noisy"]["trend"] == pytest.approx(
        {"error_late_over_early": 2.0, "command_std_late_over_early": 0.5}
    )
    print_tables(found)
    printed = capsys.readouterr().out
    assert "noisy run clean" in printed and "1000 chunks, clean" in printed
    draw(tmp_path / "plot.png", found)
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_a_ball_that_is_faster_later_is_no_drift() -> None:
    drift = {"error_m": [0.01, 0.02], "still_m": [0.1, 0.2], "command_std_rad": [0.1, 0.1]}
    assert trend(drift)["error_late_over_early"] == pytest.approx(1.0)


def test_weights_are_run_as_the_cell_says(tmp_path: Path) -> None:
    path = write_policy(tmp_path / "noisy", "noisy")
    model = kv_study.variant(path, Cell(trained="noisy", kv="clean", steps=2, window_chunks=3))
    spec = model.spec
    assert (spec.kv, spec.steps, spec.window_chunks) == ("clean", 2, 3)


def test_a_study_goes_on_with_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files: dict[KVMode, Path] = {kv: write_policy(tmp_path / kv, kv) for kv in ("noisy", "clean")}
    run: list[str] = []

    def only_some(blocks: int) -> list[Cell]:
        return list(own_cells())

    def counted(path: Path, cell: Cell, base: ClosedLoopConfig) -> dict[str, Any]:
        run.append(cell.name)
        if len(run) == 2:
            raise KeyboardInterrupt
        return real(path, cell, base)

    real = kv_study.run_cell
    monkeypatch.setattr(kv_study, "all_cells", only_some)
    monkeypatch.setattr(kv_study, "run_cell", counted)
    work = tmp_path / "work"
    with pytest.raises(KeyboardInterrupt):
        kv_study.study(files, LOOP, work, drift_chunks=6)
    found = kv_study.study(files, LOOP, work, drift_chunks=6)
    first, second = (cell.name for cell in own_cells())
    # The one that was interrupted is begun anew, the finished one is not.
    assert run == [first, second, second]
    assert found.keys() == {first, second, "drift_noisy", "drift_clean"}
    assert len(found[first]["errors_m"]) == 2
    assert found["drift_clean"]["chunks"] == 6
    with pytest.raises(UserError, match="other settings"):
        kv_study.study(files, replace(LOOP, first_seed=7), work, drift_chunks=6)


def test_checkpoints_that_are_no_pair_are_refused_by_name(tmp_path: Path) -> None:
    noisy = write_policy(tmp_path / "noisy", "noisy")
    with pytest.raises(UserError, match="clean"):
        kv_study.study({"noisy": noisy, "clean": noisy}, LOOP, tmp_path / "work", 6)
    other = write_policy(tmp_path / "other", "clean", action_steps=4)
    with pytest.raises(UserError, match="differs"):
        kv_study.study({"noisy": noisy, "clean": other}, LOOP, tmp_path / "work", 6)


@pytest.mark.parametrize(
    ("option", "value"), [("--episodes", "1"), ("--drift-chunks", "3"), ("--duration", "1")]
)
def test_bad_input_gets_one_line_and_2(
    option: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "missing")
    given = ["--noisy", path, "--clean", path, "--work", str(tmp_path / "work"), option, value]
    assert kv_study.main(given) == 2
    message = capsys.readouterr().err
    assert option.strip("-").replace("-", "_") in message
    assert message.count("\n") == 1
