"""Messages as plain Python data, for logs."""

from __future__ import annotations

import array
from typing import Any

import numpy as np


def to_plain(value: Any) -> Any:
    """A message as dicts, lists, numbers and strings; numeric arrays become lists."""
    if hasattr(value, "get_fields_and_field_types"):
        return {name: to_plain(getattr(value, name)) for name in value.get_fields_and_field_types()}
    if isinstance(value, (np.ndarray, array.array)):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    return value
