"""A small image autoencoder: a frame <-> a few latent tokens. Convolutions alone, 16 x smaller.

    frame uint8 [M, H, W, 3] -> encode -> latent [M, tokens, channels] -> decode -> frame

A token covers 32 x 32 pixels: 2 x 2 cells of 16 x 16 pixels, `cell_channels` numbers each. Every
number of a latent has about mean 0 and variance 1 over the training frames, which is what the noise
schedule needs. What never moves is kept in `background`; the convolutions add what differs from it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from physis_core.model.tiny.config import PATCH, AutoencoderConfig


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.second(functional.silu(self.first(functional.silu(x))))
        return out


class Autoencoder(nn.Module):
    """See the module's text."""

    def __init__(self, config: AutoencoderConfig) -> None:
        super().__init__()
        self.config = config
        one, two, three = config.width, 2 * config.width, 3 * config.width
        height, width = config.frame_size
        self.background = nn.Parameter(torch.zeros(3, height, width))
        self.encoder = nn.Sequential(
            nn.PixelUnshuffle(4),
            nn.Conv2d(48, one, 3, padding=1),
            _Residual(one),
            nn.Conv2d(one, two, 4, stride=2, padding=1),
            _Residual(two),
            nn.Conv2d(two, three, 4, stride=2, padding=1),
            _Residual(three),
            nn.Conv2d(three, config.cell_channels, 1),
        )
        self.scale = nn.BatchNorm2d(config.cell_channels, affine=False, momentum=0.05)
        self.decoder = nn.Sequential(
            nn.Conv2d(config.cell_channels, three, 1),
            _Residual(three),
            nn.Conv2d(three, 4 * two, 1),
            nn.PixelShuffle(2),
            _Residual(two),
            nn.Conv2d(two, 4 * one, 1),
            nn.PixelShuffle(2),
            _Residual(one),
            _Residual(one),
            nn.Conv2d(one, 48, 3, padding=1),
            nn.PixelShuffle(4),
        )

    def encode_pixels(self, pixels: Tensor) -> Tensor:
        """pixels [M, 3, H, W] from -1 to 1 -> cells [M, cell_channels, h, w]."""
        out: Tensor = self.scale(self.encoder(pixels - self.background))
        return out

    def decode_cells(self, cells: Tensor) -> Tensor:
        """cells [M, cell_channels, h, w] -> pixels [M, 3, H, W], not clipped."""
        out: Tensor = self.background + self.decoder(cells)
        return out

    def encode(self, frames: Tensor) -> Tensor:
        """uint8 [M, H, W, 3] -> latents [M, tokens, channels]."""
        return self.tokens_of(self.encode_pixels(pixels_of(frames)))

    def decode(self, latents: Tensor) -> Tensor:
        """latents [M, tokens, channels] -> uint8 [M, H, W, 3]."""
        pixels = self.decode_cells(self.cells_of(latents))
        out = (pixels.clamp(-1.0, 1.0) * 127.5 + 127.5).round().to(torch.uint8)
        return out.permute(0, 2, 3, 1).contiguous()

    @staticmethod
    def tokens_of(cells: Tensor) -> Tensor:
        """[M, c, h, w] -> [M, (h/2)(w/2), 4c]."""
        return functional.pixel_unshuffle(cells, PATCH).flatten(2).transpose(1, 2)

    def cells_of(self, latents: Tensor) -> Tensor:
        rows, columns = self.config.cells
        grid = latents.transpose(1, 2).unflatten(2, (rows // PATCH, columns // PATCH))  # type: ignore[no-untyped-call]
        return functional.pixel_shuffle(grid, PATCH)


def pixels_of(frames: Tensor) -> Tensor:
    """uint8 [M, H, W, 3] -> float32 [M, 3, H, W] from -1 to 1."""
    return frames.permute(0, 3, 1, 2).to(torch.float32) / 127.5 - 1.0
