"""Rotary position embedding with explicit positions: no table of a fixed length to run out of.

Adjacent channels (2i, 2i + 1) form a complex pair, as in Wan. Angles are computed in float64,
because float32 angles of late positions lose the digits that matter, and then stored as complex64.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def rope_angles(positions: Tensor, pairs: Sequence[int], theta: float = 10000.0) -> Tensor:
    """Angles [N, sum(pairs)] in float64 of positions [N, A] with pairs[a] complex pairs on axis a.

    Axis a turns pair i of its n by position / theta^(i/n), as if it were a head of 2n channels by
    itself.
    """
    assert positions.shape[1:] == (len(pairs),), (positions.shape, pairs)
    parts = []
    for axis, count in enumerate(pairs):
        exponent = torch.arange(count, dtype=torch.float64) / max(count, 1)
        parts.append(positions[:, axis, None].to(torch.float64) * theta**-exponent)
    return torch.cat(parts, dim=1)


def grid_positions(frames: int, height: int, width: int) -> Tensor:
    """(frame, height, width) of a chunk's tokens, [frames * height * width, 3], width fastest."""
    axes = (torch.arange(frames), torch.arange(height), torch.arange(width))
    return torch.cartesian_prod(*axes).reshape(-1, 3)


def rope_turns(angles: Tensor) -> Tensor:
    """e^(i * angle) as complex64."""
    return torch.polar(torch.ones_like(angles), angles).to(torch.complex64)


def apply_rope(x: Tensor, turns: Tensor) -> Tensor:
    """Rotate x [..., N, heads, head_dim] by `rope_turns` [N, head_dim / 2], in float32 at least.

    As one complex product: on a CPU it takes an eighth of the time of the four real ones.
    """
    exact = x.to(torch.promote_types(x.dtype, torch.float32))
    pairs = torch.view_as_complex(exact.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns.unsqueeze(-2)).flatten(-2).to(x.dtype)


class ChunkRope:
    """Tables for the tokens of chunks that stand at given places of a window.

    Args:
        positions: of the tokens of a chunk at place 0, [tokens, A]; axis 0 is time.
        stride: how far the next chunk lies on axis 0.
        pairs: complex pairs of each axis; their sum is head_dim / 2.

    `ChunkRope(positions=torch.arange(T)[:, None], stride=T, pairs=(head_dim // 2,))` is plain 1-D
    RoPE; `ChunkRope(positions=grid_positions(F, h, w), stride=F, pairs=split_pairs_3d(head_dim))`
    is Wan's.
    """

    def __init__(
        self, *, positions: Tensor, stride: int, pairs: Sequence[int], theta: float = 10000.0
    ) -> None:
        self._positions = positions
        self._stride = stride
        self._pairs = tuple(pairs)
        self._theta = theta
        # At most H + (H - sink) different arrangements of a window exist, so this stays small.
        self._tables: dict[tuple[tuple[int, ...], str], Tensor] = {}

    def table(self, chunks: tuple[int, ...], device: torch.device | str = "cpu") -> Tensor:
        """`rope_turns` [len(chunks) * tokens, head_dim / 2] of chunks at these places."""
        key = (chunks, str(device))
        found = self._tables.get(key)
        if found is None:
            # A table made under inference_mode could not be used for training later.
            with torch.inference_mode(False):
                offset = torch.zeros(len(self._pairs), dtype=self._positions.dtype)
                offset[0] = self._stride
                places = torch.cat([self._positions + chunk * offset for chunk in chunks])
                found = rope_turns(rope_angles(places, self._pairs, self._theta)).to(device)
            self._tables[key] = found
        return found
