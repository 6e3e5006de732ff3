"""A world's time: no stretch twice, none in silence; frames one after the other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from physis_ros.world.clock import FrameSpread, FreeClock


@given(looks=st.lists(st.integers(0, 500), min_size=1, max_size=60))
def test_a_free_world_depicts_every_stretch_once_or_counts_it(looks: list[int]) -> None:
    clock = FreeClock(chunk_ns=100, next_ns=0)
    now, depicted = 0, []
    for wait in looks:
        now += wait
        while (first := clock.due(now)) is not None:
            assert first <= now
            # A chunk that is older than two when it starts was skipped instead.
            assert now - first < 2 * 100 + 100
            depicted.append(first)
    assert depicted == sorted(set(depicted))
    assert all(first % 100 == 0 for first in depicted)
    assert len(depicted) + clock.skipped == clock.next_ns // 100


def test_after_a_jump_it_goes_on_from_there() -> None:
    clock = FreeClock(chunk_ns=100, next_ns=1000)
    clock.jumped(50)
    assert clock.due(49) is None
    assert clock.due(50) == 50


@given(
    gap_ms=st.integers(0, 40),
    polls_ms=st.lists(st.integers(1, 30), min_size=1, max_size=200),
)
def test_frames_do_not_leave_faster_than_the_gap_over_any_stretch(
    gap_ms: int, polls_ms: list[int]
) -> None:
    gap_s = gap_ms / 1e3
    spread = FrameSpread(gap_s=gap_s)
    now_s, left = 0.0, []
    for wait in polls_ms:
        now_s += wait / 1e3
        if spread.may_leave(now_s):
            left.append(now_s)
    for i, begin in enumerate(left):
        for k, end in enumerate(left[i:]):
            # A poll late by up to a gap may be caught up with, never more.
            assert end - begin >= (k - 1) * gap_s - 1e-9
