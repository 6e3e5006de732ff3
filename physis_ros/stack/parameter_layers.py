"""The one order in which a node's parameters are set, for `physis up` and for `ros2 launch`.

    built-in < robot < stack < params file < command line

built-in: the node's declaration, then `config/NODE.param.yaml`. robot: its limits file. stack: the
overrides in the stack's file. params file: those that a person names, in their order. command line:
the choices of options.py, `set` last. Each value is checked against the node's declaration, with
its layer, before any process starts.

A params file has the form of ROS. A section applies to a node by its name: `safety_node` in any
namespace, `left/safety_node` in a namespace `left`, `/left/safety_node` there only; `*` stands for
one name and `**` for any number of them. In one file a name wins over a pattern with `*`.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from physis_core.files import nearest, read_file
from physis_core.types import UserError
from physis_ros.node.parameters import REQUIRED, Declaration, declarations, param
from physis_ros.stack.description import NODE_PARAMETERS

Origin = Literal["built-in", "robot", "stack", "params file", "command line"]
_DEEPEST = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Values from one place. `shared`: they are for several nodes, and each takes what it knows."""

    origin: Origin
    where: str
    values: Mapping[str, Any]
    shared: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The value of a parameter, and what set it; `where`: the file, choice or stack."""

    value: Any
    origin: Origin
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """What a params file says for the nodes that fit `pattern`."""

    pattern: str
    values: Mapping[str, Any]
    path: Path

    @property
    def wild(self) -> bool:
        return "*" in self.pattern

    @property
    def where(self) -> str:
        return f"{self.path}: {self.pattern}"

    def fits(self, node: str) -> bool:
        """`node`: its full name, such as /left/safety_node."""
        absolute = self.pattern if self.pattern.startswith("/") else f"/**/{self.pattern}"
        tokens = [token for token in absolute.split("/") if token]
        expression = "".join(
            r"(/[^/]+)*" if token == "**" else "/" + re.escape(token).replace(r"\*", "[^/]*")
            for token in tokens
        )
        return re.fullmatch(expression, node) is not None

    @property
    def layer(self) -> Layer:
        return Layer(origin="params file", where=self.where, values=self.values, shared=self.wild)


@dataclass(frozen=True, slots=True, kw_only=True)
class _RosParameters:
    """What rclpy declares for every node."""

    use_sim_time: bool = param(False, description="Take ROS time from /clock")
    start_type_description_service: bool = param(True, description="Serve type descriptions")


OF_ROS = frozenset(field.name for field in dataclasses.fields(_RosParameters))
"""The parameters that every ROS node has, beside those that ours declare."""


@functools.cache
def declared(node: str) -> Mapping[str, Declaration]:
    """The parameters of a node of ours, by name; empty where its package is not installed."""
    module, _, name = NODE_PARAMETERS[node].partition(":")
    if importlib.util.find_spec(module.partition(".")[0]) is None:
        return {}
    kind = getattr(importlib.import_module(module), name)
    return {d.name: d for d in (*declarations(_RosParameters), *declarations(kind))}


def merge(node: str, label: str, layers: Iterable[Layer]) -> dict[str, Setting]:
    """The settings of one node: of each parameter that of the last layer that names it.

    Raises:
        UserError: an unknown parameter, a value that does not fit, or a parameter that must be set
            and is not; the line names node, parameter, value and layer.
    """
    settings = {
        name: Setting(value=declaration.default, origin="built-in", where="default")
        for name, declaration in declared(node).items()
    }
    for layer in layers:
        settings.update(checked(node, label, layer))
    for name, setting in settings.items():
        if setting.value is REQUIRED:
            raise UserError(f"{label}.{name}", None, "must be set")
    return settings


def checked(node: str, label: str, layer: Layer) -> dict[str, Setting]:
    """What one layer sets. UserError as `merge`."""
    known = declared(node)
    settings: dict[str, Setting] = {}
    for name, value in layer.values.items():
        declaration = known.get(name)
        if declaration is None and layer.shared:
            continue
        if declaration is None:
            reason = f"no such parameter{nearest(name, known)}"
            raise UserError(f"{label}.{name}", value, f"{reason} ({layer.where})")
        try:
            fitting = declaration.check(value)
        except UserError as error:
            reason = f"{error.reason} ({layer.where})"
            raise UserError(f"{label}.{name}", error.value, reason) from None
        settings[name] = Setting(value=fitting, origin=layer.origin, where=layer.where)
    return settings


def file_layers(files: Sequence[Sequence[Section]], node: str) -> list[Layer]:
    """The sections for one node, the strongest last. `node`: its full name."""
    found: list[Layer] = []
    for sections in files:
        fitting = [section for section in sections if section.fits(node)]
        # A name is stronger than a pattern, a full name stronger than a part of it.
        fitting.sort(key=lambda s: 0 if s.wild else 2 if s.pattern.startswith("/") else 1)
        found += [section.layer for section in fitting]
    return found


def read_sections(path: Path) -> tuple[Section, ...]:
    """The sections of a params file.

    Raises:
        UserError: it cannot be read, or has not the form of ROS.
    """
    data = read_file(path, "params_file")
    if not isinstance(data, Mapping) or not data:
        raise UserError("params_file", str(path), "must map node names to ros__parameters")
    return tuple(_sections(path, data))


def check_shared(section: Section) -> None:
    """Refuse a name in a section for many nodes that none of our nodes has.

    Raises:
        UserError: naming the file, the section and the parameter.
    """
    known = {name for node in NODE_PARAMETERS for name in declared(node)}
    for name, value in section.values.items():
        if name not in known and not name.startswith("qos_overrides."):
            raise UserError(
                name, value, f"no such parameter{nearest(name, known)} ({section.where})"
            )


def unused(files: Sequence[Sequence[Section]], nodes: Sequence[str]) -> dict[str, list[str]]:
    """By file: the sections that fit none of the nodes. A shared file may hold others' sections."""
    found: dict[str, list[str]] = {}
    for section in (section for sections in files for section in sections):
        if not any(section.fits(node) for node in nodes):
            found.setdefault(str(section.path), []).append(section.pattern)
    return found


