"""A frozen dataclass is the one description of a node's parameters.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Limits:
        max_rate_hz: float = param(30.0, description="...", unit="Hz", minimum=0.1, maximum=1000.0)

Imports no ROS: a launcher checks values with it before it starts a node. A node declares the fields
with `NodeParameters` (physis_ros.node.node_parameters).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args, get_origin, get_type_hints

from physis_core.files import nearest
from physis_core.types import UserError

_ELEMENTS = (bool, int, float, str)


class _Required:
    def __repr__(self) -> str:
        return "required"


REQUIRED: Any = _Required()
"""Default of a parameter that a person must set."""


def param(
    default: Any,
    *,
    description: str,
    unit: str = "",
    minimum: float | None = None,
    maximum: float | None = None,
    choices: Sequence[str] = (),
    runtime: bool = False,
) -> Any:
    """A dataclass field that is a ROS parameter.

    `minimum` and `maximum` are inclusive; for an array they hold for each element. `runtime`
    parameters may be set while the node runs; the others are read-only.
    """
    metadata = {
        "param": _Meta(
            description=description,
            unit=unit,
            minimum=minimum,
            maximum=maximum,
            choices=tuple(choices),
            runtime=runtime,
        )
    }
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Meta:
    description: str
    unit: str
    minimum: float | None
    maximum: float | None
    choices: tuple[str, ...]
    runtime: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseParameters:
    """Parameters of every node; the dataclass of a node derives from this one."""

    autostart: bool = param(True, description="Configure and activate at start")
    clock_jump_s: float = param(
        1.0,
        description="A larger change of ROS time against steady time is a clock jump",
        unit="s",
        minimum=0.01,
        maximum=3600.0,
    )
    metrics_port: int = param(
        0,
        description="Port of the OpenMetrics endpoint on loopback, one for each node; 0: none",
        minimum=0,
        maximum=65535,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """One declared parameter: its dotted name, its element type and what it may be."""

    name: str
    element: type
    is_array: bool
    default: Any
    meta: _Meta

    def check(self, value: Any) -> Any:
        """The value as the dataclass holds it (tuples for arrays; an integer passes for a float;
        None for an empty array, which ROS reads without a type).

        Raises:
            UserError: naming the parameter, the value, and what would have been allowed.
        """
        if not self.is_array:
            return self._check_element(value)
        if value is None:
            return ()
        if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
            raise UserError(self.name, value, f"must be a list of {self.element.__name__}")
        return tuple(self._check_element(element) for element in value)

    def _check_element(self, value: Any) -> Any:
        meta = self.meta
        if self.element is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if type(value) is not self.element:
            raise UserError(
                self.name, value, f"must be {self.element.__name__}, not {type(value).__name__}"
            )
        if type(value) is int and not -(2**63) <= value < 2**63:
            raise UserError(self.name, value, "must fit in 64 bits")
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(self.name, value, "must be finite")
        unit = f" {meta.unit}" if meta.unit else ""
        number = value if isinstance(value, (int, float)) else math.nan
        if meta.minimum is not None and number < meta.minimum:
            raise UserError(self.name, value, f"must be at least {meta.minimum:g}{unit}")
        if meta.maximum is not None and number > meta.maximum:
            raise UserError(self.name, value, f"must be at most {meta.maximum:g}{unit}")
        if meta.choices and value not in meta.choices:
            raise UserError(self.name, value, f"must be one of {', '.join(meta.choices)}")
        return value


def declarations(parameters: type[Any]) -> tuple[Declaration, ...]:
    """The parameters that a dataclass describes."""
    hints = get_type_hints(parameters)
    found: list[Declaration] = []
    for field in dataclasses.fields(parameters):
        hint = hints[field.name]
        element, is_array = hint, False
        if get_origin(hint) is tuple:
            element, is_array = get_args(hint)[0], True
        if element not in _ELEMENTS or "param" not in field.metadata:
            raise TypeError(f"{parameters.__name__}.{field.name} is not a parameter field")
        found.append(
            Declaration(
                name=field.name,
                element=element,
                is_array=is_array,
                default=field.default,
                meta=field.metadata["param"],
            )
        )
    return tuple(found)


def resolve(parameters: type[Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Defaults and overrides, checked one by one; unknown names are refused.

    Raises:
        UserError: an unknown name (with the nearest valid one), a value that does not fit, or a
            required parameter that nobody set.
    """
    known = {declaration.name: declaration for declaration in declarations(parameters)}
    for name, value in overrides.items():
        if name not in known:
            raise UserError(name, value, f"no such parameter{nearest(name, known)}")
    values: dict[str, Any] = {}
    for name, declaration in known.items():
        given = overrides.get(name, declaration.default)
        if given is REQUIRED:
            raise UserError(name, None, f"must be set ({declaration.meta.description})")
        values[name] = declaration.check(given)
    return values
