"""Plain data from files and messages as typed values; every refusal is one line with the field's
whole path.

The types are msgspec structs or frozen dataclasses: their annotations are the checks. A
`__post_init__` may raise `UserError` with a field's name; it gets the path here.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, inspect

from physis_core.files import nearest
from physis_core.types import UserError

T = TypeVar("T")
Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]

_PLACE = re.compile(r"(?P<text>.*?)(?: - at (?P<key>`key` in )?`\$(?P<path>.*)`)?", re.DOTALL)
_STEP = re.compile(r"\.(\w+)|\[(\d+)\]|\[(\.\.\.)\]")
_MISSING = re.compile(r"Object missing required field `(\w+)`")


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A mapping in a file: no other fields than those of the struct are allowed."""


@functools.cache
def _type_info(kind: Any) -> inspect.Type:
    return inspect.type_info(kind)


def decode(values: object, kind: type[T], path: str = "") -> T:
    """`values` as `kind`. A field that is null counts as absent.

    Raises:
        UserError: names the first field that is unknown, missing or of a wrong value, below `path`.
    """
    hashable: Any = kind
    checked = _without_unknown(values, _type_info(hashable), path)
    try:
        return msgspec.convert(checked, kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise _refusal(error, checked, kind, path) from None


def _without_unknown(value: Any, node: inspect.Type | None, path: str) -> Any:
    """Refuses unknown fields and numbers that are not finite; leaves out null fields."""
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(path, value, "must be finite")
    if isinstance(value, list):
        return [
            _without_unknown(entry, _child(node, i), _joined(path, i))
            for i, entry in enumerate(value)
        ]
    if not isinstance(value, Mapping):
        return value
    known = _fields(node)
    for key, entry in value.items():
        if known is not None and key not in known:
            raise UserError(_joined(path, key), entry, f"unknown{nearest(str(key), known)}")
    return {
        key: _without_unknown(entry, _child(node, key), _joined(path, key))
        for key, entry in value.items()
        if known is None or entry is not None
    }


def _refusal(error: msgspec.ValidationError, values: Any, kind: Any, path: str) -> UserError:
    """In our words: msgspec names the place, the type there says what was expected."""
    place = _PLACE.fullmatch(str(error))
    assert place is not None
    node: inspect.Type | None = _type_info(kind)
    value: Any = values
    steps: list[Any] = []
    for name, index, _ in _STEP.findall(place["path"] or ""):
        # msgspec does not name the entry of a mapping.
        step = name or (int(index) if index else _culprit(values, steps, kind, str(error)))
        steps.append(step)
        node, value, path = _child(node, step), value[step], _joined(path, step)
    if isinstance(error.__cause__, UserError):
        cause = error.__cause__
        return UserError(_joined(path, cause.field), cause.value, cause.reason)
    missing = _MISSING.fullmatch(place["text"])
    if missing:
        return UserError(_joined(path, missing[1]), None, "is needed")
    if place["key"]:
        key = _culprit(values, steps, kind, str(error))
        kinds = [n for n in _alternatives(node) if isinstance(n, inspect.DictType)]
        return UserError(path, key, f"each key must be {_expected(kinds[0].key_type)}")
    return UserError(path, value, f"must be {_expected(node)}")


def _culprit(values: Any, steps: list[Any], kind: Any, text: str) -> Any:
    """The key of the mapping at `steps` whose entry alone gives the same error."""
    mapping = functools.reduce(lambda inside, step: inside[step], steps, values)
    for key in mapping:
        try:
            msgspec.convert(_with_only(values, steps, key), kind, str_keys=True)
        except msgspec.ValidationError as error:
            if str(error) == text:
                return key
    raise AssertionError(text)


def _with_only(values: Any, steps: list[Any], key: Any) -> Any:
    if not steps:
        return {key: values[key]}
    inside = _with_only(values[steps[0]], steps[1:], key)
    if isinstance(values, Mapping):
        return {**values, steps[0]: inside}
    return [inside if i == steps[0] else entry for i, entry in enumerate(values)]


def _alternatives(node: inspect.Type | None) -> tuple[inspect.Type, ...]:
    if isinstance(node, inspect.UnionType):
        return tuple(t for t in node.types if not isinstance(t, inspect.NoneType))
    return () if node is None else (node,)


def _fields(node: inspect.Type | None) -> dict[str, inspect.Type] | None:
    """The types of a struct's or dataclass's fields; None for anything else."""
    for one in _alternatives(node):
        if isinstance(one, (inspect.StructType, inspect.DataclassType)):
            return {field.encode_name: field.type for field in one.fields}
    return None


def _child(node: inspect.Type | None, step: Any) -> inspect.Type | None:
    for one in _alternatives(node):
        if isinstance(one, (inspect.StructType, inspect.DataclassType)):
            return (_fields(one) or {}).get(step)
        if isinstance(one, inspect.DictType):
            return one.value_type
        if isinstance(one, (inspect.ListType, inspect.VarTupleType)):
            return one.item_type
    return None


def _expected(node: inspect.Type | None) -> str:
    """What a value must be, such as `a number above 0`."""
    match node:
        case inspect.LiteralType():
            return f"one of {', '.join(map(str, node.values))}"
        case inspect.BoolType():
            return "true or false"
        case inspect.StrType():
            return "text"
        case inspect.IntType() | inspect.FloatType():
            kind = "a whole number" if isinstance(node, inspect.IntType) else "a number"
            bounds = (("above", node.gt), ("at least", node.ge), ("below", node.lt))
            texts = [f"{word} {bound:g}" for word, bound in bounds if bound is not None]
            texts += [] if node.le is None else [f"at most {node.le:g}"]
            return f"{kind} {' and '.join(texts)}".rstrip()
        case inspect.ListType() | inspect.VarTupleType():
            return "a list" + (" with at least one entry" if node.min_length else "")
        case inspect.UnionType():
            return " or ".join(map(_expected, _alternatives(node)))
        case _:
            return "a mapping of fields"


def _joined(path: str, step: Any) -> str:
    if isinstance(step, int):
        return f"{path}[{step}]"
    return f"{path}.{step}" if path else str(step)
