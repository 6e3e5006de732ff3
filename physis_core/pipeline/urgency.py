"""In which order tasks would run one by one: the earliest deadline first. A task with no slack left
may run before the head task if that one still meets its deadline (EDZL: S. K. Lee, "On-line
multiprocessor scheduling algorithms for real-time tasks", TENCON 1994).

Least slack first would make chunks alternate (docs/decisions/earliest-deadline-first.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from physis_core.pipeline.costs import Costs
from physis_core.pipeline.ready_task import BACKGROUND_S, ReadyTask

Task = TypeVar("Task", bound=ReadyTask)
Entry = tuple[float, int, int, int, float, float, Task]
"""(deadline, -stage, seq, position, latest finish, seconds alone, task): sorts by urgency, never by
task."""


def by_urgency(ready: Sequence[Task], costs: Costs, now_s: float) -> list[Entry[Task]]:
    """Tasks in the order in which they would run one by one.

    Ties: the chunk nearer to its exit first, so that equal deadlines do not spread out. When a task
    is late already, not all can be on time, and priority comes before time. Without a delivery time
    age alone counts: `deadline_s` holds it.
    """
    single: dict[int, float] = {}
    endless_s = now_s + 0.5 * BACKGROUND_S
    queue: list[Entry[Task]] = []
    late = False
    for i, task in enumerate(ready):
        block = task.block
        cost_s = single.get(block)
        if cost_s is None:
            cost_s = single[block] = costs.predict_s(block, 1)
        finish_s = deadline_s = task.deadline_s
        if deadline_s <= endless_s:
            finish_s -= task.remaining_s
            if finish_s - cost_s < now_s:
                late = True
        queue.append((deadline_s, -task.stage, task.seq, i, finish_s, cost_s, task))
    queue.sort()
    if late:
        queue.sort(key=lambda entry: -entry[6].priority)
    _let_pass(queue, now_s)
    return queue


def _let_pass(queue: list[Entry[Task]], now_s: float) -> None:
    """Move a task that would be late after the head before it, if the head then stays on time."""
    _, _, _, _, head_finish_s, head_s, _ = queue[0]
    after_head_s = now_s + head_s
    for i in range(1, len(queue)):
        _, _, _, _, finish_s, cost_s, _ = queue[i]
        saved = after_head_s + cost_s > finish_s >= now_s + cost_s
        if saved and after_head_s + cost_s <= head_finish_s:
            queue.insert(0, queue.pop(i))
            return
