"""Reading plain data from YAML or JSON: every refusal names the field by its whole path."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from physis_core import files
from physis_core.types import UserError

_NEEDED: Any = object()
T = TypeVar("T")


def read_file(path: Path) -> Fields:
    """A YAML or JSON file whose top is a mapping.

    Raises UserError naming the file where it cannot be read, or is not such a file.
    """
    values = files.read_file(path)
    if not isinstance(values, Mapping):
        raise UserError("file", str(path), "must hold a mapping of fields")
    return Fields(values, "")


class Fields:
    """A mapping that is read field by field; `only` refuses what nobody knows."""

    def __init__(self, values: Mapping[str, Any], path: str) -> None:
        self._values = values
        self._path = path

    def name(self, field: str) -> str:
        return f"{self._path}.{field}" if self._path else field

    def only(self, *known: str) -> Fields:
        """Itself, if it has none but these fields. Called first: a misspelt field would otherwise
        be told as a missing one.
        """
        for field in self._values:
            if field not in known:
                raise UserError(
                    self.name(str(field)),
                    self._values[field],
                    f"unknown; known: {', '.join(sorted(known))}",
                )
        return self

    @contextmanager
    def naming(self) -> Iterator[None]:
        """What is made here of the fields names them without their path: put that before it."""
        try:
            yield
        except UserError as error:
            raise UserError(self.name(error.field), error.value, error.reason) from None

    def __contains__(self, field: str) -> bool:
        return self._values.get(field) is not None

    def raw(self, field: str, default: Any = _NEEDED) -> Any:
        value = self._values.get(field)
        if value is None:
            if default is _NEEDED:
                raise UserError(self.name(field), None, "is needed")
            return default
        return value

    def number(
        self,
        field: str,
        default: Any = _NEEDED,
        *,
        above: float = -math.inf,
        least: float = -math.inf,
        most: float = math.inf,
    ) -> float:
        value = self.raw(field, default)
        if field not in self:
            return value  # type: ignore[no-any-return]
        if isinstance(value, str):
            # YAML reads 1e9 as text; 1.0e+9 is meant.
            try:
                value = float(value)
            except ValueError:
                raise UserError(self.name(field), value, "must be a number") from None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise UserError(self.name(field), value, "must be a number")
        if not math.isfinite(value):
            raise UserError(self.name(field), value, "must be finite")
        if value <= above:
            raise UserError(self.name(field), value, f"must be above {above:g}")
        if value < least:
            raise UserError(self.name(field), value, f"must be at least {least:g}")
        if value > most:
            raise UserError(self.name(field), value, f"must be at most {most:g}")
        return float(value)

    def integer(
        self, field: str, default: Any = _NEEDED, *, least: int = 0, most: int = 2**53
    ) -> int:
        value = self.raw(field, default)
        if field not in self:
            return value  # type: ignore[no-any-return]
        if isinstance(value, bool) or not isinstance(value, int):
            raise UserError(self.name(field), value, "must be a whole number")
        if not least <= value <= most:
            raise UserError(self.name(field), value, f"must be between {least} and {most}")
        return value

    def text(self, field: str, default: Any = _NEEDED, *, choices: Sequence[str] = ()) -> str:
        value = self.raw(field, default)
        if field not in self:
            return value  # type: ignore[no-any-return]
        if not isinstance(value, str):
            raise UserError(self.name(field), value, "must be text")
        if choices and value not in choices:
            raise UserError(self.name(field), value, f"one of {', '.join(choices)}")
        return value

    def boolean(self, field: str, default: Any = _NEEDED) -> bool:
        value = self.raw(field, default)
        if not isinstance(value, bool):
            raise UserError(self.name(field), value, "must be true or false")
        return value

    def fields(self, field: str) -> Fields:
        """A nested mapping; an empty one where the field is missing."""
        value = self.raw(field, {})
        if not isinstance(value, Mapping):
            raise UserError(self.name(field), value, "must be a mapping of fields")
        return Fields(value, self.name(field))

    def listed(self, field: str, default: Any = _NEEDED) -> list[Any]:
        value = self.raw(field, default)
        if not isinstance(value, list):
            raise UserError(self.name(field), value, "must be a list")
        return value

    def each(self, field: str, default: Any = _NEEDED) -> list[Fields]:
        """A list of mappings."""
        out = []
        for i, value in enumerate(self.listed(field, default)):
            path = f"{self.name(field)}[{i}]"
            if not isinstance(value, Mapping):
                raise UserError(path, value, "must be a mapping of fields")
            out.append(Fields(value, path))
        return out

    def named(self, field: str) -> dict[str, Fields]:
        """A mapping of names to mappings."""
        nested = self.fields(field)
        out = {}
        for key in nested._values:
            value = nested.raw(key)
            path = nested.name(str(key))
            if not isinstance(value, Mapping):
                raise UserError(path, value, "must be a mapping of fields")
            out[str(key)] = Fields(value, path)
        return out
