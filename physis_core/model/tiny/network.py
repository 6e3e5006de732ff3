"""The layers of physis-tiny, and its forward pass over a whole sequence of chunks for training.

The staged model (`model.py`) calls the same layers one block at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from physis_core.model.rope import ChunkRope, apply_rope
from physis_core.model.tiny.autoencoder import Autoencoder
from physis_core.model.tiny.config import TinyConfig, TransformerConfig

LEVEL_FREQUENCIES = 16
ROPE_THETA = 100.0
"""A window is some ten chunks long, so a short base keeps every frequency in use."""


class ImageEncoder(nn.Module):
    """uint8 images [M, H, W, 3] -> tokens [M, grid^2 + 1, dim]: a grid, and found keypoints."""

    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self._grid = config.grid
        narrow, wide = config.image_channels, 2 * config.image_channels
        self.stem = nn.Conv2d(3, narrow, 5, stride=2, padding=2)
        self.detail = nn.Conv2d(narrow, narrow, 3, padding=1)
        self.down1 = nn.Conv2d(narrow, wide, 3, stride=2, padding=1)
        self.down2 = nn.Conv2d(wide, wide, 3, stride=2, padding=1)
        self.down3 = nn.Conv2d(wide, wide, 3, stride=2, padding=1)
        self.grid_out = nn.Linear(wide, config.dim)
        self.heat = nn.Conv2d(narrow, config.keypoints, 1)
        self.keypoint_out = nn.Sequential(
            nn.Linear(5 * config.keypoints, config.dim),
            nn.GELU(),
            nn.Linear(config.dim, config.dim),
        )

    def forward(self, image: Tensor) -> Tensor:
        x = image.permute(0, 3, 1, 2).to(self.stem.weight.dtype) / 127.5 - 1.0
        x = functional.gelu(self.stem(x))
        x = functional.gelu(self.detail(x))
        keypoints = self.keypoint_out(self._moments(self.heat(x)))
        x = functional.gelu(self.down1(x))
        x = functional.gelu(self.down2(x))
        x = functional.gelu(self.down3(x))
        x = functional.adaptive_avg_pool2d(x, self._grid).flatten(2).transpose(1, 2)
        return torch.cat((self.grid_out(x), keypoints.unsqueeze(1)), dim=1)

    @staticmethod
    def _moments(heat: Tensor) -> Tensor:
        """Mean place, spread and strength of each heat map [M, P, h, w] -> [M, 5 P].

        The spread tells an object's size in the image, and so its distance.
        """
        height, width = heat.shape[-2:]
        weight = heat.flatten(2).softmax(dim=2).view(heat.shape)
        down = torch.linspace(-1, 1, height, dtype=heat.dtype, device=heat.device)
        across = torch.linspace(-1, 1, width, dtype=heat.dtype, device=heat.device)
        rows, columns = weight.sum(dim=3), weight.sum(dim=2)
        y, x = rows @ down, columns @ across
        spread_y = (rows @ down.square() - y.square()).clamp_min(1e-6).sqrt()
        spread_x = (columns @ across.square() - x.square()).clamp_min(1e-6).sqrt()
        strength = heat.flatten(2).logsumexp(dim=2) - math.log(height * width)
        return torch.cat((x, y, spread_x, spread_y, 0.1 * strength), dim=1)


class StateEncoder(nn.Module):
    """Normalised joints [M, J] and lookahead in seconds [M, 1] -> one token [M, 1, dim]."""

    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self._lookahead_max_s = config.lookahead_max_s
        self.layers = nn.Sequential(
            nn.Linear(config.joints + 1, config.dim), nn.GELU(), nn.Linear(config.dim, config.dim)
        )

    def forward(self, joints: Tensor, lookahead_s: Tensor) -> Tensor:
        scaled = 2.0 * lookahead_s / self._lookahead_max_s - 1.0
        out: Tensor = self.layers(torch.cat((joints, scaled), dim=1))
        return out.unsqueeze(1)


class LevelEncoder(nn.Module):
    """Noise levels [M] -> [M, dim], what the AdaLN of every block starts from."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(2 * LEVEL_FREQUENCIES, dim),
            nn.SiLU(),
            nn.Linear(dim, dim),
            nn.SiLU(),
        )

    def forward(self, level: Tensor) -> Tensor:
        octave = torch.arange(LEVEL_FREQUENCIES, dtype=torch.float32, device=level.device)
        angles = level[:, None] * (math.pi * 2.0 ** (octave / 2.0))
        out: Tensor = self.layers(torch.cat((angles.cos(), angles.sin()), dim=1))
        return out


