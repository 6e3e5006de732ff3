"""What a user sets for a Wan stream, as a text embedding of one fixed length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from physis_core.model.wan.config import WanConfig
from physis_core.types import UserError


def text_embedding(values: Mapping[str, Any], config: WanConfig) -> Tensor:
    """float32 [text_tokens, text_dim], zeros after the text's end as in Wan's training.

    Raises:
        UserError: an unknown name, or an embedding of another shape.
    """
    for name, value in values.items():
        if name == "prompt":
            raise UserError(name, value, "the engine encodes prompts; a model takes text_embedding")
        if name != "text_embedding":
            raise UserError(name, value, "wan knows only text_embedding")
    text = torch.zeros(config.text_tokens, config.text_dim)
    if "text_embedding" in values:
        given = _read(values["text_embedding"])
        fits = given.ndim == 2 and given.shape[1] == config.text_dim
        if not fits or len(given) > config.text_tokens:
            raise UserError(
                "text_embedding",
                list(given.shape),
                f"needs [up to {config.text_tokens}, {config.text_dim}]",
            )
        if not torch.isfinite(given).all():
            raise UserError("text_embedding", list(given.shape), "holds NaN or Inf")
        text[: len(given)] = given
    return text


def _read(value: Any) -> Tensor:
    if isinstance(value, str):
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            tensors = load_file(value)
        except (SafetensorError, OSError) as error:
            raise UserError("text_embedding", value, f"cannot be read ({error})") from None
        if len(tensors) != 1:
            raise UserError("text_embedding", value, f"holds {len(tensors)} tensors, needs one")
        return next(iter(tensors.values())).float()
    if isinstance(value, Tensor):
        return value.float().cpu()
    try:
        return torch.from_numpy(np.array(value, dtype=np.float32))
    except (TypeError, ValueError):
        raise UserError("text_embedding", type(value).__name__, "must be an array") from None
