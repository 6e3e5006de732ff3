"""Streaming decode and encode: diffusers' Wan VAE, latent by latent, with a cache per stream.

The VAE is causal: what it remembers of the frames before are the last two inputs of each
convolution over time. So a stream that is decoded latent by latent gives the frames of the whole
clip, and no border between chunks shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from physis_core.model.shapes import shapes_only
from physis_core.model.wan.checkpoint import open_weights
from physis_core.model.wan.folder import Autoencoder, WanFolder
from physis_core.model.wan.folder_check import headers_of
from physis_core.types import UserError

_MARKS = {None: 0, "Rep": 1}
"""What diffusers keeps of a convolution in place of inputs: nothing yet, or one latent seen."""


class FeatureCache:
    """Implements `KVWindow` for the decoder's stage: what it remembers of one stream."""

    def __init__(self, convolutions: int) -> None:
        self.features: list[Any] = [None] * convolutions

    @property
    def bytes(self) -> int:
        return sum(x.numel() * x.element_size() for x in self.features if isinstance(x, Tensor))

    @property
    def empty(self) -> bool:
        return all(x is None for x in self.features)

    def reset(self) -> None:
        self.features = [None] * len(self.features)

    def snapshot(self) -> dict[str, Tensor]:
        # Without a copy: a tensor that was put here is replaced, never written to.
        marks = [2 if isinstance(x, Tensor) else _MARKS[x] for x in self.features]
        kept = {str(i): x for i, x in enumerate(self.features) if isinstance(x, Tensor)}
        return {"marks": torch.tensor(marks), **kept}

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        marks = saved["marks"].tolist()
        if len(marks) != len(self.features):
            raise UserError("kv", len(marks), f"the decoder needs {len(self.features)}")
        names = {number: mark for mark, number in _MARKS.items()}
        self.features = [saved[str(i)] if m == 2 else names[m] for i, m in enumerate(marks)]


class FrameDecoder:
    """Latents [C, F, h, w] of one stream -> uint8 frames, in order.

    Args:
        vae: diffusers' AutoencoderKLWan with its decoder's weights.
    """

    def __init__(self, vae: nn.Module, shape: Autoencoder, device: torch.device) -> None:
        self._vae: Any = vae
        self._shape = shape
        self._device = device
        self._mean, self._std = _statistics(self._vae, device)
        self._convolutions = _convolutions(self._vae.decoder)

    def new_cache(self) -> FeatureCache:
        return FeatureCache(self._convolutions)

    def decode(self, latents: Tensor, cache: FeatureCache) -> Tensor:
        """latents float [C, F, h, w] -> uint8 [F * n, H, W, 3], n frames a latent.

        A stream's first latent is one frame; it is given n times, so that all chunks are alike.
        """
        out = [self._decode_one(latents[None, :, i : i + 1], cache) for i in range(len(latents[0]))]
        pixels = torch.cat(out, dim=2)[0].clamp(-1.0, 1.0)
        return (pixels * 127.5 + 127.5).round().to(torch.uint8).permute(1, 2, 3, 0).contiguous()

    def _decode_one(self, latent: Tensor, cache: FeatureCache) -> Tensor:
        """latent [1, C, 1, h, w] -> pixels [1, 3, n, H, W] about -1 to 1."""
        from diffusers.models.autoencoders.autoencoder_kl_wan import unpatchify

        first = cache.empty
        z = self._vae.post_quant_conv(latent.to(self._mean) * self._std + self._mean)
        out: Tensor = self._vae.decoder(
            z, feat_cache=cache.features, feat_idx=[0], first_chunk=first
        )
        if self._shape.patch_size is not None:
            out = unpatchify(out, self._shape.patch_size)  # type: ignore[no-untyped-call]
        return out.expand(-1, -1, self._shape.frames_per_latent, -1, -1) if first else out


class FrameEncoder:
    """Frames of one stream -> latents, n frames at a time after the first one."""

    def __init__(self, vae: nn.Module, shape: Autoencoder) -> None:
        self._vae: Any = vae
        self._shape = shape
        self._mean, self._std = _statistics(self._vae, torch.device("cpu"))
        self._features: list[Any] = []
        self.reset()

    def reset(self) -> None:
        """The next frame is a stream's first one."""
        self._features = [None] * _convolutions(self._vae.encoder)

    def encode(self, frames: Tensor) -> Tensor:
        """uint8 [n, H, W, 3], 1 for the first time and then n frames a latent -> float [C, h, w].

        Raises:
            UserError: another number of frames.
        """
        from diffusers.models.autoencoders.autoencoder_kl_wan import patchify

        first = all(x is None for x in self._features)
        wanted = 1 if first else self._shape.frames_per_latent
        if len(frames) != wanted:
            raise UserError("frames", len(frames), f"the encoder takes {wanted} now")
        pixels = frames.permute(3, 0, 1, 2)[None].to(torch.float32) / 127.5 - 1.0
        if self._shape.patch_size is not None:
            pixels = patchify(pixels, self._shape.patch_size)  # type: ignore[no-untyped-call]
        out = self._vae.encoder(pixels, feat_cache=self._features, feat_idx=[0])
        mean = self._vae.quant_conv(out)[:, : self._shape.z_dim]
        latent: Tensor = ((mean - self._mean) / self._std)[0, :, 0]
        return latent


