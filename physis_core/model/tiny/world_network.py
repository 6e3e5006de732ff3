"""The layers of the world model, and its pass over a whole sequence of chunks for training."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from physis_core.model.rope import ChunkRope
from physis_core.model.tiny.autoencoder import Autoencoder
from physis_core.model.tiny.config import WorldConfig
from physis_core.model.tiny.network import (
    ROPE_THETA,
    Block,
    LevelEncoder,
    block_causal_mask,
    layer_norm,
    run_sequence,
)

ANGLE_OCTAVES = 3
"""Joint angles enter as themselves and as sine and cosine of 1, 2 and 4 times the angle."""


class ActionEncoder(nn.Module):
    """Joint positions [..., J] rad -> [..., dim]."""

    def __init__(self, config: WorldConfig) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear((1 + 2 * ANGLE_OCTAVES) * config.joints, 2 * config.dim),
            nn.SiLU(),
            nn.Linear(2 * config.dim, 2 * config.dim),
            nn.SiLU(),
            nn.Linear(2 * config.dim, config.dim),
        )
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(config.position_mean), persistent=False)
        self.register_buffer("std", torch.tensor(config.position_std), persistent=False)

    def forward(self, joints: Tensor) -> Tensor:
        angles = torch.cat([joints * 2.0**n for n in range(ANGLE_OCTAVES)], dim=-1)
        scaled = (joints - self.mean) / self.std
        out: Tensor = self.layers(torch.cat((scaled, angles.sin(), angles.cos()), dim=-1))
        return out


class WorldNetwork(nn.Module):
    """All layers; `owned` names the blocks that this copy holds (all where not given)."""

    def __init__(self, config: WorldConfig, owned: Iterable[int] | None = None) -> None:
        super().__init__()
        self.config = config
        numbers = range(config.blocks) if owned is None else sorted(set(owned))
        dim, channels = config.dim, config.channels
        self.autoencoder = Autoencoder(config.autoencoder)
        self.action = ActionEncoder(config)
        self.action_to_frame = nn.Linear(dim, dim)
        self.level = LevelEncoder(dim)
        self.place = nn.Parameter(nn.init.normal_(torch.empty(config.tokens, dim), std=0.02))
        self.first_in = nn.Linear(channels, dim)
        self.first_to_frame = nn.Linear(channels, dim)
        self.frame_in = nn.Linear(channels, dim)
        self.frame_out = nn.Linear(dim, channels)
        self.out_modulation = nn.Linear(dim, 2 * dim)
        self.blocks = nn.ModuleDict({str(n): Block(config) for n in numbers})
        self.rope = ChunkRope(
            positions=torch.zeros(config.tokens, 1, dtype=torch.int64),
            stride=1,
            pairs=(config.head_dim // 2,),
            theta=ROPE_THETA,
        )

    def owned_block(self, number: int) -> Block:
        """Raises KeyError for a block that this copy does not hold."""
        block = self.blocks[str(number)]
        assert isinstance(block, Block)
        return block

    def embed(self, noisy: Tensor, actions: Tensor, first: Tensor) -> Tensor:
        """Tokens [M, N, dim] of a chunk.

        Args:
            noisy: [M, frames * frame_tokens, channels]. actions: [M, frames, J] rad.
            first: latents of the first frame, [M, frame_tokens, channels].
        """
        config = self.config
        acted = self.action(actions)
        frames = self.frame_in(noisy)
        # What a frame is asked to show goes to each of its tokens, and what stood at its place.
        frames = frames + self.action_to_frame(acted).repeat_interleave(config.frame_tokens, dim=1)
        frames = frames + self.first_to_frame(first).repeat(1, config.frames, 1)
        out: Tensor = torch.cat((self.first_in(first), acted, frames), dim=1) + self.place
        return out

    def predict_clean(self, tokens: Tensor, level: Tensor) -> Tensor:
        """Tokens [M, N, dim] after the last block -> clean latents [M, frames * tokens, ch]."""
        shift, scale = self.out_modulation(level).unsqueeze(1).chunk(2, dim=2)
        frames = tokens[:, self.config.condition_tokens :]
        out: Tensor = self.frame_out(layer_norm(frames) * (1.0 + scale) + shift)
        return out

    def sequence(self, noisy: Tensor, actions: Tensor, first: Tensor, level: Tensor) -> Tensor:
        """Denoise whole sequences at once: what T staged passes over a rolling window compute.

        Args:
            noisy: [B, T, tokens, channels], all chunks of a sequence at one level.
            actions: [B, T, frames, J]. first: [B, frame_tokens, channels]. level: [B].

        Returns:
            Predicted clean latents [B, T, tokens, channels].
        """
        batch, chunks = actions.shape[:2]
        tokens = self.embed(
            noisy.flatten(0, 1), actions.flatten(0, 1), first.repeat_interleave(chunks, dim=0)
        )
        per_chunk = self.level(level).repeat_interleave(chunks, dim=0)
        blocks = [self.owned_block(n) for n in range(self.config.blocks)]
        mask = block_causal_mask(chunks, tokens.shape[1], self.config.window_chunks)
        tokens = run_sequence(
            blocks, tokens, per_chunk, (batch, chunks), self.rope, mask, range(chunks)
        )
        clean = self.predict_clean(tokens, per_chunk)
        return clean.reshape(batch, chunks, *clean.shape[1:])
