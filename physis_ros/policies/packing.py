"""msgpack with numpy arrays, as openpi's client and server write it. No pickle, no object arrays.

Source of the format: Physical Intelligence, openpi, `packages/openpi-client`. vLLM's older markers
(`nd`, `type`, `kind`) are read as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from physis_core.types import UserError

_REFUSED_KINDS = "OVcmM"
_DEEPEST = 16


def packed(value: Any) -> bytes:
    """Raises NotImplementedError where a type has no place on this wire."""
    return msgspec.msgpack.encode(value, enc_hook=_as_map)


def unpacked(data: bytes) -> Any:
    """Plain data with numpy arrays, which are views of `data`.

    Raises:
        UserError: it is no msgpack, or an array does not fit its shape.
    """
    try:
        return _with_arrays(msgspec.msgpack.decode(data), 0)
    except (msgspec.DecodeError, TypeError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError("message", f"{len(data)} bytes", f"is no msgpack: {error}") from None


def _as_map(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in _REFUSED_KINDS:
        raise NotImplementedError(f"dtype {value.dtype} has no place on this wire")
    if isinstance(value, np.ndarray):
        return {
            b"__ndarray__": True,
            b"data": value.tobytes(),
            b"dtype": value.dtype.str,
            b"shape": value.shape,
        }
    if isinstance(value, np.generic):
        return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}
    raise NotImplementedError(f"{type(value).__name__} has no place on this wire")


def _with_arrays(value: Any, depth: int) -> Any:
    if depth > _DEEPEST:
        raise UserError("message", f"{depth} mappings", "is nested too deeply")
    if isinstance(value, list):
        return [_with_arrays(one, depth + 1) for one in value]
    if not isinstance(value, dict):
        return value
    if _mark(value, "__ndarray__"):
        return _array(value, "dtype")
    if _mark(value, "__npgeneric__"):
        return _dtype(_mark(value, "dtype")).type(_mark(value, "data"))
    if {"nd", "type", "data"} <= {_text(key) for key in value if isinstance(key, (str, bytes))}:
        array = _array(value, "type")
        return array if _mark(value, "nd") else array.reshape(-1)[0]
    return {key: _with_arrays(one, depth + 1) for key, one in value.items()}


def _array(value: Mapping[Any, Any], dtype: str) -> Any:
    shape = _mark(value, "shape")
    array = np.frombuffer(_mark(value, "data"), dtype=_dtype(_mark(value, dtype)))
    return array if shape is None else array.reshape(tuple(shape))


def _dtype(name: Any) -> np.dtype[Any]:
    dtype = np.dtype(_text(name))
    if dtype.kind in _REFUSED_KINDS:
        raise UserError("dtype", str(dtype), "has no place on this wire")
    return dtype


def _mark(value: Mapping[Any, Any], name: str) -> Any:
    return value.get(name.encode(), value.get(name))


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
