"""Self-attention of chunks over their KV windows; the rows of a batch are strangers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from physis_core.model.kv import ChunkKVWindow
from physis_core.model.protocol import KVWindow
from physis_core.model.rope import ChunkRope, apply_rope


def windowed_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    windows: Sequence[KVWindow],
    write: Sequence[bool],
    rope: ChunkRope,
) -> Tensor:
    """Attend q, k, v [B, tokens, heads, head_dim] (q, k before RoPE) over each row's own window.

    Rows whose windows hold equally many chunks share one attention call; nothing is padded, so a
    row's result does not depend on how full its neighbours' windows are. Where write[i], window i
    keeps k, v.
    Returns [B, tokens, heads, head_dim].
    """
    assert len({id(window) for window in windows}) == len(windows) == q.shape[0]
    queries: dict[int, list[tuple[int, Tensor, Tensor]]] = {}
    for row, window in enumerate(windows):
        assert isinstance(window, ChunkKVWindow), type(window)
        keys, values, chunks = window.with_current(k[row], v[row], write[row])
        turned = apply_rope(keys, rope.table(chunks, q.device))
        queries.setdefault(len(chunks), []).append((row, turned, values))
    out = torch.empty_like(q)
    for chunks_seen, members in queries.items():
        rows = [row for row, _, _ in members]
        current = rope.table((chunks_seen - 1,), q.device)
        attended = functional.scaled_dot_product_attention(
            apply_rope(q[rows], current).transpose(1, 2),
            _stack([keys for _, keys, _ in members]).transpose(1, 2).to(q.dtype),
            _stack([values for _, _, values in members]).transpose(1, 2).to(q.dtype),
        )
        out[rows] = attended.transpose(1, 2)
    return out


def _stack(rows: list[Tensor]) -> Tensor:
    """Without a copy where there is one row: the window may be the largest tensor of all."""
    return rows[0].unsqueeze(0) if len(rows) == 1 else torch.stack(rows)
