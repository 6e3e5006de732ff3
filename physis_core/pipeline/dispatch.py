"""Which batch a device runs next: a pure function of the ready tasks, the costs and the time.

Slack = deadline - now - predicted cost of the task - predicted cost of all that follows on its
chunk's way. The most urgent goes first (physis_core.pipeline.urgency). Other ready tasks of the
same block, of whatever chunk, step or stream, join the batch while that makes nobody late who would
have been on time without it. Waiting for one more arrival is allowed only inside the slack. The
same function runs in the worker and in the simulator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from physis_core.pipeline.costs import Costs, CostTable, OnlineCosts
from physis_core.pipeline.ready_task import BACKGROUND_S, ReadyTask
from physis_core.pipeline.urgency import Entry, by_urgency

__all__ = [
    "CostTable",
    "Costs",
    "Decision",
    "Idle",
    "OnlineCosts",
    "RunBatch",
    "WaitUntil",
    "decide",
]

_INF = float("inf")


@dataclass(frozen=True, slots=True)
class RunBatch:
    """Run these tasks, all of one block, as one batch now. The most urgent one comes first."""

    tasks: tuple[ReadyTask, ...]


@dataclass(frozen=True, slots=True)
class WaitUntil:
    """Run nothing before `time_s`, unless a task arrives: then ask again."""

    time_s: float


@dataclass(frozen=True, slots=True)
class Idle:
    """Nothing is ready."""


Decision = RunBatch | WaitUntil | Idle
_IDLE = Idle()


def decide(
    ready: Sequence[ReadyTask],
    costs: Costs,
    now_s: float,
    *,
    max_batch: int,
    expected: Mapping[int, float] | None = None,
    low_priority_max_batch: int | None = None,
    eager: bool = False,
) -> Decision:
    """Next batch of one device, or a time to wait until.

    Args:
        ready: tasks that may start now, in any order.
        costs: predicted seconds by block and batch size.
        max_batch: largest batch that the device may run.
        expected: block -> time at which the next task of that block is expected to arrive here.
        low_priority_max_batch: set while the engine is overloaded. Tasks of less than the highest
            ready priority then batch at most this many, and do not join a more important one's.
        eager: batch whenever that costs the device less and nobody a deadline, even where it only
            holds everybody back (see docs/decisions/batching-under-slack.md).

    Two tasks of one (stream, stage) are never in one batch: the later chunk reads the KV that the
    earlier one writes. A late task runs too; being late already, it is not protected against longer
    batches.
    """
    if len(ready) == 1:
        task = ready[0]
        if expected is not None and max_batch > 1 and task.block in expected:
            return _run_or_wait((task,), costs, now_s, max_batch, expected[task.block])
        return RunBatch((task,))
    if not ready:
        return _IDLE

    queue = by_urgency(ready, costs, now_s)
    head = queue[0][6]
    if max_batch == 1:
        return RunBatch((_earliest(head, ready),))
    limit = max_batch
    floor = None
    if low_priority_max_batch is not None:
        floor = head.priority
        if head.priority < max(task.priority for task in ready):
            limit = min(limit, low_priority_max_batch)
    batch = _grow(queue, costs, now_s, limit, floor, eager)
    if expected is not None and len(batch) == len(ready) and len(batch) < limit:
        arrival_s = expected.get(head.block)
        if arrival_s is not None:
            return _run_or_wait(batch, costs, now_s, limit, arrival_s)
    return RunBatch(batch)


def _earliest(task: ReadyTask, ready: Sequence[ReadyTask]) -> ReadyTask:
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
    queue: Sequence[Entry],
    costs: Costs,
    now_s: float,
    max_batch: int,
    priority_floor: int | None,
    eager: bool,
) -> tuple[ReadyTask, ...]:
    """The batch of the head's block with the lowest cost per task among those that harm nobody.

    Compared with running `queue` one by one: a task left behind with k batch members before it is
    delayed by t(B) - k*t(1), a member finishes at t(B). Whoever would have been on time one by one
    must stay so.
    """
    block = queue[0][6].block
    members: dict[tuple[int, int], ReadyTask] = {}
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
    # Sorted by urgency: where the first has no delivery time, nobody has.
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

    Under pressure (somebody would be late one by one, or nobody has a delivery time) the lowest
    cost per task counts. Otherwise the sum of all finishing times does: while there is time, a
    batch that gains little only holds everybody back, and makes convoys of streams that then move
    through the devices together.
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


def _run_or_wait(
    batch: tuple[ReadyTask, ...], costs: Costs, now_s: float, max_batch: int, arrival_s: float
) -> Decision:
    """Wait for one more task of this block only if the whole batch has the slack and time is
    gained.
    """
    wait_s = arrival_s - now_s
    if wait_s <= 0.0 or len(batch) >= max_batch:
        return RunBatch(batch)
    block = batch[0].block
    longer_s = costs.predict_s(block, len(batch) + 1)
    gain_s = costs.predict_s(block, len(batch)) + costs.predict_s(block, 1) - longer_s
    if wait_s >= gain_s:
        return RunBatch(batch)
    for task in batch:
        if task.deadline_s - now_s - task.remaining_s < wait_s + longer_s:
            return RunBatch(batch)
    return WaitUntil(arrival_s)
