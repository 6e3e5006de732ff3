"""One run of the demo's stack for `physis bench safety`: the loop under load, then kills.

The stack is started as `physis demo` starts it. While the loop is measured, one process per core
keeps every core busy, because the engine alone leaves some idle. Kills use SIGKILL. The stack
restarts engine and buffer itself, and the arm must move again before the next kill; the last kill
takes everything except the robot.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from physis_core.observe.rowlog import RowTable, read_rows
from physis_lab.bench.robot.processes import Watch, group_cpu_s, module_process
from physis_lab.bench.robot.safety_rest import (
    Rest,
    last_valid_s,
    planned_speeds,
    rest_of,
    resting_since,
    speed_now,
    to_steady_s,
)
from physis_lab.session.run_record import read_json_lines
from physis_lab.session.session import SessionPlan, plan_session
from physis_ros.node.domain import choose
from physis_ros.robot.robot_files import load_robot_limits
from physis_ros.stack.supervisor import Supervisor
from physis_ros.timeline.stream_record import CHUNKS_FILE, SERVO_FILE

START_LIMIT_S = 180.0
SETTLE_S = 3.0
REST_LIMIT_S = 10.0
MOVING_RAD_S = 0.15
"""A kill waits until the arm moves at least this fast."""
_LOOK_S = 0.1
_SPARED = ("robot_sim_node", "recorder_node", "safety_probe")

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """Timing of one loop over one window: lateness of its ticks [ms], and lost ticks."""

    p50_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float
    lost: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StackRun:
    """`realtime`: empty if granted, else the reason. `engine_cpu`: cores used by the engine.
    `violations`: ticks of the arm that exceeded a limit, over the whole run."""

    safety: Loop
    bare: Loop
    realtime: str
    engine_cpu: float
    rests: Sequence[Rest]
    violations: int


class StackTrial:
    """One run of the stack. Raises RuntimeError, with the last output, if it does not finish."""

    def __init__(self, folder: Path, seconds: float, tell: Tell) -> None:
        self._seconds = seconds
        self._tell = tell
        self._watch = Watch(poll_s=_LOOK_S)
        self._rate_hz, self._priority = loop_settings(plan_session(folder, domain=choose()))
        # So that the last safety_status of the window covers exactly this window.
        window = round(self._rate_hz * seconds)
        self._plan: SessionPlan = plan_session(
            folder, domain=choose(), sets=[f"safety_node.jitter_window={window}"]
        )

    def run(self) -> StackRun:
        plan = self._plan
        probe = module_process(
            "safety_probe", "physis_lab.bench.nodes.safety_probe", "windows", str(self._windows)
        )
        with Supervisor([*plan.processes, probe], environment=plan.environment) as stack:
            self._tell("starting the stack")
            self._watch.until(
                stack, lambda: plan.first_played_s() is not None, "an action", START_LIMIT_S
            )
            self._wait(stack, SETTLE_S)
            self._tell("loop beside the engine")
            safety, bare, realtime, engine_cpu = self._loops(stack)
            rests = []
            for name, victims in (
                ("engine", ("engine_node",)),
                ("buffer", ("buffer_node",)),
                ("all", tuple(name for name in stack.pids() if name not in _SPARED)),
            ):
                self._tell(f"{name} killed")
                self._watch.until(
                    stack,
                    lambda: speed_now(self._arm()) >= MOVING_RAD_S and self._plays(),
                    "the arm to move",
                    START_LIMIT_S,
                )
                rests.append(self._kill(stack, name, victims))
        violations = int((self._arm()["limit"] != 0).sum())
        return StackRun(
            safety=safety,
            bare=bare,
            realtime=realtime,
            engine_cpu=engine_cpu,
            rests=rests,
            violations=violations,
        )

    @property
    def _windows(self) -> Path:
        return self._plan.directory / "windows.jsonl"

    # The loop ----------------------------------------------------------------------------------

    def _loops(self, stack: Supervisor) -> tuple[Loop, Loop, str, float]:
        path = self._plan.directory / "bare.json"
        words = [str(path), f"{self._rate_hz:g}", f"{self._seconds:g}", str(self._priority)]
        bare = module_process(
            "bare_loop", "physis_lab.bench.robot.bare_loop", *words, must_live=False
        )
        busy = [
            module_process(
                f"busy_core_{core}",
                "physis_lab.bench.robot.busy_core",
                env={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )
            for core in range(len(os.sched_getaffinity(0)))
        ]
        engine = stack.pids()["engine_node"]
        cpu_s, begun_s, begun_ns = group_cpu_s(engine), time.monotonic(), time.time_ns()
        environment = self._plan.environment
        with (
            Supervisor(busy, environment=environment) as load,
            Supervisor([bare], environment=environment) as baseline,
        ):
            while not baseline.idle:
                for supervisor in (baseline, load, stack):
                    self._watch.poll(supervisor)
        cores = (group_cpu_s(engine) - cpu_s) / (time.monotonic() - begun_s)
        if not path.exists():
            raise self._watch.error("the bare loop wrote no result")
        found = json.loads(path.read_text())
        # The percentiles in safety_status are up to one second old.
        self._wait(stack, 1.5)
        of_bare = Loop(
            p50_ms=found["p50"],
            p99_ms=found["p99"],
            p999_ms=found["p999"],
            max_ms=found["max"],
            lost=found["lost"],
        )
        status = self._safety_status(begun_ns)
        granted = bool(status[-1]["realtime"])
        reason = "" if granted else "SCHED_FIFO was not granted"
        span_ns = int(found["begun_ns"]), int(found["ended_ns"])
        return loop_of(status, span_ns), of_bare, reason, cores

    def _safety_status(self, since_ns: int) -> list[Mapping[str, Any]]:
        entries = read_json_lines(self._plan.directory / "status.jsonl")
        return [e for e in entries if e["topic"] == "safety_status" and e["ros_ns"] >= since_ns]

    # Kills -------------------------------------------------------------------------------------

    def _kill(self, stack: Supervisor, name: str, victims: Sequence[str]) -> Rest:
        pids = stack.pids()
        for victim in victims:
            # Each process leads its own group, which contains the engine's workers.
            os.killpg(pids[victim], signal.SIGKILL)
        killed_s = time.monotonic()
        # The supervisor is not polled here, so it restarts nothing before the arm rests.
        while resting_since(self._arm(), killed_s) is None:
            if time.monotonic() - killed_s > REST_LIMIT_S:
                raise RuntimeError(f"{name} killed: the arm does not rest in {REST_LIMIT_S:g} s")
            time.sleep(_LOOK_S)
        servo = self._rows(SERVO_FILE)
        valid_s = last_valid_s(self._rows(CHUNKS_FILE), servo)
        windows = read_json_lines(self._windows)
        speeds = planned_speeds(windows, valid_s, to_steady_s(servo))
        return rest_of(name, self._arm(), killed_s, valid_s, speeds, self._braking())

    def _braking(self) -> list[float]:
        """Braking acceleration that the buffer allows, rad/s^2 per joint."""
        buffer = self._plan.parameters("buffer_node")
        limits = load_robot_limits(
            joint_names=(),
            robot_file=buffer["robot_file"],
            robot_description="",
            robot_description_file="",
        )
        return [most * buffer["acceleration_share"] for most in limits.acceleration]

    def _plays(self) -> bool:
        """Whether the newest servo ticks execute a chunk."""
        path = self._plan.directory / SERVO_FILE
        if not path.exists():
            return False
        servo = read_rows(path)
        recent = servo["t_s"] >= time.monotonic() - 0.5
        return bool(recent.sum() > 10 and not servo["underrun"][recent].any())

    def _arm(self) -> RowTable:
        return self._rows("arm.rows")

    def _rows(self, name: str) -> RowTable:
        return read_rows(self._plan.directory / name)

    # The stack ---------------------------------------------------------------------------------

    def _wait(self, stack: Supervisor, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            self._watch.poll(stack)


def loop_settings(plan: SessionPlan) -> tuple[float, int]:
    """Rate [Hz] and priority of the safety loop in this stack."""
    safety = plan.parameters("safety_node")
    return float(safety["rate_hz"]), int(safety["realtime_priority"])


def loop_of(status: Sequence[Mapping[str, Any]], span_ns: tuple[int, int]) -> Loop:
    """Timing from safety_status: the last percentiles, and the ticks lost within `span_ns` of ROS
    time, those in which the bare loop ran.

    Raises:
        ValueError: fewer than two of them within the span.
    """
    begun_ns, ended_ns = span_ns
    within = [one for one in status if begun_ns <= one["ros_ns"] <= ended_ns]
    if len(within) < 2:
        raise ValueError(f"{len(within)} safety_status in the window, expected at least 2")
    jitter = status[-1]["loop_jitter_ms"]
    return Loop(
        p50_ms=jitter["p50"],
        p99_ms=jitter["p99"],
        p999_ms=jitter["p999"],
        max_ms=jitter["max"],
        lost=int(within[-1]["lost_ticks"]) - int(within[0]["lost_ticks"]),
    )
