"""Which model to run, as plain data that crosses process borders, and the model made from it.

A worker gets a `ModelRef` as JSON and builds only the blocks that it owns.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import torch

from physis_core.model.protocol import ModelSpec, StagedModel
from physis_core.types import UserError

ModelKind = Literal["tiny", "tiny_world", "synthetic", "wan"]

Config = TypeVar("Config")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRef:
    """`config` holds the fields of the kind's configuration class, as JSON would carry them.

    `checkpoint` is a file or folder of weights; None means the kind's own (random) weights where it
    has any.
    """

    kind: ModelKind
    config: Mapping[str, Any] = field(default_factory=dict)
    checkpoint: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(ModelKind):
            raise UserError("model.kind", self.kind, f"one of {', '.join(get_args(ModelKind))}")
        if not isinstance(self.config, Mapping):
            raise UserError("model.config", self.config, "must be a mapping of names to values")
        if self.checkpoint is not None:
            if not isinstance(self.checkpoint, str):
                raise UserError("model.checkpoint", self.checkpoint, "must be a path")
            if not Path(self.checkpoint).exists():
                raise UserError("model.checkpoint", self.checkpoint, "there is no such file")

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> ModelRef:
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise UserError("model", text, f"is not JSON ({error.msg})") from None
        return cls.from_mapping(values)

    @classmethod
    def from_mapping(cls, values: Any) -> ModelRef:
        """From a parsed JSON or YAML mapping with the keys kind, config, checkpoint."""
        if not isinstance(values, Mapping):
            raise UserError("model", values, "must be a mapping with `kind`")
        known = [f.name for f in dataclasses.fields(cls)]
        for name in values:
            if name not in known:
                raise UserError(f"model.{name}", values[name], f"one of {', '.join(known)}")
        if "kind" not in values:
            raise UserError("model.kind", None, f"one of {', '.join(get_args(ModelKind))}")
        return cls(**values)


def load(
    ref: ModelRef, blocks: Iterable[int] | None = None, device: torch.device | str = "cpu"
) -> StagedModel:
    """Build the model with only these blocks (None: all of them).

    Raises:
        UserError: a configuration value, the checkpoint, or the device does not fit.
    """
    device = checked_device(device)
    if ref.kind == "synthetic":
        from physis_core.model.synthetic import SyntheticConfig, SyntheticModel

        _refuse_checkpoint(ref)
        return SyntheticModel(build_config(SyntheticConfig, ref.config), blocks, device)
    if ref.kind == "tiny":
        from physis_core.model.tiny.loading import load_tiny

        return load_tiny(ref.config, ref.checkpoint, blocks, device)
    if ref.kind == "tiny_world":
        from physis_core.model.tiny.world_file import load_world

        return load_world(ref.config, ref.checkpoint, blocks, device)
    from physis_core.model.wan.loading import load_wan

    return load_wan(ref.config, ref.checkpoint, blocks, device)


def load_spec(ref: ModelRef) -> ModelSpec:
    """What the engine and the planner must know, without weights in memory."""
    if ref.kind == "synthetic":
        from physis_core.model.synthetic import SyntheticConfig, synthetic_spec

        _refuse_checkpoint(ref)
        return synthetic_spec(build_config(SyntheticConfig, ref.config))
    if ref.kind == "tiny":
        from physis_core.model.tiny.loading import load_tiny_spec

        return load_tiny_spec(ref.config, ref.checkpoint)
    if ref.kind == "tiny_world":
        from physis_core.model.tiny.world_file import load_world_spec

        return load_world_spec(ref.config, ref.checkpoint)
    from physis_core.model.wan.loading import load_wan_spec

    return load_wan_spec(ref.config, ref.checkpoint)


def build_config(kind: type[Config], values: Mapping[str, Any]) -> Config:
    """A configuration dataclass from plain values; ints pass for floats, lists for tuples.

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


def checked_device(name: torch.device | str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError("device", str(name), "not a device that torch knows") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise UserError("device", str(name), f"this machine has {count} CUDA devices")
    return device


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


def _refuse_checkpoint(ref: ModelRef) -> None:
    if ref.checkpoint is not None:
        raise UserError("model.checkpoint", ref.checkpoint, f"a {ref.kind} model has no weights")
