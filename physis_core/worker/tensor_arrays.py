"""Tensors as named arrays for a message, and back: also those whose type numpy does not know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from physis_core.types import Array

_STAND_IN = {torch.bfloat16: torch.int16}
"""Sent as their bits under a type of the same size; the name then says what they are."""
_SEPARATOR = "|"


def to_arrays(tensors: Mapping[str, Tensor]) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    for name, tensor in tensors.items():
        on_host = tensor.detach().cpu()
        other = _STAND_IN.get(on_host.dtype)
        if other is None:
            arrays[name] = on_host.numpy()
        else:
            key = f"{name}{_SEPARATOR}{str(on_host.dtype).removeprefix('torch.')}"
            arrays[key] = on_host.contiguous().view(other).numpy()
    return arrays


def to_tensors(arrays: Mapping[str, Array]) -> dict[str, Tensor]:
    """Copies, on the host: the arrays of a message are read-only."""
    tensors: dict[str, Tensor] = {}
    for key, array in arrays.items():
        name, _, dtype = key.partition(_SEPARATOR)
        tensor = torch.from_numpy(array.copy())
        tensors[name] = tensor.view(getattr(torch, dtype)) if dtype else tensor
    return tensors


def payload_arrays(payload: Sequence[Tensor]) -> dict[str, Array]:
    """The parts of a payload, named by their numbers."""
    return to_arrays({str(i): part for i, part in enumerate(payload)})


def payload_tensors(arrays: Mapping[str, Array]) -> tuple[Tensor, ...]:
    made = to_tensors(arrays)
    return tuple(made[str(i)] for i in range(len(made)))
