"""Properties of the dispatch: what a batch may contain, and whom it must not harm."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ready_tasks import task

from physis_core.pipeline.costs import CostTable
from physis_core.pipeline.dispatch import decide
from physis_core.pipeline.ready_task import BACKGROUND_S, ReadyTask

COSTS = CostTable({b: {1: 1.0, 2: 1.2, 4: 1.6, 8: 3.0} for b in range(4)})


@st.composite
def queues(draw: st.DrawFn) -> list[ReadyTask]:
    count = draw(st.integers(1, 14))
    return [
        task(
            stream=draw(st.integers(0, 3)),
            seq=draw(st.integers(0, 5)),
            stage=(block := draw(st.integers(0, 3))) + 4 * draw(st.integers(0, 2)),
            block=block,
            deadline_s=draw(st.one_of(st.just(math.inf), st.floats(-2.0, 20.0))),
            remaining_s=draw(st.floats(0.0, 5.0)),
            priority=draw(st.integers(0, 2)),
        )
        for _ in range(count)
    ]


@st.composite
def tables(draw: st.DrawFn) -> CostTable:
    rows = {}
    for block in range(4):
        seconds = draw(st.floats(0.1, 2.0))
        row = {1: seconds}
        for batch in range(2, 9):
            seconds += draw(st.floats(0.0, 2.0))
            row[batch] = seconds
        rows[block] = row
    return CostTable(rows)


def test_nothing_ready_runs_nothing() -> None:
    assert decide([], COSTS, 0.0, max_batch=4) == ()


def test_same_block_joins_from_other_streams_and_steps() -> None:
    tasks = [task(stream=0), task(stream=1, stage=4), task(stream=1, stage=8, seq=0)]
    assert len(decide(tasks, COSTS, 0.0, max_batch=8)) == 3
    assert len(decide(tasks, COSTS, 0.0, max_batch=2)) == 2


def test_batch_that_would_make_its_head_late_is_not_formed() -> None:
    tasks = [task(stream=0, deadline_s=1.1), task(stream=1, deadline_s=50.0)]
    assert decide(tasks, COSTS, 0.0, max_batch=8) == (tasks[0],)


def test_batch_that_would_make_a_left_behind_task_late_is_not_formed() -> None:
    head = task(stream=0, deadline_s=2.0)
    other = task(stream=1, block=1, deadline_s=2.1)
    joiner = task(stream=2, deadline_s=50.0)
    assert decide([head, other, joiner], COSTS, 0.0, max_batch=8) == (head,)
    other.deadline_s = 2.3
    assert decide([head, other, joiner], COSTS, 0.0, max_batch=8) == (head, joiner)


def test_batch_without_gain_is_not_formed() -> None:
    flat = CostTable({0: {1: 1.0, 2: 2.0, 4: 4.0}})
    tasks = [task(stream=s) for s in range(4)]
    assert len(decide(tasks, flat, 0.0, max_batch=4)) == 1


def test_priority_decides_only_when_somebody_is_late() -> None:
    low, high = task(stream=0, deadline_s=4.0), task(stream=1, block=1, deadline_s=6.0, priority=1)
    assert decide([low, high], COSTS, 0.0, max_batch=4) == (low,)
    assert decide([low, high], COSTS, 3.5, max_batch=4) == (high,)


def test_overload_shrinks_batches_of_low_priority() -> None:
    tasks = [task(stream=s, deadline_s=100.0) for s in range(4)]
    tasks += [task(stream=9, block=1, deadline_s=200.0, priority=1)]
    shrunk = decide(tasks, COSTS, 0.0, max_batch=8, low_priority_max_batch=1)
    assert len(shrunk) == 1
    assert len(decide(tasks, COSTS, 0.0, max_batch=8)) == 4


def test_earlier_chunk_of_a_stage_goes_first() -> None:
    later, earlier = task(seq=4, deadline_s=1.0), task(seq=3, deadline_s=50.0)
    assert decide([later, earlier], COSTS, 0.0, max_batch=4) == (earlier,)


def finishes(
    order: list[ReadyTask], batch: tuple[ReadyTask, ...], costs: CostTable
) -> dict[int, float]:
    """Finish time by task identity: `batch` at once, then the rest of `order` one by one."""
    now_s = costs.predict_s(batch[0].block, len(batch))
    out = {id(member): now_s for member in batch}
    for other in order:
        if id(other) not in out:
            now_s += costs.predict_s(other.block, 1)
            out[id(other)] = now_s
    return out


@settings(max_examples=120, deadline=None)
@given(tasks=queues(), costs=tables(), max_batch=st.integers(1, 8))
def test_a_batch_keeps_the_rules(tasks: list[ReadyTask], costs: CostTable, max_batch: int) -> None:
    batch = decide(tasks, costs, 0.0, max_batch=max_batch)
    assert 1 <= len(batch) <= max_batch
    assert {member.block for member in batch} == {batch[0].block}
    assert len({(member.stream, member.stage) for member in batch}) == len(batch)
    for member in batch:
        same = [t for t in tasks if (t.stream, t.stage) == (member.stream, member.stage)]
        assert member.seq == min(t.seq for t in same)
    if len(batch) > 1:
        alone_s = costs.predict_s(batch[0].block, 1)
        assert costs.predict_s(batch[0].block, len(batch)) < len(batch) * alone_s


@settings(max_examples=120, deadline=None)
@given(tasks=queues(), costs=tables(), max_batch=st.integers(1, 8))
def test_batching_makes_nobody_late_who_would_have_been_on_time(
    tasks: list[ReadyTask], costs: CostTable, max_batch: int
) -> None:
    tasks = list({(t.stream, t.stage): t for t in tasks}.values())
    batch = decide(tasks, costs, 0.0, max_batch=max_batch)
    # The order one by one, found by asking for batches of one.
    left, order = list(tasks), []
    while left:
        # Slack falls alike for all as time passes, so asking at time 0 gives the same order.
        order.append(decide(left, costs, 0.0, max_batch=1)[0])
        left.remove(order[-1])
    assert batch[0] is order[0]
    if any(t.deadline_s - t.remaining_s < costs.predict_s(t.block, 1) for t in order):
        # Somebody is late: once he has run, the order of the others may change.
        return
    one_by_one = finishes(order, (order[0],), costs)
    batched = finishes(order, batch, costs)
    for t in order:
        limit_s = t.deadline_s - t.remaining_s
        if one_by_one[id(t)] <= limit_s - 1e-9:
            assert batched[id(t)] <= limit_s + 1e-9


@pytest.mark.parametrize("count", [1, 2, 5])
def test_free_running_tasks_nearest_to_their_exit_go_first(count: int) -> None:
    tasks = [task(seq=s, stage=s, block=s % 4, deadline_s=math.inf) for s in range(count)]
    assert decide(tasks, COSTS, 0.0, max_batch=1) == (tasks[-1],)


@pytest.mark.parametrize(("deadline_s", "size"), [(BACKGROUND_S, 4), (100.0, 1)])
def test_what_has_no_delivery_time_runs_in_the_batch_that_costs_the_device_least(
    deadline_s: float, size: int
) -> None:
    # A gain of a tenth a task: with a delivery time it would only hold everybody back.
    costs = CostTable({0: {1: 1.0, 4: 3.7}})
    tasks = [task(seq=s, stage=s, deadline_s=deadline_s + s) for s in range(4)]
    assert len(decide(tasks, costs, 0.0, max_batch=8)) == size
