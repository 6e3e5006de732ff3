"""Time from the start of safety_node's process to its first published state."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from physis_core.observe.rowlog import read_rows
from physis_lab.bench.robot.processes import Watch, group_cpu_s, module_process
from physis_lab.session.session import loopback_environment
from physis_ros.node.domain import choose
from physis_ros.stack.description import NODE_MODULES
from physis_ros.stack.supervisor import Supervisor

LIMIT_S = 60.0
_RARELY_HZ = 0.1
"""So rare that the first state received is the first one published, even after slow discovery."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """`wall_s`: until the first state was published. `cpu_s`: CPU time of the node until it was
    received; on a busy machine the rest is waiting."""

    wall_s: float
    cpu_s: float


def start_once(folder: Path) -> Start:
    """Start safety_node once. The state's own stamp is used, so its transport does not count.

    Raises:
        RuntimeError: no state within LIMIT_S, or a process ended.
    """
    folder.mkdir(parents=True, exist_ok=True)
    heard = folder / "state.rows"
    environment = loopback_environment(choose())
    probe = module_process(
        "safety_probe", "physis_lab.bench.nodes.safety_probe", "state", str(heard)
    )
    node = module_process(
        "safety_node", NODE_MODULES["safety_node"], "--ros-args", "-p", f"status_hz:={_RARELY_HZ}"
    )
    watch = Watch(poll_s=0.02)
    with Supervisor([probe], environment=environment) as listening:
        watch.until(
            listening, lambda: heard.exists() and heard.stat().st_size > 0, "the probe", LIMIT_S
        )
        begun_ns = time.time_ns()
        with Supervisor([node], environment=environment) as running:
            watch.until(running, lambda: read_rows(heard).rows > 0, "the first state", LIMIT_S)
            cpu_s = group_cpu_s(running.pids()["safety_node"])
            return Start(
                wall_s=float(read_rows(heard)["stamp_ns"][0] - begun_ns) * 1e-9, cpu_s=cpu_s
            )
