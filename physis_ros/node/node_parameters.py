"""A node's parameters, declared to ROS from the dataclass that describes them.

`NodeParameters(node, Limits)` declares each field with a descriptor and a range, takes overrides
from `-p` and parameter files, refuses what is not declared, and keeps `.value` current while
parameters are set at run time. A dataclass may check how its fields fit together in
`__post_init__` (raise UserError); a set request that fails there changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from rcl_interfaces.msg import (
    FloatingPointRange,
    IntegerRange,
    ParameterDescriptor,
    ParameterType,
    SetParametersResult,
)
from rclpy.node import Node
from rclpy.parameter import Parameter

from physis_core.types import UserError
from physis_ros.node.parameters import Declaration, declarations, resolve

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


def descriptor_of(declaration: Declaration) -> ParameterDescriptor:
    meta = declaration.meta
    unit = f" [{meta.unit}]" if meta.unit else ""
    limits = _bounds_text(meta.minimum, meta.maximum) if declaration.is_array else ""
    descriptor = ParameterDescriptor(
        name=declaration.name,
        description=f"{meta.description}{unit}{limits}",
        additional_constraints=(f"one of: {', '.join(meta.choices)}" if meta.choices else ""),
        read_only=not meta.runtime,
    )
    if not declaration.is_array and (meta.minimum is not None or meta.maximum is not None):
        low = -math.inf if meta.minimum is None else meta.minimum
        high = math.inf if meta.maximum is None else meta.maximum
        if declaration.element is float:
            descriptor.floating_point_range = [
                FloatingPointRange(from_value=float(low), to_value=float(high), step=0.0)
            ]
        elif declaration.element is int:
            descriptor.integer_range = [
                IntegerRange(
                    from_value=int(max(low, -(2**63))),
                    to_value=int(min(high, 2**63 - 1)),
                    step=1,
                )
            ]
    return descriptor


def _bounds_text(low: float | None, high: float | None) -> str:
    parts = []
    if low is not None:
        parts.append(f"each at least {low:g}")
    if high is not None:
        parts.append(f"each at most {high:g}")
    return f" ({', '.join(parts)})" if parts else ""


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
        descriptor = descriptor_of(declaration)
        plain = list(value) if declaration.is_array else value
        # rclpy takes every empty list for a byte array; the type is then held by `_check` alone.
        descriptor.dynamic_typing = declaration.is_array and not plain
        descriptor.type = (
            ParameterType.PARAMETER_NOT_SET
            if descriptor.dynamic_typing
            else (_ARRAYS if declaration.is_array else _SCALARS)[declaration.element].value
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
