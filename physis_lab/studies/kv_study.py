"""Noisy against clean KV, and whether either drifts.

    python -m physis_lab.studies.kv_study --noisy checkpoints/physis_tiny_wam.safetensors \\
        --clean checkpoints/physis_tiny_wam_clean.safetensors --work runs/kv_study \\
        --plot docs/images/noisy-kv.png

Two checkpoints of one architecture, trained on the same batches, run in the fast closed loop with
the same episodes and noise. Every cell (`physis_lab.studies.kv_cells`) and each drift run writes a
file to `--work` atomically, so an interrupted study resumes, and two processes on one folder share
the work. A drift run is one episode of DRIFT_CHUNKS chunks in closed loop.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from physis_core.model.tiny import checkpoint as checkpoints
from physis_core.model.tiny.config import TinyConfig, read_config
from physis_core.model.tiny.model import TinyModel
from physis_core.observe.machine import machine
from physis_core.observe.result_file import write_result
from physis_core.types import KVMode, UserError
from physis_lab.arm.camera import Camera
from physis_lab.arm.kinematics import Kinematics
from physis_lab.arm.scene import build_model
from physis_lab.evaluation.closed_loop import (
    RENDER_SIZE,
    ClosedLoopConfig,
    run_recorded,
    still_errors,
    tick_times,
)
from physis_lab.evaluation.policies import ModelPolicy
from physis_lab.studies.kv_cells import PERIOD_S, Cell, all_cells, own_cells
from physis_lab.studies.kv_report import draw, found_of, print_tables
from physis_lab.tasks.outcome import StaysNear
from physis_lab.tasks.task import make_task

DRIFT_CHUNKS = 5000
DRIFT_PART = 500


def variant(checkpoint: Path, cell: Cell) -> TinyModel:
    """The checkpoint's weights with the cell's settings. Pictures stay latents, which is faster.

    Raises:
        UserError: the file is no policy.
    """
    config, weights = checkpoints.load(checkpoint)
    model = TinyModel(
        replace(
            config, kv=cell.kv, steps=cell.steps, window_chunks=cell.window_chunks, decode=False
        )
    )
    model.network.load_state_dict(weights)
    return model


def loop_config(cell: Cell, base: ClosedLoopConfig) -> ClosedLoopConfig:
    return replace(base, period_s=cell.period_s, response_s=cell.response_s)


def run_cell(checkpoint: Path, cell: Cell, base: ClosedLoopConfig) -> dict[str, Any]:
    """Mean error and success of every episode, [E] each."""
    config = loop_config(cell, base)
    tasks = [make_task("follow", config.first_seed + n) for n in range(config.episodes)]
    world = build_model(props=tasks[0].props)
    with Camera(world, width=RENDER_SIZE, height=RENDER_SIZE) as camera:
        policy = ModelPolicy(variant(checkpoint, cell), camera, episodes=config.episodes)
        record = run_recorded(policy, tasks, config)
    still = still_errors(tasks, config, Kinematics(world))
    at_s = tick_times(config)
    # The task's own rule, with the settling time of this loop.
    rule = StaysNear(settle_s=config.settle_s)
    outcomes = [
        rule.judge(at_s, moved, stood) for moved, stood in zip(record.errors, still, strict=True)
    ]
    settled = at_s > config.settle_s
    return {
        "errors_m": [x.error_m for x in outcomes],
        "successes": [x.success for x in outcomes],
        "still_m": [float(x[settled].mean()) for x in still],
    }


def run_drift(checkpoint: Path, cell: Cell, base: ClosedLoopConfig, chunks: int) -> dict[str, Any]:
    """One stream of `chunks` chunks: error and commands of each part of DRIFT_PART chunks."""
    config = replace(loop_config(cell, base), episodes=1, duration_s=chunks * cell.period_s)
    tasks = [make_task("follow", config.first_seed)]
    world = build_model(props=tasks[0].props)
    with Camera(world, width=RENDER_SIZE, height=RENDER_SIZE) as camera:
        policy = ModelPolicy(variant(checkpoint, cell), camera, episodes=config.episodes)
        record = run_recorded(policy, tasks, config)
    still = still_errors(tasks, config, Kinematics(world))[0]
    parts = max(1, chunks // DRIFT_PART)
    errors = np.array_split(record.errors[0], parts)
    commands = np.array_split(record.commands[0], parts)
    return {
        "chunks": chunks,
        "error_m": [float(x.mean()) for x in errors],
        "error_p95_m": [float(np.quantile(x, 0.95)) for x in errors],
        "still_m": [float(x.mean()) for x in np.array_split(still, parts)],
        "command_mean_rad": [x.mean(axis=0).tolist() for x in commands],
        "command_std_rad": [float(x.std(axis=0).mean()) for x in commands],
    }


class Work:
    """The folder of results, one file each. `identity`: settings that all of them must share."""

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        note = folder / "study.json"
        text = json.dumps(identity, sort_keys=True)
        if note.exists() and note.read_text() != text:
            raise UserError("work", str(folder), "holds results of other settings; remove it")
        note.write_text(text)

    def known(self, name: str) -> dict[str, Any] | None:
        path = self._folder / f"{name}.json"
        return json.loads(path.read_text()) if path.exists() else None

    def claim(self, name: str) -> bool:
        """Claim this run; False if another living process has."""
        claim = self._folder / f"{name}.claim"
        try:
            with claim.open("x") as file:
                file.write(str(os.getpid()))
        except FileExistsError:
            # A claim of a process that has ended, or of this one, does not count.
            holder = claim.read_text()
            if holder != str(os.getpid()) and Path("/proc", holder).exists():
                return False
            claim.write_text(str(os.getpid()))
        return True

    def keep(self, name: str, result: Mapping[str, Any]) -> None:
        write_result(self._folder / f"{name}.json", result)
        (self._folder / f"{name}.claim").unlink(missing_ok=True)


def study(
    files: Mapping[KVMode, Path], base: ClosedLoopConfig, folder: Path, drift_chunks: int
) -> dict[str, Any]:
    """Run what is missing; returns results by the name of the cell, drift runs as `drift_KV`.

    Raises:
        UserError: the checkpoints are not two of one architecture, trained noisy and clean.
    """
    configs = {kv: read_config(path, TinyConfig) for kv, path in files.items()}
    for kv, config in configs.items():
        if config.kv != kv:
            raise UserError(kv, str(files[kv]), f"was trained with {config.kv} KV")
    if replace(configs["noisy"], kv="clean") != configs["clean"]:
        other = f"differs from {files['noisy']} in more than the KV mode"
        raise UserError("clean", str(files["clean"]), other)
    marks = [hashlib.sha256(files[kv].read_bytes()).hexdigest() for kv in ("noisy", "clean")]
    settings = {"files": marks, "loop": asdict(base), "drift_chunks": drift_chunks}
    work = Work(folder, settings)
    todo: list[tuple[str, Cell]] = [(f"drift_{cell.kv}", cell) for cell in own_cells()]
    cells = [(cell.name, cell) for cell in all_cells(configs["noisy"].blocks)]
    # With the long runs in the middle two processes end at about the same time.
    todo = [*cells[: len(cells) // 2], *todo, *cells[len(cells) // 2 :]]
    for number, (name, cell) in enumerate(todo, start=1):
        if work.known(name) is not None or not work.claim(name):
            continue
        if name.startswith("drift"):
            result = run_drift(files[cell.trained], cell, base, drift_chunks)
        else:
            result = run_cell(files[cell.trained], cell, base)
        work.keep(name, result)
        errors = result["error_m" if name.startswith("drift") else "errors_m"]
        print(
            f"{number}/{len(todo)} {name}: {1e3 * float(np.mean(errors)):.1f} mm",
            file=sys.stderr,
            flush=True,
        )
    results = {name: work.known(name) for name, _ in todo}
    missing = [name for name, result in results.items() if result is None]
    if missing:
        raise UserError("work", str(folder), f"another process still runs {', '.join(missing)}")
    return results


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Noisy against clean KV in the closed loop.")
    parser.add_argument("--noisy", type=Path, required=True, help="checkpoint trained noisy")
    parser.add_argument("--clean", type=Path, required=True, help="checkpoint trained clean")
    parser.add_argument("--work", type=Path, required=True, help="folder for the results so far")
    parser.add_argument("--episodes", type=int, default=12)
    parser.add_argument("--duration", type=float, default=10.0, help="seconds each")
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--drift-chunks", type=int, default=DRIFT_CHUNKS)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--json", type=Path, help="also write the result here")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    try:
        if args.episodes < 2:
            raise UserError("episodes", args.episodes, "an interval needs at least 2")
        least_s = ClosedLoopConfig.__dataclass_fields__["settle_s"].default
        if args.drift_chunks * PERIOD_S <= least_s:
            raise UserError("drift_chunks", args.drift_chunks, f"must last over {least_s} s")
        base = ClosedLoopConfig(
            episodes=args.episodes, duration_s=args.duration, first_seed=args.seed
        )
        files: dict[KVMode, Path] = {"noisy": args.noisy, "clean": args.clean}
        results = study(files, base, args.work, args.drift_chunks)
        blocks = read_config(args.noisy, TinyConfig).blocks
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    found = found_of(results, blocks)
    print_tables(found)
    if args.plot:
        draw(args.plot, found)
    if args.json:
        write_result(args.json, {"config": asdict(base), "machine": machine(), **found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
