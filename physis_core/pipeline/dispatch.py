"""Which batch a device runs next: a pure function of the ready tasks, the costs and the time.

Slack = deadline - now - predicted cost of the task - predicted cost of all later stages of its
chunk. The most urgent task goes first (physis_core.pipeline.urgency). Other ready tasks of the same
block, of whatever chunk, step or stream, join the batch while that makes no task late that would
have been on time without it. A device never waits for a task that is not ready yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from physis_core.pipeline.costs import Costs
from physis_core.pipeline.ready_task import BACKGROUND_S, ReadyTask
from physis_core.pipeline.urgency import Entry, by_urgency

Task = TypeVar("Task", bound=ReadyTask)
_INF = float("inf")


def decide(
    ready: Sequence[Task],
    costs: Costs,
    now_s: float,
    *,
    max_batch: int,
    low_priority_max_batch: int | None = None,
    eager: bool = False,
) -> tuple[Task, ...]:
    """Next batch of one device: tasks of one block, the most urgent first; empty if none is ready.

    Args:
        ready: tasks that may start now, in any order.
        costs: predicted seconds by block and batch size.
        max_batch: largest batch that the device may run.
        low_priority_max_batch: set while the engine is overloaded. Tasks of less than the highest
            ready priority then batch at most this many, and do not join a more important one's.
        eager: batch whenever that costs the device less and no task its deadline, even where it
            only delays all tasks (see docs/decisions/batching-under-slack.md).

    Two tasks of one (stream, stage) are never in one batch: the later chunk reads the KV that the
    earlier one writes. A late task runs too; being late already, it is not protected against longer
    batches.
    """
    if len(ready) <= 1:
        return tuple(ready)
    queue = by_urgency(ready, costs, now_s)
    head = queue[0][6]
    if max_batch == 1:
        return (_earliest(head, ready),)
    limit = max_batch
    floor = None
    if low_priority_max_batch is not None:
        floor = head.priority
        if head.priority < max(task.priority for task in ready):
            limit = min(limit, low_priority_max_batch)
    return _grow(queue, costs, now_s, limit, floor, eager)


def _earliest(task: Task, ready: Sequence[Task]) -> Task:
    """The earliest ready chunk of the task's (stream, stage): its KV is needed by the others."""
    for other in ready:
        if (
            other.stage == task.stage
            and other.stream == task.stream
            and (other.epoch, other.seq) < (task.epoch, task.seq)
        ):
            task = other
    return task


def _grow(
    queue: Sequence[Entry[Task]],
    costs: Costs,
    now_s: float,
    max_batch: int,
    priority_floor: int | None,
    eager: bool,
) -> tuple[Task, ...]:
    """The batch of the head's block with the lowest cost per task among those that harm no task.

    Compared with running `queue` one by one: a task left behind with k batch members before it is
    delayed by t(B) - k*t(1), a member finishes at t(B). What would have been on time one by one
    must stay so.
    """
    block = queue[0][6].block
    members: dict[tuple[int, int], Task] = {}
    for entry in queue:
        task = entry[6]
        if task.block != block or (priority_floor is not None and task.priority < priority_floor):
            continue
        key = (task.stream, task.stage)
        other = members.get(key)
        if other is not None:
            if (task.epoch, task.seq) < (other.epoch, other.seq):
                members[key] = task
        elif len(members) < max_batch:
            members[key] = task
    if len(members) == 1:
        return tuple(members.values())

    # finish_s[k - 1]: when the k-th member must have finished, if it would have been on time.
    # ends_s[k - 1]: when it would have finished one by one.
    # room_s[k], left[k]: least time to spare and number of the others with k members before them.
    finish_s: list[float] = []
    ends_s: list[float] = []
    room_s: list[float] = [_INF]
    left: list[int] = [0]
    taken: set[tuple[int, int]] = set()
    alone: dict[int, float] = {}
    elapsed_s = now_s
    # Sorted by urgency: where the first has no delivery time, no task has.
    pressed = eager or queue[0][4] - now_s > 0.5 * BACKGROUND_S
    for _, _, _, _, latest_s, _, task in queue:
        cost_s = alone.get(task.block)
        if cost_s is None:
            cost_s = alone[task.block] = costs.predict_s(task.block, 1)
        elapsed_s += cost_s
        spare_s = latest_s - elapsed_s
        if spare_s < 0.0:
            pressed = True
        if task.block == block:
            key = (task.stream, task.stage)
            if key in members and key not in taken:
                taken.add(key)
                finish_s.append(latest_s if spare_s >= 0.0 else _INF)
                ends_s.append(elapsed_s)
                room_s.append(_INF)
                left.append(0)
                continue
        left[-1] += 1
        if 0.0 <= spare_s < room_s[-1]:
            room_s[-1] = spare_s
    size = _best_size(costs, block, now_s, finish_s, ends_s, room_s, left, pressed)
    return tuple(members.values())[:size]


def _best_size(
    costs: Costs,
    block: int,
    now_s: float,
    finish_s: Sequence[float],
    ends_s: Sequence[float],
    room_s: Sequence[float],
    left: Sequence[int],
    pressed: bool,
) -> int:
    """How many of the members to take.

    Under pressure (a task would be late one by one, or none has a delivery time) the lowest cost
    per task counts. Otherwise the sum of all finishing times does: while there is time, a batch
    that gains little only delays all tasks, and makes convoys of streams that then move through the
    devices together.
    """
    count = len(finish_s)
    single_s = costs.predict_s(block, 1)
    best, best_score = 1, single_s if pressed else 0.0
    least_finish_s = finish_s[0]
    for size in range(2, count + 1):
        if finish_s[size - 1] < least_finish_s:
            least_finish_s = finish_s[size - 1]
        batch_s = costs.predict_s(block, size)
        if now_s + batch_s > least_finish_s:
            break
        if batch_s >= size * single_s:
            continue
        if pressed:
            score = batch_s / size
        else:
            score = _change_s(now_s + batch_s, batch_s, single_s, size, ends_s, left)
        if score > best_score or (score == 0.0 and not pressed):
            continue
        if all(batch_s - k * single_s <= room_s[k] for k in range(1, size + 1)):
            best, best_score = size, score
    return best


def _change_s(
    end_s: float,
    batch_s: float,
    single_s: float,
    size: int,
    ends_s: Sequence[float],
    left: Sequence[int],
) -> float:
    """How much later all tasks together finish than one by one; negative: sooner."""
    change_s = size * end_s - sum(ends_s[:size])
    for k in range(1, size):
        change_s += left[k] * (batch_s - k * single_s)
    after = sum(left[size:]) + len(ends_s) - size
    return change_s + after * (batch_s - size * single_s)
