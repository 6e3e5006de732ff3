"""The model that a `ModelRef` names. A worker builds only the blocks that it owns."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from physis_core.model.protocol import ModelSpec, StagedModel
from physis_core.model.registry import ModelRef, family
from physis_core.types import UserError


def load(
    ref: ModelRef, blocks: Iterable[int] | None = None, device: torch.device | str = "cpu"
) -> StagedModel:
    """Build the model with only these blocks (None: all of them).

    Raises:
        UserError: a configuration value, the checkpoint, or the device does not fit.
    """
    return family(ref.family).load(ref, blocks=blocks, device=checked_device(device))


def load_spec(ref: ModelRef) -> ModelSpec:
    """What the engine and the planner must know, without weights in memory."""
    return family(ref.family).read_spec(ref)


def checked_device(name: torch.device | str) -> torch.device:
    """Raises UserError where torch does not know the device, or this machine does not have it."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError("device", str(name), "not a device that torch knows") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise UserError("device", str(name), f"this machine has {count} CUDA devices")
    return device
