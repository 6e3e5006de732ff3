"""A log of numeric rows that survives kill -9: named float64 columns, flushed as they come.

File layout: one JSON header line {"columns": {name: unit, ...}, "meta": {...}}, then rows of
little-endian float64. Reading leaves out a row that was cut off at the end, so all that the writer
flushed can be read. Past `max_rows` further rows are dropped, counted in `overflow`, and a warning
is logged once.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from physis_core.types import UserError

Column = npt.NDArray[np.float64]
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTable:
    """A log as it was read: `columns[name]` is [rows], in `units[name]`."""

    columns: Mapping[str, Column]
    units: Mapping[str, str]
    meta: Mapping[str, Any]

    def __getitem__(self, name: str) -> Column:
        return self.columns[name]

    @property
    def rows(self) -> int:
        return next((int(c.size) for c in self.columns.values()), 0)


class RowLog:
    """Writer. Not thread-safe: one owner.

    Raises:
        UserError: where the path cannot be written.
    """

    def __init__(
        self,
        path: Path,
        columns: Mapping[str, str],
        *,
        meta: Mapping[str, Any] | None = None,
        max_rows: int = 2_000_000,
        flush_rows: int = 50,
    ) -> None:
        self._row = np.zeros(len(columns), dtype="<f8")
        self._path = path
        self._max_rows = max_rows
        self._flush_rows = flush_rows
        self._rows = 0
        self.overflow = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("wb")
        except OSError as error:
            raise UserError("record_path", str(path), error.strerror or str(error)) from error
        header = json.dumps({"columns": dict(columns), "meta": dict(meta or {})})
        self._file.write(header.encode() + b"\n")
        self._file.flush()

    def append(self, *values: float) -> None:
        """One value per column, in the order of the columns."""
        if self._rows >= self._max_rows:
            if not self.overflow:
                _LOG.warning("%s: full at %d rows; later rows are dropped", self._path, self._rows)
            self.overflow += 1
            return
        self._row[:] = values
        self._file.write(self._row.tobytes())
        self._rows += 1
        if self._rows % self._flush_rows == 0:
            self._file.flush()

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_rows(path: Path) -> RowTable:
    """Read a log, whole or cut short.

    Raises:
        UserError: no such file, or not a row log.
    """
    try:
        raw = path.read_bytes()
        header_bytes, body = raw.split(b"\n", 1)
        header = json.loads(header_bytes)
        units = {str(k): str(v) for k, v in header["columns"].items()}
    except OSError as error:
        raise UserError("log", str(path), error.strerror or str(error)) from error
    except (ValueError, KeyError, AttributeError) as error:
        raise UserError("log", str(path), "not a row log") from error
    width = 8 * len(units)
    whole = len(body) // width if width else 0
    table = np.frombuffer(body[: whole * width], dtype="<f8").reshape(whole, len(units))
    columns = {name: np.ascontiguousarray(table[:, i]) for i, name in enumerate(units)}
    return RowTable(columns=columns, units=units, meta=header.get("meta", {}))
