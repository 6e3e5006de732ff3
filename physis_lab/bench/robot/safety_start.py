"""How long safety_node takes from the start of its process to its first published state."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from physis_core.observe.rowlog import read_rows
from physis_lab.bench.robot.process_time import group_cpu_s
from physis_lab.session.session import loopback_environment
from physis_ros.node.domain import choose
from physis_ros.stack.description import NODE_MODULES
from physis_ros.stack.resolution import ProcessSpec
from physis_ros.stack.supervisor import Supervisor

LIMIT_S = 60.0
_RARELY_HZ = 0.1
"""The state is told so rarely that the first to be heard is the first that was published, however
long discovery takes on a busy machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """`wall_s`: until the first state was published. `cpu_s`: the processor time that the node had
    used when it was heard; on a busy machine the rest is waiting."""

    wall_s: float
    cpu_s: float


def start_once(folder: Path) -> Start:
    """By the stamp of the first state, which is latched: how soon it is heard does not matter.

    Raises:
        RuntimeError: no state in a minute, or a process that ended.
    """
    folder.mkdir(parents=True, exist_ok=True)
    heard = folder / "state.rows"
    environment = loopback_environment(choose())
    probe = _process("safety_probe", "physis_lab.bench.nodes.safety_probe", "state", str(heard))
    node = _process(
        "safety_node", NODE_MODULES["safety_node"], "--ros-args", "-p", f"status_hz:={_RARELY_HZ}"
    )
    with Supervisor([probe], environment=environment) as listening:
        _until(listening, lambda: heard.exists() and heard.stat().st_size > 0)
        begun_ns = time.time_ns()
        with Supervisor([node], environment=environment) as running:
            _until(running, lambda: read_rows(heard).rows > 0)
            cpu_s = group_cpu_s(running.pids()["safety_node"])
            return Start(
                wall_s=float(read_rows(heard)["stamp_ns"][0] - begun_ns) * 1e-9, cpu_s=cpu_s
            )


def _process(name: str, module: str, *words: str) -> ProcessSpec:
    command = (sys.executable, "-m", module, *words)
    return ProcessSpec(name=name, command=command, must_live=True)


def _until(supervisor: Supervisor, done: Callable[[], bool]) -> None:
    end_s = time.monotonic() + LIMIT_S
    said: list[str] = []
    while not done():
        said += [event.text for event in supervisor.poll(0.02) if event.text]
        if supervisor.failure is not None or time.monotonic() > end_s:
            reason = supervisor.failure or "waited in vain for the first state"
            raise RuntimeError("\n".join([reason, *said[-20:]]))
