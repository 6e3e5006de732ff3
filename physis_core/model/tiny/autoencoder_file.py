"""The image autoencoder's own file, which training of the world model starts from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from physis_core.model.loading import build_config
from physis_core.model.tiny import container
from physis_core.model.tiny.autoencoder import Autoencoder, AutoencoderConfig

FORMAT = "physis-frames/1"


def save_autoencoder(
    path: Path,
    config: AutoencoderConfig,
    weights: Mapping[str, Tensor],
    training: Mapping[str, Any],
) -> None:
    container.write(path, FORMAT, config.to_json(), weights, training)


def load_autoencoder(path: Path | str) -> Autoencoder:
    """Ready to encode and decode. Raises UserError where the file does not fit."""
    config = build_config(AutoencoderConfig, container.read_header(path, FORMAT)["config"])
    with torch.device("meta"):
        wanted = Autoencoder(config).state_dict()
    network = Autoencoder(config)
    network.load_state_dict(container.read_weights(path, wanted))
    network.eval().requires_grad_(False)
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]
