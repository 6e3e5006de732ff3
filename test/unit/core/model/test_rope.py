from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from physis_core.model.config import split_pairs_3d
from physis_core.model.rope import (
    ChunkRope,
    apply_rope,
    grid_positions,
    rope_angles,
    rope_turns,
)
from physis_core.types import UserError


def test_wan_split() -> None:
    assert split_pairs_3d(128) == (22, 21, 21)
    assert split_pairs_3d(12) == (2, 2, 2)
    with pytest.raises(UserError):
        split_pairs_3d(7)


@settings(max_examples=50, deadline=None)
@given(
    q_at=st.integers(0, 2_000_000),
    k_at=st.integers(0, 2_000_000),
    shift=st.integers(0, 2_000_000),
)
def test_scores_depend_on_the_distance_alone_at_any_position(
    q_at: int, k_at: int, shift: int
) -> None:
    generator = torch.Generator().manual_seed(q_at)
    q, k = torch.randn(2, 1, 1, 8, generator=generator, dtype=torch.float64)

    def score(a: int, b: int) -> float:
        tables = [rope_angles(torch.tensor([[p]]), (4,)) for p in (a, b)]
        turned = [
            apply_rope(x, torch.polar(torch.ones_like(t), t))
            for x, t in zip((q, k), tables, strict=True)
        ]
        return float((turned[0] * turned[1]).sum())

    assert math.isclose(score(q_at, k_at), score(q_at + shift, k_at + shift), abs_tol=1e-8)


def test_axes_turn_their_own_pairs_only() -> None:
    pairs = split_pairs_3d(12)
    angles = rope_angles(torch.tensor([[3, 0, 0], [0, 3, 0], [0, 0, 3]]), pairs)
    for axis in range(3):
        own = torch.zeros(6, dtype=torch.bool)
        own[sum(pairs[:axis]) : sum(pairs[: axis + 1])] = True
        assert (angles[axis][own] != 0).all()
        assert (angles[axis][~own] == 0).all()


def test_rotation_keeps_length_and_dtype() -> None:
    x = torch.randn(2, 5, 3, 8, generator=torch.Generator().manual_seed(0))
    angles = rope_angles(torch.arange(5)[:, None], (4,))
    turns = rope_turns(angles)
    assert apply_rope(x.bfloat16(), turns).dtype == torch.bfloat16
    assert apply_rope(x.double(), turns).dtype == torch.float64
    z = apply_rope(x, turns)
    torch.testing.assert_close(z.norm(dim=-1), x.norm(dim=-1))
    torch.testing.assert_close(z[:, 0], x[:, 0])
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    torch.testing.assert_close(z[..., 0::2], (x[..., 0::2] * cos - x[..., 1::2] * sin).float())
    torch.testing.assert_close(z[..., 1::2], (x[..., 0::2] * sin + x[..., 1::2] * cos).float())


def test_chunk_tables_continue_one_long_sequence() -> None:
    rope = ChunkRope(positions=grid_positions(3, 2, 2), stride=3, pairs=split_pairs_3d(12))
    long = rope_angles(grid_positions(12, 2, 2), split_pairs_3d(12))
    with torch.inference_mode():
        turns = rope.table((2, 0, 3))
    assert not turns.is_inference()
    rows = torch.cat([torch.arange(c * 12, (c + 1) * 12) for c in (2, 0, 3)])
    torch.testing.assert_close(turns, rope_turns(long)[rows])