class Block(nn.Module):
    """AdaLN transformer block around an attention that the caller runs (windowed or masked)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        dim = config.dim
        self._heads = config.heads
        self.modulation = nn.Linear(dim, 6 * dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.norm_q = nn.RMSNorm(config.head_dim, eps=1e-6)
        self.norm_k = nn.RMSNorm(config.head_dim, eps=1e-6)
        self.out = nn.Linear(dim, dim)
        self.ffn = nn.Sequential(
            nn.Linear(dim, config.ffn), nn.GELU(approximate="tanh"), nn.Linear(config.ffn, dim)
        )

    @staticmethod
    def split_modulation(modulation: Tensor) -> tuple[Tensor, ...]:
        """[M, 6 dim] -> shift, scale, gate of attention, then of the FFN, each [M, 1, dim]."""
        return tuple(modulation.unsqueeze(1).chunk(6, dim=2))

    def attention_input(
        self, tokens: Tensor, modulation: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """tokens [M, N, dim] -> q, k, v [M, N, heads, head_dim], before RoPE."""
        shift, scale = modulation[0], modulation[1]
        qkv = self.qkv(layer_norm(tokens) * (1.0 + scale) + shift)
        q, k, v = qkv.view(*qkv.shape[:2], 3, self._heads, -1).unbind(2)
        return self.norm_q(q), self.norm_k(k), v

    def after_attention(
        self, tokens: Tensor, attended: Tensor, modulation: Sequence[Tensor]
    ) -> Tensor:
        """attended [M, N, heads, head_dim] -> tokens [M, N, dim] for the next block."""
        _, _, gate, shift_ffn, scale_ffn, gate_ffn = modulation
        tokens = tokens + gate * self.out(attended.flatten(2))
        forward: Tensor = self.ffn(layer_norm(tokens) * (1.0 + scale_ffn) + shift_ffn)
        return tokens + gate_ffn * forward


class TinyNetwork(nn.Module):
    """All layers; `owned` names the blocks that this copy holds (all where not given)."""

    def __init__(self, config: TinyConfig, owned: Iterable[int] | None = None) -> None:
        super().__init__()
        self.config = config
        numbers = range(config.blocks) if owned is None else sorted(set(owned))
        self.image = ImageEncoder(config)
        self.state = StateEncoder(config)
        self.level = LevelEncoder(config.dim)
        self.place = nn.Parameter(nn.init.normal_(torch.empty(config.tokens, config.dim), std=0.02))
        self.part_in = nn.ModuleDict(
            {part.name: nn.Linear(part.channels, config.dim) for part in config.parts}
        )
        self.part_out = nn.ModuleDict(
            {part.name: nn.Linear(config.dim, part.channels) for part in config.parts}
        )
        self.out_modulation = nn.Linear(config.dim, 2 * config.dim)
        self.blocks = nn.ModuleDict({str(n): Block(config) for n in numbers})
        if config.frame_times_s:
            self.autoencoder = Autoencoder(config.autoencoder)
        self.position_mean: Tensor
        self.position_std: Tensor
        self.register_buffer("position_mean", torch.tensor(config.position_mean), persistent=False)
        self.register_buffer("position_std", torch.tensor(config.position_std), persistent=False)
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

    def encode(self, observation: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Observation [M, ...] -> normalised joints [M, J] and condition tokens [M, C, dim]."""
        image = observation["image"]
        joints = (observation["joint_positions"] - self.position_mean) / self.position_std
        per_image: Tensor = self.image(image.flatten(0, 1))
        image_tokens = per_image.reshape(image.shape[0], -1, self.config.dim)
        state_token = self.state(joints, observation["lookahead_s"])
        return joints, torch.cat((image_tokens, state_token), dim=1)

    def embed(self, noisy: Sequence[Tensor], condition: Tensor) -> Tensor:
        """Noisy parts [M, tokens, channels], condition [M, C, dim] -> tokens [M, N, dim]."""
        parts = [
            self.part_in[part.name](x) for part, x in zip(self.config.parts, noisy, strict=True)
        ]
        return torch.cat((condition, *parts), dim=1) + self.place

    def predict_clean(self, tokens: Tensor, level: Tensor, joints: Tensor) -> tuple[Tensor, ...]:
        """Tokens [M, N, dim] after the last block -> clean parts [M, tokens, channels]."""
        shift, scale = self.out_modulation(level).unsqueeze(1).chunk(2, dim=2)
        tokens = layer_norm(tokens) * (1.0 + scale) + shift
        out = []
        first = self.config.condition_tokens
        for part in self.config.parts:
            value: Tensor = self.part_out[part.name](tokens[:, first : first + part.tokens])
            if part.name == "action" and self.config.action_reference == "joints":
                value = joints.unsqueeze(1) + self.config.displacement_std * value
            out.append(value)
            first += part.tokens
        return tuple(out)

    def sequence(
        self,
        noisy: Sequence[Tensor],
        joints: Tensor,
        condition: Tensor,
        level: Tensor,
        history: Sequence[Tensor] | None = None,
    ) -> tuple[Tensor, ...]:
        """Denoise whole sequences at once: what T staged passes over a rolling window compute.

        Args:
            noisy: parts, each [B, T, tokens, channels], all chunks of a sequence at one level.
            joints: normalised, [B, T, J]. condition: [B, T, C, dim]. level: [B].
            history: parts, shaped as `noisy`, that chunks later than t see of chunk t: clean KV,
                as a pass at level 0 leaves it. None: they see `noisy` (noisy KV).

        Returns:
            Predicted clean parts [B, T, tokens, channels]. Chunk t sees chunks t - H + 1 to t.
        """
        batch, chunks = joints.shape[:2]
        tokens = self.embed([x.flatten(0, 1) for x in noisy], condition.flatten(0, 1))
        per_chunk = self.level(level).repeat_interleave(chunks, dim=0)
        blocks = [self.owned_block(number) for number in range(self.config.blocks)]
        window = self.config.window_chunks
        if history is None or chunks == 1:
            mask = block_causal_mask(chunks, tokens.shape[1], window)
            tokens = run_sequence(
                blocks, tokens, per_chunk, (batch, chunks), self.rope, mask, range(chunks)
            )
        else:
            # Clean and noisy chunks as one sequence of 2 T; the mask separates them.
            past = self.embed([x.flatten(0, 1) for x in history], condition.flatten(0, 1))
            past_level = self.level(torch.zeros_like(level)).repeat_interleave(chunks, dim=0)
            both, both_level = (
                torch.cat([x.unflatten(0, (batch, chunks)) for x in pair], dim=1).flatten(0, 1)
                for pair in ((past, tokens), (past_level, per_chunk))
            )
            mask = clean_history_mask(chunks, tokens.shape[1], window)
            places = (*range(chunks), *range(chunks))
            both = run_sequence(
                blocks, both, both_level, (batch, 2 * chunks), self.rope, mask, places
            )
            tokens = both.unflatten(0, (batch, 2 * chunks))[:, chunks:].flatten(0, 1)  # type: ignore[no-untyped-call]
        clean = self.predict_clean(tokens, per_chunk, joints.flatten(0, 1))
        return tuple(x.reshape(batch, chunks, *x.shape[1:]) for x in clean)


