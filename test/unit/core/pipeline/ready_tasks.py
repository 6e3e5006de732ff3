"""Ready tasks for tests of who goes first and with whom."""

from __future__ import annotations

from physis_core.pipeline.ready_task import ReadyTask


def task(
    stream: int = 0,
    seq: int = 0,
    stage: int = 0,
    block: int = 0,
    deadline_s: float = 100.0,
    remaining_s: float = 0.0,
    priority: int = 0,
) -> ReadyTask:
    return ReadyTask(
        stream=stream,
        epoch=0,
        seq=seq,
        stage=stage,
        block=block,
        step=0,
        deadline_s=deadline_s,
        ready_s=0.0,
        remaining_s=remaining_s,
        priority=priority,
    )
