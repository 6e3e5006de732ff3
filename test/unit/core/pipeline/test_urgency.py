"""Who goes first on a device."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st
from ready_tasks import task

from physis_core.pipeline.costs import CostTable
from physis_core.pipeline.ready_task import BACKGROUND_S, ReadyTask
from physis_core.pipeline.urgency import by_urgency

COSTS = CostTable({0: {1: 1.0}, 1: {1: 1.0}})


def first(ready: list[ReadyTask], now_s: float = 0.0) -> ReadyTask:
    return by_urgency(ready, COSTS, now_s)[0][6]


def test_the_earliest_deadline_goes_first() -> None:
    later, sooner = task(stream=0, deadline_s=5.0), task(stream=1, block=1, deadline_s=4.0)
    assert first([later, sooner]) is sooner
    # Also while the later one has less slack: it can still wait.
    later.remaining_s = 2.0
    assert first([later, sooner]) is sooner


def test_who_would_be_late_by_waiting_passes_who_would_not() -> None:
    head = task(stream=0, deadline_s=4.0, remaining_s=1.0)
    tight = task(stream=1, block=1, deadline_s=5.0, remaining_s=3.5)
    assert first([head, tight]) is tight
    # The head would be late in its turn.
    head.remaining_s = 2.5
    assert first([head, tight]) is head
    # Too late already: nothing is saved.
    head.remaining_s, tight.remaining_s = 1.0, 4.5
    assert first([head, tight]) is head


@given(chunks=st.lists(st.tuples(st.integers(1, 6), st.floats(0.0, 30.0)), min_size=1, max_size=6))
def test_chunks_whose_deadlines_can_be_kept_do_not_take_turns(
    chunks: list[tuple[int, float]],
) -> None:
    """Each is done before the next one begins, so that none waits for what it does not need."""
    lengths = [length for length, _ in chunks]
    room_s = float(sum(lengths))
    done = [0] * len(chunks)
    order: list[int] = []
    while any(d < n for d, n in zip(done, lengths, strict=True)):
        now_s = float(len(order))
        ready = [
            task(
                stream=i,
                stage=done[i],
                deadline_s=room_s + late_s,
                remaining_s=float(lengths[i] - done[i] - 1),
            )
            for i, (_, late_s) in enumerate(chunks)
            if done[i] < lengths[i]
        ]
        chosen = first(ready, now_s)
        done[chosen.stream] += 1
        order.append(chosen.stream)
    assert sum(a != b for a, b in itertools.pairwise(order)) == len(chunks) - 1


def test_of_equal_deadlines_the_one_nearer_to_its_exit_goes_first() -> None:
    begun, nearly_out = task(stage=1, remaining_s=8.0), task(stream=1, stage=7, remaining_s=2.0)
    assert first([begun, nearly_out]) is nearly_out


def test_without_a_delivery_time_age_counts_alone_and_comes_last() -> None:
    older = task(stream=0, stage=3, deadline_s=BACKGROUND_S + 1.0)
    younger = task(stream=1, stage=9, deadline_s=BACKGROUND_S + 2.0)
    paced = task(stream=2, deadline_s=50.0)
    assert [entry[6] for entry in by_urgency([younger, older, paced], COSTS, 0.0)] == [
        paced,
        older,
        younger,
    ]
