"""Copies of KV on their way to the front: never more than one of a stage waits."""

from __future__ import annotations

import threading

import torch

from physis_core.cluster.messages import WindowSaved
from physis_core.model.kv import ChunkKVWindow
from physis_core.worker.snapshot_copies import SnapshotCopies
from physis_core.worker.tensor_arrays import to_tensors

PATIENCE_S = 60.0


class Front:
    """Takes messages when it is let."""

    def __init__(self, blocked=False):
        self.came = []
        self.faults = []
        self.may = threading.Event()
        self.news = threading.Condition()
        if not blocked:
            self.may.set()

    def take(self, message):
        assert self.may.wait(PATIENCE_S)
        with self.news:
            self.came.append(message)
            self.news.notify_all()

    def until(self, count):
        with self.news:
            assert self.news.wait_for(lambda: len(self.came) >= count, PATIENCE_S)


def window(chunks):
    kv = ChunkKVWindow(window_chunks=3, sink_chunks=0, tokens=2, heads=1, head_dim=4)
    for n in range(chunks):
        kv.append(torch.full((2, 1, 4), float(n)), torch.full((2, 1, 4), -float(n)))
    return kv


def test_a_copy_is_of_the_moment_and_restores_the_window(in_flight):
    front = Front(blocked=True)
    copies = SnapshotCopies(1, front.take, front.faults.append)
    kv = window(4)
    wanted = window(4)
    copies.take(in_flight(4, epoch=2), 3, kv)
    kv.append(torch.zeros(2, 1, 4), torch.zeros(2, 1, 4))
    front.may.set()
    front.until(1)
    copies.close()
    (message,) = front.came
    assert isinstance(message, WindowSaved)
    where = (message.stream, message.epoch, message.seq, message.chunk, message.stage)
    assert where == (1, 2, 4, 4, 3)
    again = window(0)
    again.restore(to_tensors(message.saved))
    k, v = torch.ones(2, 1, 4), torch.ones(2, 1, 4)
    ours, theirs = (one.with_current(k, v, True) for one in (again, wanted))
    assert torch.equal(ours[0], theirs[0])
    assert torch.equal(ours[1], theirs[1])
    assert ours[2] == theirs[2]


def test_while_a_copy_waits_the_next_one_of_its_stage_is_left_out(in_flight):
    front = Front(blocked=True)
    copies = SnapshotCopies(1, front.take, front.faults.append)
    kv = window(4)
    copies.take(in_flight(0, epoch=2), 0, kv)
    copies.take(in_flight(1, epoch=2), 0, kv)
    copies.take(in_flight(1, epoch=2), 5, kv)
    assert (copies.taken, copies.skipped) == (2, 1)
    front.may.set()
    front.until(2)
    copies.close()
    assert [m.stage for m in front.came] == [0, 5]
    assert copies.counters()["bytes"] == 2 * sum(a.nbytes for a in front.came[0].saved.values())


def test_an_emulated_stage_has_nothing_to_copy_and_still_says_where_it_is(in_flight):
    front = Front()
    copies = SnapshotCopies(1, front.take, front.faults.append)
    copies.take(in_flight(0, epoch=2), 0, None)
    front.until(1)
    copies.close()
    assert not front.came[0].saved


def test_a_copy_that_cannot_be_sent_is_a_fault_with_its_reason(in_flight, eventually):
    faults = []

    def send(message):
        raise ValueError("no way to write this")

    copies = SnapshotCopies(1, send, faults.append)
    copies.take(in_flight(0, epoch=2), 0, None)
    eventually(lambda: faults)
    assert "physis-snapshots" in faults[0]
    assert "no way to write this" in faults[0]
