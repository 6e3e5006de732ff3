"""Model families by name, and the model that a file, a folder or a name stands for.

This package registers its own families below. An installed package adds one by an entry point:

    [project.entry-points."physis.models"]
    my_family = "my_package.family:FAMILY"

`FAMILY` implements `ModelFamily`. Nothing above `physis_core.model` knows a family by its name.
Nothing here imports torch: a family's module must import it only inside `read_spec` and `load`.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from physis_core.files import read_file
from physis_core.model.description import ModelDescription
from physis_core.types import Array, UserError

if TYPE_CHECKING:
    import torch

    from physis_core.model.protocol import ModelSpec, StagedModel

GROUP = "physis.models"
MANIFEST = "physis.json"
"""In a folder: {"family": name, "config": {...}, "checkpoint": path in the folder}."""
RUN_FILE = "physis.yaml"
"""In a downloaded folder: `family`, and what else the family reads there."""
BUILT_IN = {
    "synthetic": "physis_core.model.synthetic.family:FAMILY",
    "tiny": "physis_core.model.tiny.family:POLICY",
    "tiny_world": "physis_core.model.tiny.family:WORLD",
    "wan": "physis_core.model.wan.family:FAMILY",
}
FrameEncoder = Callable[[Array], Mapping[str, Array]]
"""A first frame uint8 [H, W, 3] -> the observation tensors that hold it, without a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRef:
    """Which model to run, as plain data that crosses process borders.

    `config` holds the fields of the family's configuration, as JSON would carry them. `checkpoint`
    is a file or folder of weights; None means the family's own (random) weights where it has any.
    """

    family: str
    config: Mapping[str, Any] = field(default_factory=dict)
    checkpoint: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.family, str) or self.family not in registrations():
            raise _unknown(self.family)
        if not isinstance(self.config, Mapping):
            raise UserError("model.config", self.config, "must be a mapping of names to values")
        if self.checkpoint is not None:
            if not isinstance(self.checkpoint, str):
                raise UserError("model.checkpoint", self.checkpoint, "must be a path")
            if not Path(self.checkpoint).exists():
                raise UserError("model.checkpoint", self.checkpoint, "there is no such file")

    @property
    def label(self) -> str:
        """The checkpoint's file name, or the family's name where there is none."""
        return self.family if self.checkpoint is None else Path(self.checkpoint).name

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
        """From a parsed JSON or YAML mapping with the keys family, config, checkpoint."""
        if not isinstance(values, Mapping):
            raise UserError("model", values, "must be a mapping with `family`")
        known = [f.name for f in dataclasses.fields(cls)]
        for name in values:
            if name not in known:
                raise UserError(f"model.{name}", values[name], f"one of {', '.join(known)}")
        if "family" not in values:
            raise _unknown(None)
        return cls(**values)


@runtime_checkable
class ModelFamily(Protocol):
    """A kind of model: how to recognise, describe and load it."""

    name: str

    def detect(self, path: Path) -> bool:
        """Whether this file or folder is a model of the family. Reads metadata, no weights."""
        ...

    def describe(self, ref: ModelRef) -> ModelDescription:
        """Raises UserError where configuration or checkpoint do not fit. Imports no torch."""
        ...

    def read_spec(self, ref: ModelRef) -> ModelSpec:
        """What the engine and the planner must know, without weights in memory."""
        ...

    def load(
        self, ref: ModelRef, *, blocks: Iterable[int] | None, device: torch.device
    ) -> StagedModel:
        """The model with only these blocks (None: all)."""
        ...

    def frame_encoder(self, ref: ModelRef) -> FrameEncoder:
        """Of a world model. UserError where the family takes no first frame."""
        ...


