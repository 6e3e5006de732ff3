"""Values that a caller gives, looked at in the caller's own thread.

What is a number under another type becomes one where that is exact; arrays stay arrays. Everything
else is refused with its field, so that nothing reaches the engine's loop that no message can hold.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from physis_core.types import UserError

_INT64 = 2**63
_NUMBERS = "biufc"


def whole_number(field: str, value: object) -> int:
    """An int, also where it came as a numpy integer. Raises UserError for anything else."""
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return int(value)
    raise UserError(field, value, "must be a whole number")


def real_number(field: str, value: object) -> float:
    """A float, also where it came as an int or a numpy number. Raises UserError otherwise."""
    if isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool):
        return float(value)
    raise UserError(field, value, "must be a number")


def truth(field: str, value: object) -> bool:
    """True or false, also as numpy has them. Raises UserError for anything else."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise UserError(field, value, "must be true or false")


def checked_condition(condition: object) -> dict[str, Any]:
    """A stream's condition as messages can hold it. Arrays and tensors are copied into arrays.

    Raises:
        UserError: a value of another kind; it is named by its path.
    """
    if not isinstance(condition, Mapping):
        raise UserError("condition", condition, "must be a mapping of names to values")
    return {
        _name("condition", name): _sendable(f"condition.{name}", value)
        for name, value in condition.items()
    }


def _sendable(path: str, value: object) -> Any:
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (np.bool_, np.integer, np.floating)):
        value = value.item()
    if isinstance(value, int):
        if not -_INT64 <= value < _INT64:
            raise UserError(path, value, "must fit 64 bits")
        return value
    if isinstance(value, float):
        return value
    # Whoever gives a tensor has imported torch; the engine's own process may do without.
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        on_host = value.detach().cpu()
        # numpy has no bfloat16; every bfloat16 is a float32.
        value = (on_host.float() if on_host.dtype is torch.bfloat16 else on_host).numpy()
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in _NUMBERS:
            raise UserError(path, f"array of {value.dtype}", "must hold numbers")
        return np.array(value, order="C")
    if isinstance(value, Mapping):
        return {_name(path, name): _sendable(f"{path}.{name}", v) for name, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_sendable(f"{path}[{i}]", v) for i, v in enumerate(value)]
    raise UserError(path, value, f"cannot be sent to the workers (a {type(value).__name__})")


def _name(path: str, name: object) -> str:
    if isinstance(name, str):
        return name
    raise UserError(path, name, "names must be text")
