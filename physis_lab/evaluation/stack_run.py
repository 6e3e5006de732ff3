"""Run seeded episodes through the real stack, one after another.

Every episode starts its own stack, so that the arm is at home and all KV windows are empty, as in
the fast loop. The cost is the start of the processes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from physis_core.types import UserError
from physis_lab.evaluation.stack_episode import StackEpisode, episode_of, task_time_s
from physis_lab.session.play import NodeLogs, interrupts, why_it_failed
from physis_lab.session.run_record import read_run
from physis_lab.session.session import SessionPlan, plan_session
from physis_lab.tasks.task import make_task
from physis_ros.node.domain import choose
from physis_ros.stack.supervisor import Supervisor
from physis_ros.stack.transport import remove_abandoned

START_LIMIT_S = 240.0
POLL_S = 0.2
STALLED_S = 30.0
"""An episode that takes longer than its duration by this has stalled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackRuns:
    """`reason` is empty if all requested episodes were finished."""

    episodes: tuple[StackEpisode, ...]
    plan: SessionPlan | None
    reason: str


def run_episodes(
    seeds: Sequence[int],
    *,
    task: str,
    duration_s: float,
    settle_s: float,
    out: Path,
    sets: Sequence[str],
    console: Console,
    verbose: bool,
    finished: Callable[[StackRuns], None],
) -> StackRuns:
    """Run `seeds` in order; `finished` is called after each with the episodes so far.

    Records lie below `out`/seed-N; camera frames are not kept. An interrupt (Ctrl-C, SIGTERM) stops
    the stack in order and keeps the episodes that were finished.

    Raises:
        UserError: a node refused its input, or `out` cannot be used.
    """
    done: list[StackEpisode] = []
    plan: SessionPlan | None = None
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TimeElapsedColumn(),
        TextColumn("{task.fields[now]}"),
    )
    remove_abandoned()
    with interrupts() as interrupted, Progress(*columns, console=console) as progress:
        bar = progress.add_task("episodes", total=len(seeds) * duration_s, now="", visible=False)
        for number, seed in enumerate(seeds):

            def show(played_s: float, now: str, at: int = number) -> None:
                progress.update(
                    bar,
                    visible=True,
                    description=f"episode {at + 1}/{len(seeds)}",
                    completed=at * duration_s + min(played_s, duration_s),
                    now=now,
                )

            plan = plan_session(
                out / f"seed-{seed}",
                domain=choose(),
                seed=seed,
                sets=[*sets, f"robot_sim_node.task={task}"],
            )
            show(0.0, "starting the nodes")
            started_s = time.monotonic()
            logs = NodeLogs(plan.directory / "logs", console if verbose else None)
            try:
                reason = _run_one(plan, duration_s, logs, interrupted, show)
            except UserError as error:
                if not done:
                    raise
                # Earlier episodes ran with the same input: keep them.
                reason = str(error)
            finally:
                logs.close()
            if reason:
                return StackRuns(episodes=tuple(done), plan=plan, reason=reason)
            record = read_run(plan.directory)
            (plan.directory / "front.frames").unlink()
            begun_s = float(record.arm["t_s"][-1] - record.arm["task_t_s"][-1])
            done.append(
                episode_of(
                    record,
                    make_task(task, seed),
                    seed=seed,
                    duration_s=duration_s,
                    settle_s=settle_s,
                    start_s=begun_s - started_s,
                )
            )
            finished(StackRuns(episodes=tuple(done), plan=plan, reason="under way"))
        progress.update(bar, completed=len(seeds) * duration_s, now="")
    return StackRuns(episodes=tuple(done), plan=plan, reason="")


def _run_one(
    plan: SessionPlan,
    duration_s: float,
    logs: NodeLogs,
    interrupted: Callable[[], bool],
    show: Callable[[float, str], None],
) -> str:
    """Run one episode. Returns why it did not finish; empty if it did."""
    supervisor = Supervisor(plan.processes, environment=plan.environment)
    arm = plan.directory / "arm.rows"
    limit_s = time.monotonic() + START_LIMIT_S
    played_s = 0.0
    try:
        supervisor.start()
        while played_s < duration_s:
            logs.take(supervisor.poll(POLL_S))
            if supervisor.failure is not None:
                return why_it_failed(supervisor.failure, logs, verb="eval")
            if interrupted():
                return "interrupted"
            before_s, played_s = played_s, task_time_s(arm)
            if before_s == 0.0 < played_s:
                limit_s = time.monotonic() + duration_s + STALLED_S
            if time.monotonic() > limit_s:
                return f"the episode did not {_missing(played_s)} in time; see {logs.directory}"
            show(played_s, "" if played_s else f"starting the nodes: {logs.last_line}")
    finally:
        show(played_s, "stopping the nodes")
        supervisor.stop(lambda event: logs.take([event]), first=("recorder_node",))
    return ""


def _missing(played_s: float) -> str:
    return "end" if played_s else "begin"


def stack_config(runs: StackRuns, **asked: Any) -> dict[str, Any]:
    """The configuration, for the report."""
    plan = runs.plan
    if plan is None:
        return {"mode": "stack", **asked}
    return {
        "mode": "stack",
        **asked,
        "period_ms": plan.period_ms,
        "engine": plan.parameters("engine_node"),
        **{
            node: {
                name: value
                for name, value in plan.parameters(f"{node}_node").items()
                if name != "record_path"
            }
            for node in ("buffer", "safety")
        },
    }