def run_sequence(
    blocks: Sequence[Block],
    tokens: Tensor,
    level: Tensor,
    shape: tuple[int, int],
    rope: ChunkRope,
    mask: Tensor,
    places: Sequence[int],
) -> Tensor:
    """All blocks over B sequences of T chunks.

    Args:
        tokens: [B * T, N, dim]. level: encoded, [B * T, dim]. shape: (B, T).
        mask: which tokens attend to which, [T * N, T * N]. places: of each of the T chunks in time.
    """
    batch, chunks = shape
    table = rope.table(tuple(places), tokens.device)
    mask = mask.to(tokens.device)
    for block in blocks:
        modulation = block.split_modulation(block.modulation(level))
        q, k, v = (
            x.reshape(batch, -1, *x.shape[2:]) for x in block.attention_input(tokens, modulation)
        )
        attended = functional.scaled_dot_product_attention(
            apply_rope(q, table).transpose(1, 2),
            apply_rope(k, table).transpose(1, 2),
            v.transpose(1, 2),
            attn_mask=mask,
        ).transpose(1, 2)
        attended = attended.reshape(batch * chunks, -1, *q.shape[2:])
        tokens = block.after_attention(tokens, attended, modulation)
    return tokens


def block_causal_mask(chunks: int, tokens: int, window_chunks: int) -> Tensor:
    """True where the query token may see the key token, [chunks * tokens, chunks * tokens]."""
    number = torch.arange(chunks).repeat_interleave(tokens)
    age = number[:, None] - number[None, :]
    return (age >= 0) & (age < window_chunks)


def clean_history_mask(chunks: int, tokens: int, window_chunks: int) -> Tensor:
    """`block_causal_mask` of clean chunks 0 .. T - 1, then the same chunks noisy.

    A clean chunk sees clean chunks up to itself; a noisy one sees itself, and of the chunks before
    it the clean ones. [2 * chunks * tokens, 2 * chunks * tokens].
    """
    seen = block_causal_mask(chunks, tokens, window_chunks)
    own = block_causal_mask(chunks, tokens, 1)
    clean = torch.cat((seen, torch.zeros_like(seen)), dim=1)
    return torch.cat((clean, torch.cat((seen & ~own, own), dim=1)), dim=0)


def layer_norm(x: Tensor) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:], eps=1e-6)
