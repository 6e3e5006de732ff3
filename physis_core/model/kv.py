"""The KV of one (stream, step, block): a rolling window of chunks in memory that never grows.

Slots 0 .. sink - 1 hold the stream's first chunks for ever; the other R = H - sink slots are a
ring. Chunk c attends to the sinks, to the R - 1 chunks before it and to itself: H chunks in all.
Its slot is that of chunk c - R, which no later chunk reads. The current chunk is therefore always
written to that slot, kept or not, and attention reads one contiguous view without a copy.

Keys are kept before RoPE. Their positions are given anew at each call, counted from the window's
start, so that they stay below H however long the stream runs.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from physis_core.model.config import check_window
from physis_core.types import UserError


def window_bytes(
    *,
    window_chunks: int,
    tokens: int,
    heads: int,
    head_dim: int,
    dtype: torch.dtype = torch.float32,
) -> int:
    """Bytes that a `ChunkKVWindow` of this shape takes, without making one."""
    return 2 * window_chunks * tokens * heads * head_dim * dtype.itemsize


class ChunkKVWindow:
    """Implements `KVWindow`. Not thread-safe: one rank owns it.

    Args:
        window_chunks: H, the chunks that attention sees, the current one included.
        sink_chunks: how many of the stream's first chunks are never evicted.
        tokens: tokens of one chunk.

    Raises:
        UserError: window or sink out of range.
    """

    def __init__(
        self,
        *,
        window_chunks: int,
        sink_chunks: int,
        tokens: int,
        heads: int,
        head_dim: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        check_window(window_chunks, sink_chunks)
        self._window = window_chunks
        self._sink = sink_chunks
        self._ring = window_chunks - sink_chunks
        self._shape = (tokens, heads, head_dim)
        # [2, H, tokens, heads, head_dim]. Zeros, so that the memory is taken at the start.
        self._kv = torch.zeros((2, window_chunks, *self._shape), dtype=dtype, device=device)
        self._bytes = self._kv.numel() * self._kv.element_size()
        self._kept = 0

    @property
    def bytes(self) -> int:
        return self._bytes

    @property
    def kept_chunks(self) -> int:
        """Chunks that were kept since the stream's start, evicted ones included."""
        return self._kept

    def reset(self) -> None:
        self._kept = 0

    def with_current(
        self, k: Tensor, v: Tensor, write: bool
    ) -> tuple[Tensor, Tensor, tuple[int, ...]]:
        """K and V of the window with the current chunk in it.

        Args:
            k, v: the current chunk, [tokens, heads, head_dim], k before RoPE.
            write: keep the chunk. Otherwise it takes part in this attention alone.

        Returns:
            K and V [n * tokens, heads, head_dim] for n <= H chunks, and the position of each of the
            n chunks in the window (0 = the oldest, n - 1 = the current one). The chunks lie in slot
            order, so the positions are a rotation rather than a plain range once the ring has
            turned. K and V are views: valid until the next call.
        """
        assert tuple(k.shape) == tuple(v.shape) == self._shape, (k.shape, v.shape, self._shape)
        current = self._kept
        slot = self._slot(current)
        self._kv[0, slot].copy_(k)
        self._kv[1, slot].copy_(v)
        chunks = min(current + 1, self._window)
        positions = tuple(self._position(s, current) for s in range(chunks))
        if write:
            self._kept = current + 1
        assert self._kv.numel() * self._kv.element_size() == self._bytes
        return self._kv[0, :chunks].flatten(0, 1), self._kv[1, :chunks].flatten(0, 1), positions

    def append(self, k: Tensor, v: Tensor) -> None:
        """Keep a chunk without attending."""
        self.with_current(k, v, write=True)

    def snapshot(self) -> dict[str, Tensor]:
        """What the next chunk reads: `kv` [2, n, tokens, heads, head_dim], oldest first; `kept`."""
        slots = [self._slot(c) for c in self._visible_past()]
        # A list as index makes the copy.
        return {"kv": self._kv[:, slots], "kept": torch.tensor(self._kept)}

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        """Raises UserError where the snapshot is of another shape; the window is then unchanged."""
        kept = int(saved["kept"])
        before = self._kept
        self._kept = kept
        past = self._visible_past()
        self._kept = before
        shape = (2, len(past), *self._shape)
        if tuple(saved["kv"].shape) != shape:
            raise UserError("kv", tuple(saved["kv"].shape), f"the window needs {shape}")
        self._kept = kept
        self._kv[:, [self._slot(c) for c in past]] = saved["kv"].to(self._kv)

    def _visible_past(self) -> tuple[int, ...]:
        """Chunks that the next chunk attends to beside itself, oldest first."""
        current = self._kept
        first_rolling = max(self._sink, current - (self._ring - 1))
        return (*range(min(current, self._sink)), *range(first_rolling, current))

    def _slot(self, chunk: int) -> int:
        if chunk < self._sink:
            return chunk
        return self._sink + (chunk - self._sink) % self._ring

    def _position(self, slot: int, current: int) -> int:
        """Place in the window of what lies in `slot` while `current` is the newest chunk."""
        if current < self._window or slot < self._sink:
            return slot
        # The ring's oldest chunk lies just after the newest.
        age = (self._slot(current) - slot) % self._ring
        return self._window - 1 - age
