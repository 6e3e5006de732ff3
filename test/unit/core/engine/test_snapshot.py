"""The shelf of snapshots: the newest boundary of which all copies have come."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from physis_core.engine.way_back import SnapshotShelf

STAGES = (0, 1, 2)


def copy_of(seq, stage):
    return {"kv": np.full(4, seq * 10 + stage)}


def put(shelf, seq, stage, epoch=0):
    shelf.add(epoch=epoch, seq=seq, chunk_id=seq + 100, stage=stage, saved=copy_of(seq, stage))


def test_a_boundary_counts_only_when_every_stage_has_sent_its_copy():
    shelf = SnapshotShelf(STAGES)
    put(shelf, 3, 0)
    put(shelf, 3, 1)
    assert shelf.newest is None
    put(shelf, 3, 2)
    assert (shelf.newest.seq, shelf.newest.chunk_id) == (3, 103)
    assert shelf.newest.bytes == 3 * copy_of(3, 0)["kv"].nbytes
    put(shelf, 7, 0)
    assert shelf.newest.seq == 3


def test_a_new_epoch_comes_after_the_old_one_whatever_its_numbers():
    shelf = SnapshotShelf(STAGES)
    for epoch, seq in ((0, 9), (1, 1)):
        for stage in STAGES:
            put(shelf, seq, stage, epoch)
    assert (shelf.newest.epoch, shelf.newest.seq) == (1, 1)
    put(shelf, 11, 0, epoch=0)
    assert shelf.newest.epoch == 1


def test_after_a_loss_open_boundaries_are_void_and_the_whole_one_stays():
    shelf = SnapshotShelf(STAGES)
    for stage in STAGES:
        put(shelf, 1, stage)
    put(shelf, 3, 0)
    put(shelf, 3, 1)
    shelf.drop_open()
    put(shelf, 3, 2)
    assert shelf.newest.seq == 1
    shelf.forget()
    assert shelf.newest is None


@settings(deadline=None)
@given(st.permutations([(seq, stage) for seq in range(6) for stage in STAGES]), st.integers(0, 18))
def test_the_newest_is_whole_of_one_boundary_and_memory_is_bounded(order, count):
    shelf = SnapshotShelf(STAGES)
    came = set()
    for seq, stage in order[:count]:
        put(shelf, seq, stage)
        came.add((seq, stage))
        assert len(shelf._open) <= 4
    if shelf.newest is not None:
        seq = shelf.newest.seq
        assert set(shelf.newest.windows) == set(STAGES)
        assert all((seq, stage) in came for stage in STAGES)
        for stage, saved in shelf.newest.windows.items():
            np.testing.assert_array_equal(saved["kv"], copy_of(seq, stage)["kv"])
