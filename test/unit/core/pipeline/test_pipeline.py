"""The pipeline as a state machine: what may start, what moves on, and where credits go."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from physis_core.pipeline.costs import CostTable
from physis_core.pipeline.partition import make_partition
from physis_core.pipeline.pipeline import Batch, Credit, Pipeline, WaitUntil
from physis_core.pipeline.stages import Device, Goes, InFlight, Layout
from physis_core.types import KVMode, StageGraph

COSTS = CostTable({block: {1: 1.0, 2: 1.2, 4: 1.6} for block in range(4)})


def layout(device_of: tuple[int, ...], steps: int = 1, kv: KVMode = "noisy") -> Layout:
    passes = steps + (kv == "clean")
    blocks = len(device_of) // passes
    return Layout(
        graph=StageGraph(steps=steps, blocks=blocks, kv=kv),
        device_of=device_of,
        blocks=range(blocks),
        block_s=[0.5 + block for block in range(blocks)],
    )


def pipeline(*devices: int, credits: int = 2, max_batch: int = 1, **options: bool) -> Pipeline:
    here = {index: Device(index, COSTS) for index in devices}
    return Pipeline(here, credits=credits, max_batch=max_batch, **options)


def opened(pipe: Pipeline, plan: Layout, handle: int = 0, epoch: int = 0) -> None:
    pipe.open(handle, epoch=epoch, priority=0, layout=plan).versions.add(0)


def chunk(seq: int, stream: int = 0, epoch: int = 0, **changes: int) -> InFlight:
    places = dict.fromkeys(("stage", "block", "step"), 0)
    return InFlight(
        **{**places, **changes},  # type: ignore[arg-type]
        stream=stream,
        epoch=epoch,
        seq=seq,
        chunk_id=seq,
        deadline_s=100.0 + seq,
        ready_s=0.0,
    )


def started(pipe: Pipeline, index: int, now_s: float = 0.0) -> Batch:
    batch = pipe.start(pipe.devices[index], now_s)
    assert isinstance(batch, Batch)
    return batch


def finished(pipe: Pipeline, index: int, now_s: float = 0.0) -> list[Goes]:
    device = pipe.devices[index]
    goes = [pipe.move_on(task, now_s) for task in pipe.finish(device, now_s)]
    pipe.touch(device)
    return goes


def test_a_chunk_walks_its_stages_and_leaves() -> None:
    pipe = pipeline(0)
    opened(pipe, layout((0, 0)))
    assert pipe.enter(chunk(0), 1.0)
    assert pipe.next_device() is pipe.devices[0]
    assert [t.stage for t in started(pipe, 0, 1.0).tasks] == [0]
    assert pipe.next_device() is None
    assert finished(pipe, 0, 2.0) == [Goes.QUEUE]
    assert pipe.next_device() is pipe.devices[0]
    (task,) = started(pipe, 0, 2.0).tasks
    assert (task.stage, task.block, task.ready_s) == (1, 1, 2.0)
    assert task.slot.exits
    assert finished(pipe, 0, 3.0) == [Goes.OUT]
    assert pipe.start(pipe.devices[0], 3.0) is None
    assert pipe.devices[0].batches == 2


def test_the_next_chunk_waits_for_the_kv_of_the_one_before_it() -> None:
    pipe = pipeline(0, max_batch=4)
    opened(pipe, layout((0, 0)))
    for seq in range(2):
        pipe.enter(chunk(seq), 0.0)
    # Both wait at stage 0: one batch never holds two chunks of one stage.
    assert [t.seq for t in started(pipe, 0).tasks] == [0]
    finished(pipe, 0)
    assert {slot.stage for slot in pipe.devices[0].waiting} == {0, 1}


def test_a_clean_chunk_waits_until_the_one_before_has_rewritten_the_kv() -> None:
    pipe = pipeline(0)
    opened(pipe, layout((0, 0), kv="clean"))
    for seq in range(2):
        pipe.enter(chunk(seq), 0.0)
    order = []
    for _ in range(4):
        (task,) = started(pipe, 0).tasks
        order.append((task.seq, task.stage, task.slot.writes, task.slot.exits))
        finished(pipe, 0)
    assert order == [(0, 0, False, True), (0, 1, True, False)] + [
        (1, 0, False, True),
        (1, 1, True, False),
    ]


def test_a_start_on_the_next_device_gives_the_credit_back() -> None:
    pipe = pipeline(0, 1, credits=1)
    opened(pipe, layout((0, 1)))
    for seq in range(2):
        pipe.enter(chunk(seq), 0.0)
    started(pipe, 0)
    assert pipe.places_taken() == 1
    assert finished(pipe, 0) == [Goes.QUEUE]
    assert pipe.start(pipe.devices[0], 5.0) is None
    started(pipe, 1, 7.0)
    assert pipe.places_taken() == 0
    batch = started(pipe, 0, 7.0)
    slot = batch.tasks[0].slot
    assert (slot.blocked_s, slot.credited_s) == (2.0, 7.0)


def test_over_a_link_the_driver_carries_chunks_and_credits() -> None:
    first, second = pipeline(0, credits=1), pipeline(1, credits=1)
    plan = layout((0, 1))
    numbers = [pipe.add_link(0, 1) for pipe in (first, second)]
    for pipe in (first, second):
        opened(pipe, plan)
    first.enter(chunk(0), 0.0)
    (task,) = started(first, 0).tasks
    assert finished(first, 0) == [Goes.LINK]
    assert (task.stage, task.slot.link) == (1, numbers[0])
    assert second.arrive(task, 1.0)
    batch = started(second, 1)
    assert batch.credits == (Credit(numbers[1], 0, 0, 1),)
    assert first.places_taken() == 1
    first.take_credit(0, 0, 1, 2.0)
    assert first.places_taken() == 0
    assert finished(second, 1) == [Goes.OUT]


def test_what_belongs_to_another_epoch_or_stream_is_too_late() -> None:
    pipe = pipeline(0, 1)
    pipe.add_link(0, 1)
    opened(pipe, layout((0, 1)))
    pipe.restart(0, 1)
    assert not pipe.arrive(chunk(0, epoch=0, stage=1), 0.0)
    assert not pipe.arrive(chunk(0, stream=7), 0.0)
    pipe.take_credit(0, 0, 1, 0.0)
    pipe.take_credit(7, 0, 1, 0.0)
    assert pipe.places_taken() == 0
    assert pipe.close(0)
    assert not pipe.close(0)
    assert not pipe.arrive(chunk(0, epoch=1), 0.0)


def test_a_batch_whose_stream_ended_meanwhile_moves_nobody() -> None:
    pipe = pipeline(0, max_batch=4)
    for handle in range(2):
        opened(pipe, layout((0,)), handle)
        pipe.enter(chunk(0, stream=handle), 0.0)
    assert len(started(pipe, 0).tasks) == 2
    pipe.restart(1, 1)
    device = pipe.devices[0]
    assert [task.stream for task in pipe.finish(device, 1.0)] == [0]


def test_a_chunk_waits_for_its_condition() -> None:
    pipe = pipeline(0)
    opened(pipe, layout((0,)))
    pipe.enter(chunk(0, version=1), 0.0)
    assert pipe.start(pipe.devices[0], 0.0) is None
    pipe.streams[0].versions.add(1)
    assert started(pipe, 0).tasks


def test_a_stalled_device_says_when_to_ask_again() -> None:
    pipe = pipeline(0)
    opened(pipe, layout((0,)))
    device = pipe.devices[0]
    device.stalled_until_s = 3.0
    assert pipe.start(device, 0.0) is None
    pipe.enter(chunk(0), 0.0)
    assert pipe.start(device, 1.0) == WaitUntil(3.0)
    assert started(pipe, 0, 3.0).tasks


def test_a_stream_keeps_its_link_until_it_is_restarted() -> None:
    pipe = pipeline(0)
    old = pipe.add_link(0, 1)
    opened(pipe, layout((0, 1)))
    new = pipe.add_link(0, 1)
    assert pipe.streams[0].slots[0].link == old
    pipe.restart(0, 1)
    assert pipe.streams[0].slots[0].link == new


def test_a_stage_that_leads_nowhere_opens_nothing() -> None:
    pipe = pipeline(0)
    with pytest.raises(KeyError):
        opened(pipe, layout((0, 1)))
    assert not pipe.streams


def test_what_remains_counts_stages_elsewhere_until_the_exit() -> None:
    pipe = pipeline(0)
    pipe.add_link(0, 1)
    pipe.add_link(1, 0)
    opened(pipe, layout((0, 1, 0, 1), steps=2))
    slots = pipe.streams[0].slots
    assert {stage: slot.remaining_s for stage, slot in slots.items()} == {0: 3.5, 2: 1.5}


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(["sequential", "step", "block", "stage", "grouped"]),
    devices=st.integers(1, 4),
    steps=st.integers(1, 3),
    blocks=st.integers(1, 4),
    credits=st.integers(1, 2),
    max_batch=st.sampled_from([1, 3]),
    streams=st.integers(1, 3),
    order=st.randoms(use_true_random=False),
)
def test_every_chunk_comes_out_in_order_and_every_credit_comes_back(
    kind: str,
    devices: int,
    steps: int,
    blocks: int,
    credits: int,
    max_batch: int,
    streams: int,
    order: random.Random,
) -> None:
    """In whatever order the devices finish. Rings have one credit at times."""
    graph = StageGraph(steps=steps, blocks=blocks)
    partition = make_partition(kind, graph, devices)
    pipe = pipeline(*range(devices), credits=credits, max_batch=max_batch)
    plan = layout(tuple(partition.rank_of), steps=steps)
    for handle in range(streams):
        opened(pipe, plan, handle)
        for seq in range(4):
            pipe.enter(chunk(seq, stream=handle), 0.0)
    out: dict[int, list[int]] = {handle: [] for handle in range(streams)}
    while True:
        while (device := pipe.next_device()) is not None:
            pipe.start(device, 0.0)
        running = [d for d in pipe.devices.values() if d.running]
        if not running:
            break
        device = order.choice(running)
        for slot in pipe.slots():
            assert 0 <= slot.credits <= credits
            if slot.source is not None:
                assert len(slot.fifo) <= credits
        for task in pipe.finish(device, 0.0):
            if pipe.move_on(task, 0.0) is Goes.OUT:
                out[task.stream].append(task.seq)
        pipe.touch(device)
    assert out == {handle: [0, 1, 2, 3] for handle in range(streams)}
    assert pipe.places_taken() == 0
