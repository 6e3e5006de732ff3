"""Wan as a staged model. Payloads:

latent = (x [C, F, h, w], known [F] where frames are observed, actions [n, J] where they steer)
hidden = (tokens [N, dim], modulation [T, 6, dim], time [T, dim], *latent)

T is the number of timesteps of a chunk: one, or one a token frame where frames are observed or
actions steer. The modulation travels with the chunk because making it takes 6 x dim x dim weights,
nearly half of a block: only ranks that hold block 0 have them. Only ranks with the last block hold
the head. With `decode` the last block is the VAE's decoder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from physis_core.model.config import split_pairs_3d
from physis_core.model.description import COMMANDS, FRAMES
from physis_core.model.kv import ChunkKVWindow
from physis_core.model.noise_schedule import FlowSchedule, draw_noise_rows
from physis_core.model.protocol import KVWindow, NoiseKey, Payload, StreamCondition
from physis_core.model.rope import ChunkRope, grid_positions
from physis_core.model.wan.attention import TextKV, WindowContext, text_kv
from physis_core.model.wan.config import WanConfig
from physis_core.model.wan.decoder import FeatureCache, FrameDecoder
from physis_core.model.wan.spec import (
    FIRST,
    HAS_FIRST,
    KNOWN,
    LATENT,
    DecoderSize,
    torch_dtype,
    wan_spec,
)
from physis_core.model.wan.text import text_embedding
from physis_core.types import UserError

TIMESTEPS = 1000.0
"""Wan's timestep of pure noise: timestep = 1000 x noise level."""


class PromptKV(dict[str, Tensor]):
    """K and V of a prompt by block; a class of its own, so that it may be referred to weakly."""


