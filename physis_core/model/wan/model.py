"""Wan as a staged model. Payloads:

latent = (x [C, F, h, w], known [F] where frames are observed)
hidden = (tokens [N, dim], modulation [T, 6, dim], time [T, dim], x, known ...)

T is the number of timesteps of a chunk: one, or one a token frame where frames are observed. The
modulation travels with the chunk because making it takes 6 x dim x dim weights, nearly half of a
block: only ranks that hold block 0 have them. Only ranks with the last block hold the head.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from physis_core.model.config import split_pairs_3d
from physis_core.model.kv import ChunkKVWindow
from physis_core.model.noise_schedule import draw_noise_rows, schedule_of
from physis_core.model.protocol import KVWindow, NoiseKey, Payload, StreamCondition
from physis_core.model.rope import ChunkRope, grid_positions
from physis_core.model.wan.attention import TextKV, WindowContext, text_kv
from physis_core.model.wan.config import WanConfig
from physis_core.model.wan.spec import torch_dtype, wan_spec
from physis_core.model.wan.text import text_embedding
from physis_core.types import UserError

TIMESTEPS = 1000.0
"""Wan's timestep of pure noise: timestep = 1000 x noise level."""


class WanModel:
    """Implements `StagedModel`. Made by `load_wan`.

    Args:
        shared: diffusers' transformer without blocks, with the parts that this rank needs.
        blocks: diffusers' blocks by their number, with our attention processors.
    """

    def __init__(
        self,
        config: WanConfig,
        shared: nn.Module,
        blocks: Mapping[int, nn.Module],
        device: torch.device,
    ) -> None:
        self.config = config
        self.spec = wan_spec(config)
        self._shared: Any = shared
        self._blocks: dict[int, Any] = dict(blocks)
        self._device = device
        self._schedule = schedule_of(config)
        self._observes = config.observation == "frames"
        self._rope = ChunkRope(
            positions=grid_positions(*config.grid),
            stride=config.grid[0],
            pairs=split_pairs_3d(config.head_dim),
        )

    def new_kv(self, block: int) -> ChunkKVWindow:
        config = self.config
        return ChunkKVWindow(
            window_chunks=config.window_chunks,
            sink_chunks=config.sink_chunks,
            tokens=config.tokens,
            heads=config.heads,
            head_dim=config.head_dim,
            dtype=torch_dtype(config),
            device=self._device,
        )

    def condition(self, values: Mapping[str, Any]) -> StreamCondition:
        """{"text_embedding": [n <= text_tokens, text_dim]}: an array, or a safetensors file of one.

        Without it the stream is unconditional (an embedding of zeros). The text encoder is not part
        of this package. K and V of the text are computed here, once, for the blocks of this rank.
        """
        text = text_embedding(values, self.config).to(self._device, torch_dtype(self.config))
        embedded = self._shared.condition_embedder.text_embedder(text)
        made: dict[str, Tensor] = {}
        for number, block in self._blocks.items():
            made[f"k{number}"], made[f"v{number}"] = text_kv(block.attn2, embedded)
        return made

    def inject(self, observation: Mapping[str, Tensor], noise: Sequence[NoiseKey]) -> Payload:
        x_spec = self.spec.latent[0]
        like = torch.empty(len(noise), *x_spec.shape, dtype=x_spec.dtype, device=self._device)
        x = draw_noise_rows(noise, [0] * len(noise), like)
        if not self._observes:
            return (x,)
        return self.refresh((x, torch.zeros(x.shape[0], x.shape[2], device=x.device)), observation)

    def refresh(self, latent: Payload, observation: Mapping[str, Tensor]) -> Payload:
        """Observed frames take the place of what was denoised so far; they are never taken back."""
        if not self._observes:
            return latent
        x, known = latent
        seen = observation["known"].to(known)
        frames = observation["latent"].to(x)
        shown = (seen > 0).to(known)
        return torch.where(_per_frame(shown) > 0, frames, x), torch.maximum(known, shown)

    def embed(self, latent: Payload, step: Sequence[int]) -> Payload:
        if 0 not in self._blocks:
            raise KeyError("embed: this rank does not hold block 0")
        x, dtype = latent[0], torch_dtype(self.config)
        tokens = self._shared.patch_embedding(x.to(dtype)).flatten(2).transpose(1, 2).contiguous()
        level = self._schedule.levels(step, x).view(-1, 1)
        timestep = level.expand(len(step), self.config.token_frames) * TIMESTEPS
        if self._observes:
            # A token frame is known where all of its latent frames are.
            known = latent[1].view(len(step), self.config.token_frames, -1).amin(dim=2)
            timestep = torch.where(known > 0, torch.zeros_like(timestep), timestep)
        embedder = self._shared.condition_embedder
        waves = embedder.timesteps_proj(timestep.flatten())
        time = embedder.time_embedder(waves.to(embedder.time_embedder.linear_1.weight)).to(dtype)
        modulation = embedder.time_proj(embedder.act_fn(time))
        per_row = (len(step), self.config.token_frames)
        return (tokens, modulation.view(*per_row, 6, -1), time.view(*per_row, -1), *latent)

    def block(
        self,
        block: int,
        hidden: Payload,
        step: Sequence[int],
        kv: Sequence[KVWindow],
        condition: Sequence[StreamCondition],
        write: Sequence[bool],
    ) -> Payload:
        layer = self._blocks[block]
        tokens, modulation = hidden[:2]
        if self.config.token_frames == 1:
            modulation = modulation[:, 0]
        else:
            frame = self.config.tokens // self.config.token_frames
            modulation = modulation.repeat_interleave(frame, dim=1)
        text = TextKV(
            k=torch.stack([c[f"k{block}"] for c in condition]),
            v=torch.stack([c[f"v{block}"] for c in condition]),
        )
        window = WindowContext(windows=kv, write=write, rope=self._rope)
        return (layer(tokens, text, modulation, window), *hidden[1:])

    def head(self, hidden: Payload, step: Sequence[int], noise: Sequence[NoiseKey]) -> Payload:
        x = hidden[3]
        clean = self._schedule.clean_from_flow(x, self.flow(hidden), step)
        fresh = draw_noise_rows(noise, [d + 1 for d in step], x)
        after = self._schedule.next_input(clean, fresh, step)
        if not self._observes:
            return (after,)
        known = hidden[4]
        return torch.where(_per_frame(known) > 0, x, after), known

    def renoise(self, clean: Payload, step: Sequence[int], noise: Sequence[NoiseKey]) -> Payload:
        x = clean[0]
        noisy = self._schedule.renoise(x, draw_noise_rows(noise, step, x), step)
        if not self._observes:
            return (noisy,)
        known = clean[1]
        return torch.where(_per_frame(known) > 0, x, noisy), known

    def flow(self, hidden: Payload) -> Tensor:
        """What the network predicts, noise - x0, [B, C, F, h, w] in the latent's dtype."""
        if self.config.blocks - 1 not in self._blocks:
            raise KeyError("head: this rank does not hold the last block")
        tokens, time = hidden[0], hidden[2]
        table = self._shared.scale_shift_table.unsqueeze(0)
        shift, scale = (table + time.unsqueeze(2)).unbind(2)
        frames = self._shared.norm_out(tokens.float()).unflatten(1, (self.config.token_frames, -1))
        turned = frames * (1 + scale.unsqueeze(2)) + shift.unsqueeze(2)
        flat = self._shared.proj_out(turned.to(tokens.dtype).flatten(1, 2))
        patches = flat.view(len(flat), *self.config.grid, *self.config.patch, -1)
        flow: Tensor = patches.permute(0, 7, 1, 4, 2, 5, 3, 6).reshape(hidden[3].shape)
        return flow.to(hidden[3])

    def finish(self, latent: Payload) -> Mapping[str, Tensor]:
        return {"latent": latent[0]}


def _per_frame(known: Tensor) -> Tensor:
    """[B, F] to broadcast over [B, C, F, h, w]."""
    return known[:, None, :, None, None]


def owned_blocks(config: WanConfig, blocks: Iterable[int] | None) -> tuple[int, ...]:
    owned = range(config.blocks) if blocks is None else sorted(set(blocks))
    for block in owned:
        if not 0 <= block < config.blocks:
            raise UserError("blocks", block, f"must be in 0..{config.blocks - 1}")
    return tuple(owned)