def load_decoder(folder: WanFolder, device: torch.device) -> FrameDecoder:
    """Raises UserError where diffusers is missing, or the VAE does not fit."""
    vae, shape = _load_vae(folder, ("decoder.", "post_quant_conv."), device)
    return FrameDecoder(vae, shape, device)


def load_encoder(folder: WanFolder) -> FrameEncoder:
    """On the CPU: it runs once a reset. Raises UserError as `load_decoder`."""
    vae, shape = _load_vae(folder, ("encoder.", "quant_conv."), torch.device("cpu"))
    return FrameEncoder(vae, shape)


def _load_vae(
    folder: WanFolder, wanted: tuple[str, ...], device: torch.device
) -> tuple[nn.Module, Autoencoder]:
    """The VAE with the weights of these parts alone, in float32; the others stay on meta."""
    if folder.vae is None or folder.autoencoder is None:
        raise UserError("model", str(folder.path), "has no VAE")
    try:
        from diffusers.models.autoencoders.autoencoder_kl_wan import AutoencoderKLWan
    except ImportError as error:
        raise UserError(
            "model", str(folder.path), f"needs diffusers: pip install diffusers ({error})"
        ) from None
    values = {} if folder.vae.is_file() else AutoencoderKLWan.load_config(folder.vae)
    with shapes_only():
        vae: nn.Module = AutoencoderKLWan.from_config(values)
    stored = open_weights(folder.vae)
    if folder.vae.is_file():
        stored = _renamed(stored)
    weights: dict[str, Tensor] = {}
    for name, empty in vae.state_dict().items():
        if not name.startswith(wanted):
            continue
        found = stored.get(name)
        if found is None:
            raise UserError("vae", str(folder.vae), f"lacks {name} {list(empty.shape)}")
        if found.shape != tuple(empty.shape):
            raise UserError(
                "vae",
                str(folder.vae),
                f"{found.name} has shape {list(found.shape)}, must have {list(empty.shape)}",
            )
        weights[name] = found.read().to(device=device, dtype=torch.float32)
    vae.load_state_dict(weights, strict=False, assign=True)
    vae.eval().requires_grad_(False)
    return vae, folder.autoencoder


def _renamed(stored: Mapping[str, Any]) -> dict[str, Any]:
    """diffusers' names for those of Wan's own VAE file."""
    from diffusers.loaders.single_file_utils import convert_wan_vae_to_diffusers

    # It moves the values of a dict from old names to new ones, whatever they are.
    renamed: dict[str, Any] = convert_wan_vae_to_diffusers(  # type: ignore[no-untyped-call]
        dict(stored)
    )
    return renamed


def _convolutions(part: Any) -> int:
    """Places in a feature cache: one for each convolution over time."""
    from diffusers.models.autoencoders.autoencoder_kl_wan import WanCausalConv3d

    return sum(isinstance(module, WanCausalConv3d) for module in part.modules())


def _statistics(vae: Any, device: torch.device) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the latents, [C, 1, 1, 1]."""

    def column(values: Iterable[float]) -> Tensor:
        return torch.tensor(list(values), device=device).view(-1, 1, 1, 1)

    return column(vae.config.latents_mean), column(vae.config.latents_std)


def decoder_bytes(shape: Autoencoder, height: int, width: int) -> int:
    """Bytes of a full `FeatureCache` for latents of height x width cells, in float32.

    Two inputs of every convolution over time: where it comes in the decoder, with its channels and
    cells.
    """
    dims = [(shape.decoder_base_dim or shape.base_dim) * m for m in shape.dim_mult[::-1]]
    numbers = 0
    cells = height * width

    def keep(channels: int) -> None:
        nonlocal numbers
        numbers += 2 * channels * cells

    keep(shape.z_dim)
    for _ in range(4):  # Two residual blocks in the middle.
        keep(dims[0])
    before = dims[0]
    upsample = shape.temperal_downsample[::-1]
    for level, dim in enumerate(dims):
        entry = before
        if level > 0 and not shape.is_residual:
            # Wan2.1: the 2-D convolution of the upsampling halved the channels.
            entry = before // 2
        for number in range(shape.num_res_blocks + 1):
            keep(entry if number == 0 else dim)
            keep(dim)
        last = level == len(dims) - 1
        if not last:
            if upsample[level]:
                keep(dim)
            cells *= 4
        before = dim
    keep(dims[-1])
    return numbers * torch.float32.itemsize


def decoder_weight_bytes(folder: WanFolder) -> int:
    """Of the decoder's weights in float32, from the file's header alone."""
    assert folder.vae is not None
    if folder.vae.is_file():
        shapes = [
            x.shape for name, x in _renamed(open_weights(folder.vae)).items() if _decodes(name)
        ]
    else:
        shapes = [x.shape for name, x in headers_of(folder.vae).items() if _decodes(name)]
    return sum(torch.Size(shape).numel() for shape in shapes) * torch.float32.itemsize


def _decodes(name: str) -> bool:
    return name.startswith(("decoder.", "post_quant_conv."))
