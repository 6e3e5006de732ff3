"""One recorded run of a stack on this machine: what to start, and whether it plays yet.

Only loopback: every process gets the discovery range LOCALHOST (or a profile of Fast DDS that means
the same) and a ROS domain of its own.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from physis_core.observe.rowlog import read_rows
from physis_core.types import UserError
from physis_lab.session.pace import Pace
from physis_ros.node.model_file import trained_period_s
from physis_ros.node.share import share_directory
from physis_ros.robot.policy_contract import load_policy_contract
from physis_ros.stack.description import NodeSpec, load_stack
from physis_ros.stack.environment import process_environment
from physis_ros.stack.options import Options, parse_set
from physis_ros.stack.parameter_layers import OF_ROS
from physis_ros.stack.resolution import NodeRun, ProcessSpec, resolve

SOURCES = ("engine_node", "policy_node")
"""Where the chunks come from: one of these runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPlan:
    directory: Path
    environment: Mapping[str, str]
    runs: tuple[NodeRun, ...]

    @property
    def processes(self) -> tuple[ProcessSpec, ...]:
        return tuple(run.process() for run in self.runs)

    @property
    def period_ms(self) -> float:
        """The stream's period: as set, or what the model was trained for."""
        source = self.parameters(self.source)
        period_s = float(source["period_s"])
        if period_s == 0.0 and "policy_contract" in source:
            period_s = load_policy_contract(source["policy_contract"]).period_s
        elif period_s == 0.0:
            period_s = trained_period_s(source["model"])
        return 1e3 * period_s

    @property
    def source(self) -> str:
        """The node that gives the chunks."""
        return next(run.node.name for run in self.runs if run.node.name in SOURCES)

    def parameters(self, node: str) -> dict[str, Any]:
        """Every parameter that a node of ours declares."""
        run = next(run for run in self.runs if run.node.name == node)
        return {name: one.value for name, one in run.settings.items() if name not in OF_ROS}

    def full_pace(self) -> Pace:
        """The rates as the stack's files and `--set` give them."""
        arm, buffer = self.parameters("robot_sim_node"), self.parameters("buffer_node")
        return Pace(
            divisor=1,
            period_s=1e-3 * self.period_ms,
            camera_hz=float(arm["camera_hz"]),
            controller_hz=float(arm["controller_hz"]),
            servo_hz=float(buffer["servo_hz"]),
            capacity_cores=math.nan,
            enough=True,
        )

    def at(self, pace: Pace) -> SessionPlan:
        """The same session at this pace."""
        runs = list(self.runs)
        for node, parameter, value in pace.parameters():
            for i, run in enumerate(runs):
                if run.node.name == node:
                    runs[i] = run.with_parameters({parameter: value}, "pace")
        return dataclasses.replace(self, runs=tuple(runs))

    def config(self, duration_s: float) -> dict[str, Any]:
        """What was run, for the report."""
        return {
            "duration_s": duration_s,
            "domain": int(self.environment["ROS_DOMAIN_ID"]),
            "nodes": [run.node.name for run in self.runs],
            "period_ms": self.period_ms,
            self.source.removesuffix("_node"): self.parameters(self.source),
        }

    def first_played_s(self) -> float | None:
        """Steady time of the first servo tick that played a point; None before that."""
        path = self.directory / "servo.rows"
        if not path.exists() or path.stat().st_size == 0:
            return None
        servo = read_rows(path)
        played = np.flatnonzero(servo["underrun"] == 0)
        return float(servo["t_s"][played[0]]) if played.size else None

    def now_line(self) -> str:
        """The newest tick in a few words."""
        servo = read_rows(self.directory / "servo.rows")
        chunks = read_rows(self.directory / "chunks.rows")
        return f"age {servo['age_ms'][-1]:.0f} ms, {chunks.rows} chunks"


def loopback_environment(domain: int) -> dict[str, str]:
    """The environment for processes that must not speak to any other machine."""
    wanted = {
        **os.environ,
        "ROS_DOMAIN_ID": str(domain),
        "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST",
        "ROS_STATIC_PEERS": "",
        "OMP_NUM_THREADS": "1",
        "MUJOCO_GL": os.environ.get("MUJOCO_GL", "egl"),
    }
    return process_environment(wanted)


def plan_session(
    directory: Path,
    *,
    domain: int,
    seed: int = 1,
    sets: Sequence[str] = (),
    show: bool = False,
    stack: str = "wam",
    policy: str = "",
    policy_contract: str = "",
) -> SessionPlan:
    """The stack `stack` with a recorder beside it, everything recorded below `directory`.

    Raises:
        UserError: an unknown node or a badly written `sets`, or a directory that cannot be made or
            holds the records of another run.
    """
    share = share_directory()
    spec = load_stack(stack, share)
    extra = [NodeSpec(name="recorder_node", must_live=True)]
    if show:
        extra.append(NodeSpec(name="viewer_node"))
    spec = dataclasses.replace(spec, nodes=(*spec.nodes, *extra))
    where = str(directory.absolute())
    own: list[tuple[str, str, Any]] = [
        ("buffer_node", "record_path", where),
        ("robot_sim_node", "record_path", where),
        ("robot_sim_node", "task_seed", seed),
        ("recorder_node", "record_path", where),
    ]
    options = Options(
        policy=policy,
        policy_contract=policy_contract,
        sets=(*own, *(parse_set(text) for text in sets)),
    )
    runs = resolve(spec, options, share)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError("out", str(directory), error.strerror or str(error)) from error
    if (directory / "servo.rows").exists():
        raise UserError("out", str(directory), "holds the records of another run; name another")
    return SessionPlan(directory=directory, environment=loopback_environment(domain), runs=runs)
