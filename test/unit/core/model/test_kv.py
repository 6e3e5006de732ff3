from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from physis_core.model.kv import ChunkKVWindow, window_bytes
from physis_core.types import UserError

TOKENS, HEADS, HEAD_DIM = 2, 1, 2


def chunk(value: float) -> tuple[torch.Tensor, torch.Tensor]:
    k = torch.full((TOKENS, HEADS, HEAD_DIM), value)
    return k, -k


def window(window_chunks: int, sink_chunks: int) -> ChunkKVWindow:
    return ChunkKVWindow(
        window_chunks=window_chunks,
        sink_chunks=sink_chunks,
        tokens=TOKENS,
        heads=HEADS,
        head_dim=HEAD_DIM,
    )


def in_order(k_all: torch.Tensor, v_all: torch.Tensor, positions: tuple[int, ...]) -> list[float]:
    """Values of the chunks, oldest first. Every token of a chunk, and its V, must belong to it."""
    k = k_all.reshape(len(positions), -1)
    v = v_all.reshape(len(positions), -1)
    assert torch.equal(k, -v)
    assert (k == k[:, :1]).all()
    assert sorted(positions) == list(range(len(positions)))
    return [float(k[positions.index(p), 0]) for p in range(len(positions))]


@settings(max_examples=120, deadline=None)
@given(
    shape=st.integers(1, 7).flatmap(lambda h: st.tuples(st.just(h), st.integers(0, h - 1))),
    writes=st.lists(st.one_of(st.booleans(), st.just("save")), max_size=40),
)
def test_window_equals_a_list_of_chunks(shape: tuple[int, int], writes: list[bool | str]) -> None:
    window_chunks, sink = shape
    kv = window(window_chunks, sink)
    size = kv.bytes
    kept: list[float] = []
    for number, write in enumerate(writes):
        if write == "save":
            other = window(window_chunks, sink)
            other.append(*chunk(1e6))
            other.restore(kv.snapshot())
            kv = other
            continue
        value = float(number + 1)
        ring = window_chunks - sink
        rolling = kept[sink:]
        past = kept[:sink] + (rolling[-(ring - 1) :] if ring > 1 else [])
        got = in_order(*kv.with_current(*chunk(value), write=bool(write)))
        assert got == [*past, value]
        if write:
            kept.append(value)
        assert kv.kept_chunks == len(kept)
        assert (
            kv.bytes
            == size
            == window_bytes(
                window_chunks=window_chunks, tokens=TOKENS, heads=HEADS, head_dim=HEAD_DIM
            )
        )


def test_views_share_the_windows_memory_over_ten_thousand_chunks() -> None:
    kv = window(5, 1)
    places = set()
    for number in range(10_000):
        k_all, v_all, positions = kv.with_current(*chunk(float(number)), write=True)
        places.add((k_all.data_ptr(), v_all.data_ptr()))
        assert max(positions) <= 4
    assert len(places) == 1
    assert in_order(k_all, v_all, positions) == [0.0, 9996.0, 9997.0, 9998.0, 9999.0]


def test_reset_forgets_everything() -> None:
    kv = window(3, 1)
    for number in range(5):
        kv.append(*chunk(float(number)))
    kv.reset()
    assert in_order(*kv.with_current(*chunk(9.0), write=False)) == [9.0]


def test_snapshot_is_a_copy() -> None:
    kv = window(3, 0)
    kv.append(*chunk(1.0))
    saved = kv.snapshot()
    for number in range(2, 6):
        kv.append(*chunk(float(number)))
    kv.restore(saved)
    assert in_order(*kv.with_current(*chunk(7.0), write=True)) == [1.0, 7.0]


@pytest.mark.parametrize(("window_chunks", "sink"), [(0, 0), (3, 3), (3, -1)])
def test_bad_window_is_refused(window_chunks: int, sink: int) -> None:
    with pytest.raises(UserError):
        window(window_chunks, sink)


def test_restore_of_another_shape_is_refused_and_changes_nothing() -> None:
    kv = window(3, 0)
    kv.append(*chunk(1.0))
    other = window(5, 0)
    for number in range(5):
        other.append(*chunk(float(number)))
    with pytest.raises(UserError, match="kv"):
        kv.restore(other.snapshot())
    assert in_order(*kv.with_current(*chunk(2.0), write=True)) == [1.0, 2.0]
