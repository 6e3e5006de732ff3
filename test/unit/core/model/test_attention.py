from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from physis_core.model.attention import windowed_attention
from physis_core.model.kv import ChunkKVWindow
from physis_core.model.rope import ChunkRope, apply_rope, rope_angles, rope_turns

torch.set_num_threads(1)
TOKENS, HEADS, HEAD_DIM = 3, 2, 4
ROPE = ChunkRope(positions=torch.arange(TOKENS)[:, None], stride=TOKENS, pairs=(HEAD_DIM // 2,))


def naive(q: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """Softmax written out, positions counted from the oldest chunk that is seen."""
    k, v = torch.cat(keys), torch.cat(values)
    turns = rope_turns(rope_angles(torch.arange(len(k))[:, None], (HEAD_DIM // 2,)))
    k, q = apply_rope(k, turns), apply_rope(q, turns[-TOKENS:])
    weights = torch.einsum("thd,shd->hts", q, k).div(HEAD_DIM**0.5).softmax(dim=-1)
    return torch.einsum("hts,shd->thd", weights, v)


@settings(max_examples=40, deadline=None)
@given(
    window=st.integers(1, 5).flatmap(lambda h: st.tuples(st.just(h), st.integers(0, h - 1))),
    fills=st.lists(st.integers(0, 9), min_size=1, max_size=4),
    write=st.booleans(),
)
def test_each_row_sees_its_own_window_and_nothing_else(
    window: tuple[int, int], fills: list[int], write: bool
) -> None:
    generator = torch.Generator().manual_seed(sum(fills))
    chunks, sink = window
    windows, past = [], []
    for fill in fills:
        kv = ChunkKVWindow(
            window_chunks=chunks,
            sink_chunks=sink,
            tokens=TOKENS,
            heads=HEADS,
            head_dim=HEAD_DIM,
        )
        kept = [
            tuple(torch.randn(2, TOKENS, HEADS, HEAD_DIM, generator=generator)) for _ in range(fill)
        ]
        for k, v in kept:
            kv.append(k, v)
        windows.append(kv)
        rolling = kept[sink:]
        room = chunks - sink - 1
        past.append(kept[:sink] + (rolling[-room:] if room else []))
    q, k, v = torch.randn(3, len(fills), TOKENS, HEADS, HEAD_DIM, generator=generator)
    out = windowed_attention(q, k, v, windows, [write] * len(fills), ROPE)
    for row, before in enumerate(past):
        seen = [*before, (k[row], v[row])]
        wanted = naive(q[row], [x for x, _ in seen], [x for _, x in seen])
        torch.testing.assert_close(out[row], wanted, rtol=1e-4, atol=1e-5)
        assert windows[row].kept_chunks == fills[row] + write
