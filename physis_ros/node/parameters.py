"""A frozen dataclass is the one description of a node's parameters.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Limits:
        max_rate_hz: float = param(30.0, description="...", unit="Hz", minimum=0.1, maximum=1000.0)

`NodeParameters(node, Limits)` declares each field with a descriptor and a range, takes overrides
from `-p` and parameter files, refuses what is not declared, and keeps `.value` current while
parameters are set at run time. A dataclass may check how its fields fit together in
`__post_init__` (raise UserError); a set request that fails there changes nothing.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, get_args, get_origin, get_type_hints

from rcl_interfaces.msg import (
    FloatingPointRange,
    IntegerRange,
    ParameterDescriptor,
    ParameterType,
    SetParametersResult,
)
from rclpy.node import Node
from rclpy.parameter import Parameter

from physis_core.files import nearest
from physis_core.types import UserError

T = TypeVar("T")

_SCALARS: dict[type, Parameter.Type] = {
    bool: Parameter.Type.BOOL,
    int: Parameter.Type.INTEGER,
    float: Parameter.Type.DOUBLE,
    str: Parameter.Type.STRING,
}
_ARRAYS: dict[type, Parameter.Type] = {
    bool: Parameter.Type.BOOL_ARRAY,
    int: Parameter.Type.INTEGER_ARRAY,
    float: Parameter.Type.DOUBLE_ARRAY,
    str: Parameter.Type.STRING_ARRAY,
}
_RESERVED_PREFIXES = ("qos_overrides.",)


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
class Declaration:
    """One declared parameter: its dotted name, its element type and what it may be."""

    name: str
    element: type
    is_array: bool
    default: Any
    meta: _Meta

    @property
    def ros_type(self) -> Parameter.Type:
        return (_ARRAYS if self.is_array else _SCALARS)[self.element]

    def check(self, value: Any) -> Any:
        """The value as the dataclass holds it (tuples for arrays; an integer passes for a float).

        Raises:
            UserError: naming the parameter, the value, and what would have been allowed.
        """
        if not self.is_array:
            return self._check_element(value)
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

    def descriptor(self) -> ParameterDescriptor:
        meta = self.meta
        unit = f" [{meta.unit}]" if meta.unit else ""
        limits = _bounds_text(meta) if self.is_array else ""
        descriptor = ParameterDescriptor(
            name=self.name,
            description=f"{meta.description}{unit}{limits}",
            additional_constraints=(f"one of: {', '.join(meta.choices)}" if meta.choices else ""),
            read_only=not meta.runtime,
        )
        if not self.is_array and (meta.minimum is not None or meta.maximum is not None):
            low = -math.inf if meta.minimum is None else meta.minimum
            high = math.inf if meta.maximum is None else meta.maximum
            if self.element is float:
                descriptor.floating_point_range = [
                    FloatingPointRange(from_value=float(low), to_value=float(high), step=0.0)
                ]
            elif self.element is int:
                descriptor.integer_range = [
                    IntegerRange(
                        from_value=int(max(low, -(2**63))),
                        to_value=int(min(high, 2**63 - 1)),
                        step=1,
                    )
                ]
        return descriptor


def _bounds_text(meta: _Meta) -> str:
    parts = []
    if meta.minimum is not None:
        parts.append(f"each at least {meta.minimum:g}")
    if meta.maximum is not None:
        parts.append(f"each at most {meta.maximum:g}")
    return f" ({', '.join(parts)})" if parts else ""


def declarations(parameters: type[Any]) -> tuple[Declaration, ...]:
    """The parameters that a dataclass describes."""
    hints = get_type_hints(parameters)
    found: list[Declaration] = []
    for field in dataclasses.fields(parameters):
        hint = hints[field.name]
        element, is_array = hint, False
        if get_origin(hint) is tuple:
            element, is_array = get_args(hint)[0], True
        if element not in _SCALARS or "param" not in field.metadata:
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
        if given is None and declaration.is_array:
            given = ()  # an empty YAML list arrives without a type
        values[name] = declaration.check(given)
    return values


class NodeParameters(Generic[T]):
    """A node's declared parameters; `.value` is always the dataclass now in force.

    `on_change(new)` runs after a set request was accepted. It may raise UserError only where
    `validate(new)` could not have known; `validate` may refuse with UserError.
    """

    def __init__(
        self,
        node: Node,
        parameters: type[T],
        *,
        validate: Callable[[T], None] | None = None,
        on_change: Callable[[T], None] | None = None,
    ) -> None:
        self._type = parameters
        self._validate = validate
        self._on_change = on_change
        self._declarations = {d.name: d for d in declarations(parameters)}
        own = set(_declared_names(node))
        overrides = {
            name: parameter.value
            for name, parameter in node._parameter_overrides.items()
            if name not in own and not name.startswith(_RESERVED_PREFIXES)
        }
        self._values = resolve(parameters, overrides)
        self.value: T = parameters(**self._values)
        if validate is not None:
            validate(self.value)
        for name, declaration in self._declarations.items():
            self._declare(node, declaration, self._values[name])
        node.add_pre_set_parameters_callback(self._coerce)
        node.add_on_set_parameters_callback(self._check)
        node.add_post_set_parameters_callback(self._apply)

    def _declare(self, node: Node, declaration: Declaration, value: Any) -> None:
        descriptor = declaration.descriptor()
        plain = list(value) if declaration.is_array else value
        # rclpy takes every empty list for a byte array; the type is then held by `_check` alone.
        descriptor.dynamic_typing = declaration.is_array and not plain
        descriptor.type = (
            ParameterType.PARAMETER_NOT_SET
            if descriptor.dynamic_typing
            else declaration.ros_type.value
        )
        node.declare_parameter(declaration.name, plain, descriptor, ignore_override=True)

    def _coerce(self, requested: list[Parameter[Any]]) -> list[Parameter[Any]]:
        """`ros2 param set node x 1` sends an integer, also where x is a float."""
        result = []
        for parameter in requested:
            declaration = self._declarations.get(parameter.name)
            if declaration is not None and declaration.element is float:
                value = parameter.value
                if parameter.type_ == Parameter.Type.INTEGER and not declaration.is_array:
                    parameter = Parameter(parameter.name, Parameter.Type.DOUBLE, float(value))
                elif parameter.type_ == Parameter.Type.INTEGER_ARRAY and declaration.is_array:
                    parameter = Parameter(
                        parameter.name, Parameter.Type.DOUBLE_ARRAY, [float(v) for v in value]
                    )
            result.append(parameter)
        return result

    def _changed(self, requested: Sequence[Parameter[Any]]) -> dict[str, Any]:
        values = dict(self._values)
        for parameter in requested:
            declaration = self._declarations.get(parameter.name)
            if declaration is None:
                continue
            if not declaration.meta.runtime:
                raise UserError(
                    parameter.name, parameter.value, "may not change while the node runs"
                )
            values[parameter.name] = declaration.check(parameter.value)
        return values

    def _check(self, requested: list[Parameter[Any]]) -> SetParametersResult:
        try:
            candidate = self._type(**self._changed(requested))
            if self._validate is not None:
                self._validate(candidate)
        except UserError as error:
            return SetParametersResult(successful=False, reason=str(error))
        return SetParametersResult(successful=True)

    def _apply(self, accepted: list[Parameter[Any]]) -> None:
        if not any(parameter.name in self._declarations for parameter in accepted):
            return
        self._values = self._changed(accepted)
        self.value = self._type(**self._values)
        if self._on_change is not None:
            self._on_change(self.value)


def _declared_names(node: Node) -> list[str]:
    return list(node.get_parameters_by_prefix(""))
