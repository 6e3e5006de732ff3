"""The model that a parameter names: a file or folder, a shipped checkpoint, or a model family."""

from __future__ import annotations

from pathlib import Path

from physis_core.files import read_file
from physis_core.model.registry import ModelRef, describe, find_model, registrations
from physis_core.types import UserError
from physis_ros.node.share import share_directories, share_directory

SUFFIX = ".safetensors"


def named_model(model: str) -> ModelRef:
    """A path, a name in `checkpoints/`, or a registered family that needs no file.

    Raises:
        UserError: it is none of these, or no family knows the file.
    """
    if not model:
        raise UserError("model", model, "name a file, a folder, a checkpoint or a model family")
    path = _path(model)
    if path is not None:
        return find_model(path)
    if model in registrations():
        return ModelRef(family=model)
    families = ", ".join(sorted(registrations()))
    raise UserError(
        "model",
        model,
        f"no such file; in checkpoints/: {_shipped_names()}; families: {families}",
    )


def configured_model() -> str:
    """What `config/engine_node.param.yaml` names: the model that a stack runs by default."""
    path = share_directory() / "config" / "engine_node.param.yaml"
    return str(read_file(path)["/**"]["ros__parameters"]["model"])


def trained_period_s(model: str) -> float:
    """The time between chunks that a model was trained for. UserError where it names none."""
    period_s = describe(named_model(model)).period_s
    if period_s is None:
        raise UserError("model", model, "names no period: set period_s")
    return period_s


def checkpoint_path(checkpoint: str) -> Path:
    """A path as it is, or the file of that name in `checkpoints/`.

    Raises:
        UserError: neither exists; the message names the checkpoints that are there.
    """
    path = _path(checkpoint)
    if path is None:
        raise UserError(
            "checkpoint", checkpoint, f"no such file; in checkpoints/: {_shipped_names()}"
        )
    return path


def shipped_models() -> list[Path]:
    """Every checkpoint that comes with the installation, by name."""
    found: dict[str, Path] = {}
    for share in share_directories():
        for path in (share / "checkpoints").glob(f"*{SUFFIX}"):
            found.setdefault(path.name, path.resolve())
    return [found[name] for name in sorted(found)]


def _path(name: str) -> Path | None:
    given = Path(name).expanduser()
    if given.exists():
        return given.resolve()
    if given.parent in (Path(), Path("checkpoints")):
        for path in shipped_models():
            if path.stem == given.stem:
                return path
    return None


def _shipped_names() -> str:
    return ", ".join(path.stem for path in shipped_models()) or "none"
