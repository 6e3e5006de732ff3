"""Read single tensors out of a Wan checkpoint, whatever its format, without reading the rest.

A file `.safetensors`, a file `.pt`, `.pth` or `.bin`, or a folder of `.safetensors` (shards).
"""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from physis_core.model.wan.folder_check import checked_files
from physis_core.model.wan.keys import ENTRIES, canonical
from physis_core.types import UserError

FIELD = "model.checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """One tensor that lies in a file. `name` is the file's own name for it."""

    name: str
    shape: tuple[int, ...]
    read: Callable[[], Tensor]


def open_checkpoint(path: str | Path) -> dict[str, StoredTensor]:
    """A transformer's tensors by their diffusers names; nothing is read yet.

    Raises:
        UserError: as `open_weights`, or it holds no tensors.
    """
    found = open_weights(path)
    names = canonical(list(found))
    if not names:
        raise UserError(FIELD, str(path), "holds no tensors")
    return {name: found[raw] for name, raw in names.items()}


def open_weights(path: str | Path) -> dict[str, StoredTensor]:
    """All tensors of a file, or of a folder of shards, by the names in it; nothing is read yet.

    Raises:
        UserError: there is no such file, one is missing or cut off, or it is of another format.
    """
    place = Path(path)
    if not place.exists():
        raise UserError(FIELD, str(path), "there is no such file")
    found: dict[str, StoredTensor] = {}
    for file in checked_files(place, FIELD):
        found.update(_open_safetensors(file) if file.suffix == ".safetensors" else _open_pt(file))
    return found


def check_tensors(
    path: str | Path, stored: Mapping[str, StoredTensor], expected: Mapping[str, tuple[int, ...]]
) -> None:
    """Every expected tensor is there with its shape, and nothing else is.

    Raises:
        UserError: naming the first key or shape that does not match.
    """
    for name, shape in expected.items():
        found = stored.get(name)
        if found is None:
            raise UserError(FIELD, str(path), f"lacks {name} {list(shape)}")
        if found.shape != shape:
            has, needs = list(found.shape), list(shape)
            raise UserError(FIELD, str(path), f"{found.name} has shape {has}, must have {needs}")
    for name, found in stored.items():
        if name not in expected and not _is_table(name):
            raise UserError(FIELD, str(path), f"{found.name} has no place in the configured model")


def _is_table(name: str) -> bool:
    """Tables of rotary angles: some files carry them, no model reads them."""
    return name == "freqs" or name.startswith(("rope.", "freqs."))


def _open_safetensors(file: Path) -> dict[str, StoredTensor]:
    from safetensors import SafetensorError, safe_open

    try:
        opened: Any = safe_open(file, framework="pt")
    except (SafetensorError, OSError) as error:
        raise UserError(FIELD, str(file), f"is not a safetensors file ({error})") from None

    def stored(name: str) -> StoredTensor:
        shape = tuple(opened.get_slice(name).get_shape())
        return StoredTensor(name=name, shape=shape, read=lambda: opened.get_tensor(name))

    return {name: stored(name) for name in opened.keys()}  # noqa: SIM118


def _open_pt(file: Path) -> dict[str, StoredTensor]:
    try:
        # mmap reads only the tensors that are used, but needs torch's zip format.
        content = torch.load(
            file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file)
        )
    except (pickle.UnpicklingError, RuntimeError, EOFError, LookupError, ValueError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(FIELD, str(file), f"is not a file of plain tensors ({first})") from None
    weights = _weights_in(content)
    if weights is None:
        raise UserError(FIELD, str(file), "holds no dict of tensors")

    def stored(name: str, tensor: Tensor) -> StoredTensor:
        return StoredTensor(name=name, shape=tuple(tensor.shape), read=lambda: tensor)

    return {name: stored(name, tensor) for name, tensor in weights.items()}


def _weights_in(content: Any) -> dict[str, Tensor] | None:
    if not isinstance(content, Mapping):
        return None
    for entry in ENTRIES:
        if isinstance(content.get(entry), Mapping):
            content = content[entry]
            break
    tensors = {str(k): v for k, v in content.items() if isinstance(v, Tensor)}
    return tensors or None
