"""`physis models`: which models there are, what one needs, and whether it fulfils the contract."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from physis_core.model.description import ModelDescription
from physis_core.model.registry import ModelRef, describe, families, find_model, registrations
from physis_core.types import UserError
from physis_ros.node.model_file import named_model, shipped_models
from physis_ros.node.packages import command_for
from physis_ros.robot.limits_files import load_limits_file
from physis_ros.robot.robot_files import robot_file_path

SUMMARY = "list the models; show what one is, what it needs and what is missing"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        help="a file, a folder, a name in checkpoints/, or a family (default: list all)",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="run the conformance test: each rule of the engine's model contract",
    )
    parser.add_argument("--robot", metavar="NAME", help="compare its joints with a robot file's")


def run(args: argparse.Namespace) -> dict[str, Any]:
    console = Console(soft_wrap=True, highlight=False)
    if args.model is None:
        for option in ("check", "robot"):
            if getattr(args, option):
                raise UserError(option, getattr(args, option), "name a model")
        return _list_all(console)
    ref = named_model(args.model)
    described = describe(ref)
    missing = _missing(described, args.robot)
    _print_facts(ref, described, missing, console)
    result: dict[str, Any] = {
        "ok": not missing,
        "model": dataclasses.asdict(ref),
        "purpose": described.purpose,
        "description": dataclasses.asdict(described),
        "bytes": _size_bytes(ref),
        "missing": missing,
    }
    if args.check:
        packages = _missing_packages(described)
        if packages:
            raise UserError("model", args.model, f"needs {', '.join(packages)} for --check")
        promises = _check(ref, console)
        result["promises"] = promises
        result["ok"] = not missing and not any(promise["broken"] for promise in promises)
    return result


def _list_all(console: Console) -> dict[str, Any]:
    usable, problems = families()
    table = Table("family", "from", title="Families", title_justify="left")
    for name in usable:
        table.add_row(name, registrations()[name][0].source)
    console.print(table)
    for problem in problems:
        console.print(problem, markup=False)
    found: list[dict[str, Any]] = []
    table = Table("name", "MB", "what", title="Shipped checkpoints", title_justify="left")
    for path in shipped_models():
        size = path.stat().st_size
        entry: dict[str, Any] = {"name": path.stem, "path": str(path), "bytes": size}
        try:
            described = describe(find_model(path))
        except UserError as error:
            entry["reason"] = what = error.reason
        else:
            what = _in_a_line(described)
            entry |= {"purpose": described.purpose, "description": dataclasses.asdict(described)}
        table.add_row(path.stem, f"{size / 1e6:.1f}", what)
        found.append(entry)
    console.print(table)
    sources = {name: registrations()[name][0].source for name in usable}
    return {"ok": not problems, "families": sources, "problems": problems, "checkpoints": found}


def _in_a_line(described: ModelDescription) -> str:
    parts = [
        f"{described.purpose} ({described.family})",
        f"D {described.steps} x L {described.blocks}, {described.kv} KV",
        *(f"camera {c.name} {c.width}x{c.height}" for c in described.cameras),
    ]
    if described.joints:
        parts.append(f"{len(described.joints)} joints")
    if described.period_s is not None:
        parts.append(f"a chunk every {1e3 * described.period_s:g} ms")
    return "; ".join(parts)


def _print_facts(
    ref: ModelRef, described: ModelDescription, missing: list[str], console: Console
) -> None:
    period_s = described.period_s
    facts = {
        "model": ref.checkpoint or ref.family,
        "what": f"{described.purpose}, family {described.family}",
        "stages": f"{described.steps} denoising steps x {described.blocks} blocks",
        "KV": f"{described.kv}, window of {described.window_chunks} chunks"
        f" ({described.sink_chunks} of them sink)",
        "period": "none named" if period_s is None else f"{1e3 * period_s:g} ms between chunks",
        "cameras": ", ".join(f"{c.name} {c.width}x{c.height}" for c in described.cameras),
        "joints": ", ".join(described.joints),
    }
    if described.actions is not None:
        actions = described.actions
        facts["actions"] = (
            f"{actions.steps} points, {1e3 * actions.step_s:g} ms apart, for a lookahead of up to "
            f"{1e3 * actions.lookahead_max_s:g} ms"
        )
    if described.commands is not None:
        facts["commands"] = (
            f"{described.commands.steps} commands, {1e3 * described.commands.step_s:g} ms apart"
        )
    if described.frames is not None:
        frames = described.frames
        facts["frames"] = f"{frames.count} of {frames.width}x{frames.height} a chunk"
        facts["first"] = f"first frame: {frames.first}"
    if described.takes_prompt:
        facts["prompt"] = "taken as the stream's condition"
    if described.note:
        facts["note"] = described.note
    facts["file"] = f"{_size_bytes(ref) / 1e6:.1f} MB"
    facts["packages"] = ", ".join(described.packages)
    facts["missing"] = "; ".join(missing) or "nothing"
    for name, value in facts.items():
        console.print(f"{name:<9} {value or 'none'}", markup=False)


def _missing(described: ModelDescription, robot: str | None) -> list[str]:
    missing = list(described.missing)
    missing += [
        f"Python package {name}: {command_for(name)}" for name in _missing_packages(described)
    ]
    if robot is not None:
        path = robot_file_path(robot)
        present = load_limits_file(path)
        joints = [name for name in described.joints if name not in present]
        if joints:
            missing.append(f"joints {', '.join(joints)} of robot {path.stem}")
    return missing


def _missing_packages(described: ModelDescription) -> list[str]:
    return [name for name in described.packages if importlib.util.find_spec(name) is None]


def _size_bytes(ref: ModelRef) -> int:
    if ref.checkpoint is None:
        return 0
    path = Path(ref.checkpoint)
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files)


def _check(ref: ModelRef, console: Console) -> list[dict[str, Any]]:
    import torch

    from physis_core.model.conformance import check_promises
    from physis_core.model.loading import load

    torch.set_num_threads(1)
    promises = check_promises(lambda blocks: load(ref, blocks))
    for promise in promises:
        mark = "broken" if promise.broken else "kept  "
        console.print(f"{mark}  {promise.name:<18} {promise.meaning}", markup=False)
        for line in promise.broken:
            console.print(f"        {line}", markup=False)
    return [dataclasses.asdict(promise) for promise in promises]
