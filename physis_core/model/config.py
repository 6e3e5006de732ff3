"""Configurations of models: read from plain values, with the checks that all families share.

Imports no torch, so that a robot's host can read what a model says of itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from physis_core.types import UserError

Config = TypeVar("Config")


def build_config(kind: type[Config], values: Mapping[str, Any]) -> Config:
    """Make a configuration dataclass of plain values; ints pass for floats, lists for tuples.

    Raises:
        UserError: an unknown name, a missing one, or a value of the wrong type.
    """
    assert dataclasses.is_dataclass(kind)
    hints = get_type_hints(kind)
    names = [f.name for f in dataclasses.fields(kind) if f.init]
    checked = {}
    for name, value in values.items():
        if name not in names:
            raise UserError(name, value, f"unknown; one of {', '.join(names)}")
        checked[name] = _checked(name, value, hints[name])
    for f in dataclasses.fields(kind):
        required = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        if f.init and required and f.name not in checked:
            raise UserError(f.name, None, "is needed")
    built: Config = kind(**checked)
    return built


def check_window(window_chunks: int, sink_chunks: int) -> None:
    """Raises UserError unless 0 <= sink_chunks < window_chunks."""
    if window_chunks < 1:
        raise UserError("window_chunks", window_chunks, "must be at least 1")
    if not 0 <= sink_chunks < window_chunks:
        raise UserError(
            "sink_chunks", sink_chunks, f"must be in 0..{window_chunks - 1} (below window_chunks)"
        )


def check_schedule(steps: int, shift: float) -> None:
    """Raises UserError unless there is a step, and the shift is above 0."""
    if steps < 1:
        raise UserError("steps", steps, "must be at least 1")
    if not shift > 0:
        raise UserError("shift", shift, "must be above 0")


def split_pairs_3d(head_dim: int) -> tuple[int, int, int]:
    """Complex pairs for (frame, height, width): a third each, the rest to frame (128: 22/21/21)."""
    if head_dim < 6 or head_dim % 2:
        raise UserError("head_dim", head_dim, "3-D RoPE needs an even number of at least 6")
    side = head_dim // 6
    return head_dim // 2 - 2 * side, side, side


def _checked(name: str, value: Any, hint: Any) -> Any:
    origin = get_origin(hint)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise UserError(name, value, "must be a list")
        kinds = get_args(hint)
        if kinds[-1] is Ellipsis:
            kinds = (kinds[0],) * len(value)
        if len(kinds) != len(value):
            raise UserError(name, value, f"must have {len(kinds)} values")
        return tuple(_checked(name, v, k) for v, k in zip(value, kinds, strict=True))
    if origin is Literal:
        if value not in get_args(hint):
            raise UserError(name, value, f"one of {', '.join(map(str, get_args(hint)))}")
        return value
    if hint is float and type(value) is int:
        return float(value)
    if hint in (int, float, str, bool) and type(value) is not hint:
        raise UserError(name, value, f"must be of type {hint.__name__}")
    return value