class ConditionEncoder(Protocol):
    """Turns what a user sets for a stream into what the devices take: a prompt into numbers."""

    def encoded(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """May take seconds, in any thread. Raises UserError where a value does not fit."""
        ...


@runtime_checkable
class EncodesConditions(Protocol):
    """What a family has besides where conditions are encoded once, before devices take them."""

    def condition_encoder(self, ref: ModelRef) -> ConditionEncoder: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """A family's name and who registers it; `source` is "built in" or an installed package."""

    name: str
    source: str
    entry: EntryPoint

    def load(self) -> ModelFamily:
        """Raises UserError, in one line that names the package, where it does not load."""
        try:
            loaded = self.entry.load()
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise UserError("model.family", self.name, f"{self.source}: {reason}") from error
        if not isinstance(loaded, ModelFamily) or loaded.name != self.name:
            raise UserError(
                "model.family",
                self.name,
                f"{self.source}: {self.entry.value} is no model family of this name",
            )
        return loaded


@functools.cache
def registrations() -> Mapping[str, tuple[Registration, ...]]:
    """By name; more than one for a name that several packages claim. Read once per process."""
    found: dict[str, tuple[Registration, ...]] = {}
    for name, value in BUILT_IN.items():
        entry = EntryPoint(name, value, GROUP)
        found[name] = (Registration(name=name, source="built in", entry=entry),)
    for entry in entry_points(group=GROUP):
        source = entry.value if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"
        new = Registration(name=entry.name, source=source, entry=entry)
        found[entry.name] = (*found.get(entry.name, ()), new)
    return found


def family(name: str) -> ModelFamily:
    """Raises UserError: no such family, registered twice, or it does not load."""
    found = registrations().get(name)
    if found is None:
        raise _unknown(name)
    if len(found) > 1:
        sources = " and ".join(registration.source for registration in found)
        raise UserError("model.family", name, f"is registered twice, by {sources}; remove one")
    return _loaded(found[0])


def families() -> tuple[dict[str, ModelFamily], list[str]]:
    """Those that load, by name, and one line for each that does not."""
    usable, problems = {}, []
    for name in sorted(registrations()):
        try:
            usable[name] = family(name)
        except UserError as error:
            problems.append(str(error))
    return usable, problems


def find_model(path: Path) -> ModelRef:
    """The model in a file, or in a folder.

    Raises:
        UserError: there is none, no family knows it, or several do.
    """
    if not path.exists():
        raise UserError("model", str(path), "there is no such file or folder")
    if (path / MANIFEST).is_file():
        return _from_manifest(path)
    if (path / RUN_FILE).is_file():
        values = read_file(path / RUN_FILE, "model")
        name = values.get("family") if isinstance(values, Mapping) else None
        if name is None:
            raise UserError("family", None, f"{path / RUN_FILE} must name the model's family")
        return ModelRef(family=name, checkpoint=str(path))
    usable, problems = families()
    claims = []
    for name, candidate in usable.items():
        try:
            if candidate.detect(path):
                claims.append(name)
        except Exception as error:  # noqa: BLE001  one family must not stop the others
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            problems.append(f"model.family: {name!r}: {reason}")
    for problem in problems:
        _warn_once(problem)
    if len(claims) == 1:
        return ModelRef(family=claims[0], checkpoint=str(path))
    if claims:
        raise UserError(
            "model", str(path), f"families {' and '.join(claims)} claim it; add {MANIFEST}"
        )
    raise UserError(
        "model",
        str(path),
        f"no family knows it ({', '.join(sorted(usable))}); a folder says what it is in {MANIFEST}",
    )


def describe(ref: ModelRef) -> ModelDescription:
    """What the model says of itself, without torch. UserError where it does not fit."""
    return family(ref.family).describe(ref)


def condition_encoder(ref: ModelRef) -> ConditionEncoder | None:
    """None where the devices take conditions as a user sets them."""
    found = family(ref.family)
    return found.condition_encoder(ref) if isinstance(found, EncodesConditions) else None


@functools.cache
def _loaded(registration: Registration) -> ModelFamily:
    return registration.load()


@functools.cache
def _warn_once(problem: str) -> None:
    logging.getLogger(__name__).warning(problem)


def _from_manifest(folder: Path) -> ModelRef:
    file = folder / MANIFEST
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError("model", str(file), f"cannot be read ({error})") from error
    ref = values.get("checkpoint") if isinstance(values, Mapping) else None
    if isinstance(ref, str):
        values = {**values, "checkpoint": str(folder / ref)}
    return ModelRef.from_mapping(values)


def _unknown(name: object) -> UserError:
    return UserError("model.family", name, f"one of {', '.join(sorted(registrations()))}")