class WanModel:
    """Implements `StagedModel`. Made by `build_wan`.

    Args:
        shared: diffusers' transformer without blocks, with the parts that this rank needs.
        blocks: diffusers' blocks by their number, with our attention processors.
        owned: numbers of the rank's blocks, the decoder's included.
        decoder: at the rank of the last block, where the configuration decodes.
    """

    def __init__(
        self,
        config: WanConfig,
        shared: nn.Module,
        blocks: Mapping[int, nn.Module],
        device: torch.device,
        *,
        owned: tuple[int, ...],
        decoder: FrameDecoder | None = None,
        decoder_size: DecoderSize | None = None,
    ) -> None:
        self.config = config
        self.spec = wan_spec(config, decoder_size)
        self._owned = owned
        self._decoder = decoder
        # Streams with one prompt share its K and V.
        self._prompts: WeakValueDictionary[bytes, PromptKV] = WeakValueDictionary()
        self._shared: Any = shared
        self._blocks: dict[int, Any] = dict(blocks)
        self._device = device
        levels = tuple(timestep / TIMESTEPS for timestep in config.timesteps)
        self._schedule = FlowSchedule(steps=config.steps, shift=config.shift, given=levels)
        self._observes = config.observation != "none"
        self._rope = ChunkRope(
            positions=grid_positions(*config.grid),
            stride=config.grid[0],
            pairs=split_pairs_3d(config.head_dim),
        )

    def new_kv(self, block: int) -> KVWindow:
        config = self.config
        if block == config.blocks and self._decoder is not None:
            return self._decoder.new_cache()
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

        Without it the stream is unconditional (an embedding of zeros). A prompt becomes an
        embedding before it comes here (`prompt.PromptEncoder`). K and V of the text are computed
        here, once, for the blocks of this rank and all streams of that prompt.
        """
        text = text_embedding(values, self.config)
        digest = hashlib.sha256(text.numpy().tobytes()).digest()
        made = self._prompts.get(digest)
        if made is None:
            text = text.to(self._device, torch_dtype(self.config))
            embedded = self._shared.condition_embedder.text_embedder(text)
            made = PromptKV()
            for number, block in self._blocks.items():
                made[f"k{number}"], made[f"v{number}"] = text_kv(block.attn2, embedded)
            self._prompts[digest] = made
        return made

    def inject(self, observation: Mapping[str, Tensor], noise: Sequence[NoiseKey]) -> Payload:
        x_spec = self.spec.latent[0]
        like = torch.empty(len(noise), *x_spec.shape, dtype=x_spec.dtype, device=self._device)
        x = draw_noise_rows(noise, [0] * len(noise), like)
        latent: Payload = (x,)
        if self._observes:
            known = torch.zeros(x.shape[0], x.shape[2], device=x.device)
            if self.config.observation == "first_frame":
                x, known = self._with_first_frame(x, known, observation, noise)
            latent = (x, known)
        if self.config.action_joints:
            latent = (*latent, observation[COMMANDS].to(x))
        return self.refresh(latent, observation)

    def _with_first_frame(
        self,
        x: Tensor,
        known: Tensor,
        observation: Mapping[str, Tensor],
        noise: Sequence[NoiseKey],
    ) -> tuple[Tensor, Tensor]:
        """A first frame belongs to an epoch's first chunk alone; later ones come from the KV."""
        begins = torch.tensor([key.chunk_id == 0 for key in noise]).view(-1, 1).to(known)
        first = begins * (observation[HAS_FIRST].to(known) > 0).to(known)
        known = torch.cat([first, known[:, 1:]], dim=1)
        frame = torch.where(
            first[:, :, None, None, None] > 0, observation[FIRST].to(x), x[:, :, :1]
        )
        return torch.cat([frame, x[:, :, 1:]], dim=2), known

    def refresh(self, latent: Payload, observation: Mapping[str, Tensor]) -> Payload:
        """Observed frames take the place of what was denoised so far; they are never taken back."""
        if self.config.action_joints:
            latent = (*latent[:-1], observation[COMMANDS].to(latent[0]))
        if self.config.observation != "frames":
            return latent
        x, known = latent[:2]
        seen = observation[KNOWN].to(known)
        frames = observation[LATENT].to(x)
        shown = (seen > 0).to(known)
        frames = torch.where(_per_frame(shown) > 0, frames, x)
        return (frames, torch.maximum(known, shown), *latent[2:])

    def embed(self, latent: Payload, step: Sequence[int]) -> Payload:
        if 0 not in self._owned:
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
        time = embedder.time_embedder(waves.to(embedder.time_embedder.linear_1.weight))
        if self.config.action_joints:
            per_frame = latent[-1].reshape(len(timestep) * self.config.token_frames, -1)
            time = time + self._shared.action_adapter(per_frame.to(time))
        time = time.to(dtype)
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
        if block == self.config.blocks and self._decoder is not None:
            return hidden
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
            return (after, *hidden[4:])
        known = hidden[4]
        return (torch.where(_per_frame(known) > 0, x, after), *hidden[4:])

    def renoise(self, clean: Payload, step: Sequence[int], noise: Sequence[NoiseKey]) -> Payload:
        x = clean[0]
        noisy = self._schedule.renoise(x, draw_noise_rows(noise, step, x), step)
        if not self._observes:
            return (noisy, *clean[1:])
        known = clean[1]
        return (torch.where(_per_frame(known) > 0, x, noisy), *clean[1:])

    def flow(self, hidden: Payload) -> Tensor:
        """What the network predicts, noise - x0, [B, C, F, h, w] in the latent's dtype."""
        if self.config.stages_per_step - 1 not in self._owned:
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

    def finish(self, latent: Payload, kv: Sequence[KVWindow]) -> Mapping[str, Tensor]:
        if self._decoder is None:
            return {LATENT: latent[0]}
        frames = []
        for x, cache in zip(latent[0], kv, strict=True):
            assert isinstance(cache, FeatureCache), type(cache)
            frames.append(self._decoder.decode(x, cache))
        return {FRAMES: torch.stack(frames)}


def _per_frame(known: Tensor) -> Tensor:
    """[B, F] to broadcast over [B, C, F, h, w]."""
    return known[:, None, :, None, None]


def owned_blocks(config: WanConfig, blocks: Iterable[int] | None) -> tuple[int, ...]:
    count = config.stages_per_step
    owned = range(count) if blocks is None else sorted(set(blocks))
    for block in owned:
        if not 0 <= block < count:
            raise UserError("blocks", block, f"must be in 0..{count - 1}")
    return tuple(owned)
