"""Both ends of an edge in one process, over real sockets."""

from __future__ import annotations

import threading

import pytest
import torch
from torch.distributed import TCPStore

from physis_core.deployment.deployment import simple_deployment
from physis_core.engine.engine import Engine
from physis_core.model.loading import load_spec
from physis_core.model.registry import ModelRef
from physis_core.types import UserError
from physis_core.worker.links.envelope import ENVELOPE_BYTES
from physis_core.worker.links.gloo import GlooReceiver, GlooSender, edge_group
from physis_core.worker.links.link import PayloadLayout, check_link

SPEC = load_spec(ModelRef(family="synthetic", config={"extra_stream_tokens": 3}))
PATIENCE_S = 60.0


class Edge:
    """A sender and a receiver of one edge; what came is kept in order."""

    def __init__(self, size, layout):
        store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
        peer = TCPStore("127.0.0.1", store.port, None, False)
        groups = [None, None]

        def other():
            groups[1] = edge_group(peer, "edge", 1, "127.0.0.1")

        thread = threading.Thread(target=other)
        thread.start()
        groups[0] = edge_group(store, "edge", 0, "127.0.0.1")
        thread.join()
        self.news = threading.Condition()
        self.chunks, self.credits, self.lost, self.faults = [], [], [], []
        self.sender = GlooSender(
            groups[0],
            size,
            layout,
            on_credits=lambda given: self._add(self.credits, given),
            on_lost=lambda reason: self._add(self.lost, [reason]),
            on_fault=lambda reason: self._add(self.faults, [reason]),
        )
        self.receiver = GlooReceiver(
            groups[1],
            size,
            layout,
            on_chunk=lambda chunk: self._add(self.chunks, [chunk]),
            on_lost=lambda reason: self._add(self.lost, [reason]),
            on_fault=lambda reason: self._add(self.faults, [reason]),
        )
        self.keep = (store, peer)

    def _add(self, to, what):
        with self.news:
            to.extend(what)
            self.news.notify_all()

    def until(self, holds):
        with self.news:
            assert self.news.wait_for(holds, PATIENCE_S)


def random_payload(specs, number):
    generator = torch.Generator().manual_seed(number)
    return tuple(torch.randn(1, *s.shape, generator=generator).to(s.dtype) for s in specs)


def test_payloads_of_both_kinds_cross_one_edge_bit_for_bit_and_in_order(in_flight):
    layout = PayloadLayout([SPEC])
    # A block partition's ring: to block 2 goes hidden, to the next step's block 0 latent.
    stages = [2, SPEC.blocks]
    edge = Edge(layout.bytes_for([(0, stage) for stage in stages]), layout)
    kinds = [SPEC.hidden, SPEC.latent]
    for number in range(40):
        edge.sender.send(
            in_flight(number, payload=random_payload(kinds[number % 2], number)), stages[number % 2]
        )
    edge.until(lambda: len(edge.chunks) == 40)
    for number, came in enumerate(edge.chunks):
        assert (came.seq, came.stage) == (number, stages[number % 2])
        wanted = random_payload(kinds[number % 2], number)
        assert len(came.payload) == len(wanted)
        for given, part in zip(came.payload, wanted):
            assert torch.equal(given, part)
    assert edge.sender.messages == 40
    edge.sender.close()
    edge.receiver.close()
    assert not edge.lost


def test_credits_come_back_and_buffers_are_used_again(in_flight):
    edge = Edge(ENVELOPE_BYTES, None)
    for number in range(100):
        edge.sender.send(in_flight(number), 1)
        edge.until(lambda number=number: len(edge.chunks) == number + 1)
        edge.receiver.give_credit(1, 0, 1)
        edge.receiver.flush()
        edge.until(lambda number=number: len(edge.credits) == number + 1)
    assert edge.credits[0] == (1, 0, 1)
    assert len(edge.sender._free) + len(edge.sender._sent) <= 3


def test_many_credits_of_one_turn_are_not_lost():
    edge = Edge(ENVELOPE_BYTES, None)
    for number in range(100):
        edge.receiver.give_credit(number, 0, 1)
    edge.receiver.flush()
    edge.until(lambda: len(edge.credits) == 100)
    assert [c[0] for c in edge.credits] == list(range(100))


def test_a_closed_edge_is_not_a_lost_one_and_sends_nothing_more():
    edge = Edge(ENVELOPE_BYTES, None)
    edge.sender.close()
    edge.receiver.close()
    edge.receiver._thread.join(PATIENCE_S)
    edge.sender._thread.join(PATIENCE_S)
    assert not edge.receiver._thread.is_alive()
    assert not edge.sender._thread.is_alive()
    assert not edge.lost


@pytest.mark.skipif(torch.cuda.is_available(), reason="has CUDA devices")
def test_nccl_without_cuda_is_refused_in_one_line():
    with pytest.raises(UserError, match="nccl"):
        check_link("nccl")
    ref = ModelRef(family="synthetic", config={})
    deployment = simple_deployment(ref, partition="block", devices=2, workers=2, link="nccl")
    with pytest.raises(UserError, match="link"):
        Engine(deployment, on_chunk=lambda c: None).start(PATIENCE_S)


def test_a_receiving_thread_that_fails_says_so(in_flight):
    edge = Edge(ENVELOPE_BYTES, None)

    def broken(chunk):
        raise ArithmeticError("no place for this chunk")

    edge.receiver._on_chunk = broken
    edge.sender.send(in_flight(0), 1)
    edge.until(lambda: edge.faults)
    assert "physis-chunks: ArithmeticError: no place for this chunk" in edge.faults[0]
    assert not edge.lost