def _sections(path: Path, data: Mapping[Any, Any], prefix: str = "", depth: int = 0) -> Any:
    for key, body in data.items():
        name = f"{prefix}{key}"
        if not isinstance(key, str) or not isinstance(body, Mapping):
            raise UserError("params_file", f"{path}: {name}", "must be a mapping")
        if depth > _DEEPEST:
            raise UserError("params_file", str(path), "is nested too deeply")
        if "ros__parameters" in body:
            values = body["ros__parameters"]
            if values is None or values == {}:
                values = {}
            if not isinstance(values, Mapping):
                raise UserError(
                    "params_file", f"{path}: {name}.ros__parameters", "must be a mapping"
                )
            yield Section(pattern=name, values=dict(_flat(path, values)), path=path)
            body = {k: v for k, v in body.items() if k != "ros__parameters"}
        elif not any(isinstance(value, Mapping) for value in body.values()):
            raise UserError("params_file", f"{path}: {name}", "must hold a mapping ros__parameters")
        yield from _sections(path, body, prefix=f"{name}/", depth=depth + 1)


def _flat(path: Path, values: Mapping[Any, Any], prefix: str = "", depth: int = 0) -> Any:
    """`a: {b: 1}` is the parameter a.b."""
    if depth > _DEEPEST:
        raise UserError("params_file", str(path), "is nested too deeply")
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(path, value, prefix=f"{prefix}{key}.", depth=depth + 1)
        else:
            yield f"{prefix}{key}", value


def table(settings: Mapping[str, Mapping[str, Setting]]) -> list[str]:
    """Lines of text: of each node every parameter, its value, and what set it."""
    lines: list[str] = []
    for label, found in settings.items():
        rows = [(name, _shown(s.value), s.origin, s.where) for name, s in sorted(found.items())]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines += ["", label] if lines else [label]
        for row in rows:
            cells = (f"{cell:<{width}}" for cell, width in zip(row, widths))
            lines.append(f"  {'  '.join(cells)}  {row[3]}")
    return lines


def as_data(settings: Mapping[str, Mapping[str, Setting]]) -> dict[str, Any]:
    """The same for a file of results."""
    return {
        label: {name: dataclasses.asdict(setting) for name, setting in found.items()}
        for label, found in settings.items()
    }


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if value != "" else "''"
