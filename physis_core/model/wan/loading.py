"""Build a Wan model with the weights of its own blocks alone."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from physis_core.model.shapes import shapes_only
from physis_core.model.wan.attention import CachedTextAttention, WindowedSelfAttention
from physis_core.model.wan.checkpoint import (
    StoredTensor,
    check_tensors,
    open_checkpoint,
    open_weights,
)
from physis_core.model.wan.config import WanConfig
from physis_core.model.wan.decoder import (
    FrameDecoder,
    decoder_bytes,
    decoder_weight_bytes,
    load_decoder,
)
from physis_core.model.wan.folder import WanFolder
from physis_core.model.wan.folder_check import check_vae
from physis_core.model.wan.model import WanModel, owned_blocks
from physis_core.model.wan.spec import DecoderSize, keeps_float32, torch_dtype
from physis_core.types import UserError


def load_wan(
    config: WanConfig, folder: WanFolder, blocks: Iterable[int] | None, device: torch.device
) -> WanModel:
    """From a folder with a checkpoint.

    Raises:
        UserError: diffusers is missing, or a part does not fit: by the first tensor.
    """
    decoder, size = None, None
    if config.decode:
        size = decoder_size(config, folder)
        if config.blocks in owned_blocks(config, blocks):
            decoder = load_decoder(folder, device)
    return build_wan(
        config,
        str(folder.transformer),
        blocks,
        device,
        adapter=folder.action_adapter,
        decoder=decoder,
        decoder_size=size,
    )


def decoder_size(config: WanConfig, folder: WanFolder) -> DecoderSize | None:
    """None where the configuration does not decode. UserError where the VAE does not fit."""
    if not config.decode:
        return None
    check_vae(folder, config.channels)
    assert folder.autoencoder is not None
    return DecoderSize(
        weight_bytes=decoder_weight_bytes(folder),
        state_bytes=decoder_bytes(folder.autoencoder, config.height, config.width),
    )


def build_wan(
    config: WanConfig,
    checkpoint: str | None = None,
    blocks: Iterable[int] | None = None,
    device: torch.device | str = "cpu",
    *,
    adapter: Path | None = None,
    decoder: FrameDecoder | None = None,
    decoder_size: DecoderSize | None = None,
) -> WanModel:
    """Without a checkpoint the weights are random, a function of `seed` and their names alone.

    Args:
        checkpoint: file or folder of the transformer's weights.
        adapter: file or folder of the action adapter's; needed where actions steer.
        decoder: where the rank has the last block of a configuration that decodes.

    Raises:
        UserError: diffusers is missing, or configuration or checkpoint do not fit.
    """
    owned = owned_blocks(config, blocks)
    shared, layers = _empty_modules(config, owned)
    expected = _expected(config, shared)
    stored = None
    if checkpoint is not None:
        stored = open_checkpoint(checkpoint)
        if config.action_joints and adapter is not None:
            held = open_weights(adapter).items()
            stored.update({f"action_adapter.{name}": tensor for name, tensor in held})
        check_tensors(checkpoint, stored, expected)
    target = torch.device(device)
    for part in _unneeded(config, owned):
        _drop(shared, part)
    _fill(shared, "", config, stored, target)
    for number, layer in layers.items():
        _fill(layer, f"blocks.{number}.", config, stored, target)
    return WanModel(
        config, shared, layers, target, owned=owned, decoder=decoder, decoder_size=decoder_size
    )


def _empty_modules(
    config: WanConfig, owned: tuple[int, ...]
) -> tuple[nn.Module, dict[int, nn.Module]]:
    """diffusers' modules on the meta device: shapes without memory."""
    try:
        from diffusers.models.transformers.transformer_wan import WanTransformer3DModel
    except ImportError as error:
        raise UserError(
            "model.family", "wan", f"needs diffusers: pip install diffusers ({error})"
        ) from None
    with shapes_only():
        shared = WanTransformer3DModel(
            patch_size=config.patch,
            num_attention_heads=config.heads,
            attention_head_dim=config.head_dim,
            in_channels=config.channels,
            out_channels=config.channels,
            text_dim=config.text_dim,
            freq_dim=config.freq_dim,
            ffn_dim=config.ffn,
            num_layers=0,
            cross_attn_norm=config.cross_attn_norm,
            eps=config.eps,
            # Not used: positions are relative to the window.
            rope_max_seq_len=1,
        )
        if config.action_joints:
            inputs = config.frames // config.grid[0] * len(config.action_joints)
            shared.action_adapter = nn.Sequential(
                nn.Linear(inputs, config.action_hidden),
                nn.SiLU(),
                nn.Linear(config.action_hidden, config.dim),
            )
        layers = {number: _block(config) for number in owned if number < config.blocks}
    _drop(shared, "rope")
    return shared, layers


def _block(config: WanConfig) -> nn.Module:
    from diffusers.models.transformers.transformer_wan import WanTransformerBlock

    layer: Any = WanTransformerBlock(
        config.dim,
        config.ffn,
        config.heads,
        cross_attn_norm=config.cross_attn_norm,
        eps=config.eps,
    )
    layer.attn1.set_processor(WindowedSelfAttention())
    layer.attn2.set_processor(CachedTextAttention())
    block: nn.Module = layer
    return block


def _expected(config: WanConfig, shared: nn.Module) -> dict[str, tuple[int, ...]]:
    """Shapes of all weights of the whole model, blocks of other ranks included."""
    shapes = {name: tuple(p.shape) for name, p in shared.named_parameters()}
    with shapes_only():
        one = _block(config)
    for number in range(config.blocks):
        for name, p in one.named_parameters():
            shapes[f"blocks.{number}.{name}"] = tuple(p.shape)
    return shapes


def _unneeded(config: WanConfig, owned: tuple[int, ...]) -> list[str]:
    parts = []
    if 0 not in owned:
        parts += ["patch_embedding", "condition_embedder.time_embedder"]
        parts += ["condition_embedder.time_proj"]
        parts += ["action_adapter"] if config.action_joints else []
    if config.stages_per_step - 1 not in owned:
        parts += ["proj_out", "scale_shift_table"]
    return parts


def _drop(module: nn.Module, name: str) -> None:
    parent, _, leaf = name.rpartition(".")
    delattr(module.get_submodule(parent), leaf)


def _fill(
    module: nn.Module,
    prefix: str,
    config: WanConfig,
    stored: Mapping[str, StoredTensor] | None,
    device: torch.device,
) -> None:
    """Give a module on the meta device its weights; on that device itself, their types alone."""
    weights: dict[str, Tensor] = {}
    for name, empty in module.named_parameters():
        full = prefix + name
        if device.type == "meta":
            value: Tensor = empty
        elif stored is None:
            value = _random(full, empty, config.seed)
        else:
            value = stored[full].read()
        dtype = torch_dtype(config)
        if keeps_float32(full):
            dtype = torch.promote_types(dtype, torch.float32)
        weights[name] = value.to(device=device, dtype=dtype)
    module.load_state_dict(weights, strict=True, assign=True)
    module.eval().requires_grad_(False)


def _random(name: str, like: Tensor, seed: int) -> Tensor:
    """Scaled so that activations keep their size; norms are near one, biases small."""
    generator = torch.Generator().manual_seed(seed * 2**32 + zlib.crc32(name.encode()))
    drawn = torch.randn(like.shape, generator=generator)
    if like.ndim == 1:
        return drawn * 0.02 + (1.0 if "norm" in name and name.endswith("weight") else 0.0)
    scale: float = like[0].numel() ** -0.5
    return drawn * scale
