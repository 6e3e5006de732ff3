"""One run of the demo's stack for `physis bench safety`: loop beside a loaded engine, then kills.

Real processes: the stack is started as `physis demo` starts it. For the loop every core is kept
busy beside the engine, which alone would leave some idle. What is killed is killed with SIGKILL.
Engine and buffer are started again by the stack itself, and must move the arm again before the next
kill; the last one takes everything but the arm.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from physis_core.observe.rowlog import RowTable, read_rows
from physis_lab.bench.robot.process_time import group_cpu_s
from physis_lab.bench.robot.safety_rest import (
    Rest,
    last_valid_s,
    planned_speeds,
    rest_of,
    resting_since,
    speed_now,
    to_steady_s,
)
from physis_lab.session.session import SessionPlan, plan_session
from physis_ros.node.domain import choose
from physis_ros.robot.robot_files import load_robot_limits
from physis_ros.stack.resolution import ProcessSpec
from physis_ros.stack.supervisor import Supervisor
from physis_ros.timeline.stream_record import CHUNKS_FILE, SERVO_FILE

START_LIMIT_S = 180.0
SETTLE_S = 3.0
REST_LIMIT_S = 10.0
MOVING_RAD_S = 0.15
"""A kill waits until the arm moves as fast as this, so that there is something to stop."""
_LOOK_S = 0.1
_POLL_S = 0.2
_SPARED = ("robot_sim_node", "recorder_node", "safety_probe")

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """One loop over one window: lateness of its ticks [ms], ticks lost."""

    p50_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float
    lost: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StackRun:
    """`realtime`: empty where it was granted, else why not. `engine_cpu`: cores that the engine
    used meanwhile. `violations`: ticks of the arm that passed a limit, over the whole run."""

    safety: Loop
    bare: Loop
    realtime: str
    engine_cpu: float
    rests: Sequence[Rest]
    violations: int


class StackTrial:
    """Raises RuntimeError, with what the processes said last, where a run does not come to its
    end."""

    def __init__(self, folder: Path, seconds: float, tell: Tell) -> None:
        self._seconds = seconds
        self._tell = tell
        self._said: list[str] = []
        self._rate_hz, self._priority = loop_settings(plan_session(folder, domain=choose()))
        # So that what safety_status says at the end of the window is of this window alone.
        window = round(self._rate_hz * seconds)
        self._plan: SessionPlan = plan_session(
            folder, domain=choose(), sets=[f"safety_node.jitter_window={window}"]
        )

    def run(self) -> StackRun:
        plan = self._plan
        probe = ProcessSpec(
            name="safety_probe",
            command=(
                sys.executable,
                "-m",
                "physis_lab.bench.nodes.safety_probe",
                "windows",
                str(self._windows),
            ),
            must_live=True,
        )
        with Supervisor([*plan.processes, probe], environment=plan.environment) as stack:
            self._tell("starting the stack")
            self._until(
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
                self._until(
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
        bare = ProcessSpec(
            name="bare_loop",
            command=(sys.executable, "-m", "physis_lab.bench.robot.bare_loop", *words),
        )
        busy = [
            ProcessSpec(
                name=f"busy_core_{core}",
                command=(sys.executable, "-m", "physis_lab.bench.robot.busy_core"),
                env={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                must_live=True,
            )
            for core in range(len(os.sched_getaffinity(0)))
        ]
        engine = stack.pids()["engine_node"]
        cpu_s, begun_s, begun_ns = group_cpu_s(engine), time.monotonic(), time.time_ns()
        environment = self._plan.environment
        with (
            Supervisor(busy, environment=environment) as load,
            Supervisor([bare], environment=environment) as yard,
        ):
            while not yard.idle:
                self._said += [f"{e.process}: {e.text}" for e in yard.poll(_POLL_S)]
                self._look_after(load)
                self._look_after(stack)
        cores = (group_cpu_s(engine) - cpu_s) / (time.monotonic() - begun_s)
        if not path.exists():
            raise RuntimeError("\n".join(["the bare loop did not end well", *self._said[-20:]]))
        found = json.loads(path.read_text())
        # The percentiles that safety_status carries are up to a second old.
        self._wait(stack, 1.5)
        yardstick = Loop(
            p50_ms=found["p50"],
            p99_ms=found["p99"],
            p999_ms=found["p999"],
            max_ms=found["max"],
            lost=found["lost"],
        )
        status = self._safety_status(begun_ns)
        granted = bool(status[-1]["realtime"])
        reason = "" if granted else "SCHED_FIFO was not granted"
        return loop_of(status), yardstick, reason, cores

    def _safety_status(self, since_ns: int) -> list[Mapping[str, Any]]:
        entries = whole_lines(self._plan.directory / "status.jsonl")
        return [e for e in entries if e["topic"] == "safety_status" and e["ros_ns"] >= since_ns]

    # Kills -------------------------------------------------------------------------------------

    def _kill(self, stack: Supervisor, name: str, victims: Sequence[str]) -> Rest:
        pids = stack.pids()
        for victim in victims:
            # Each leads a group of its own; the engine's workers are in it.
            os.killpg(pids[victim], signal.SIGKILL)
        killed_s = time.monotonic()
        # Nobody is polled meanwhile, so nothing is started again before the arm rests.
        while resting_since(self._arm(), killed_s) is None:
            if time.monotonic() - killed_s > REST_LIMIT_S:
                raise RuntimeError(f"{name} killed: the arm does not rest in {REST_LIMIT_S:g} s")
            time.sleep(_LOOK_S)
        servo = self._rows(SERVO_FILE)
        valid_s = last_valid_s(self._rows(CHUNKS_FILE), servo)
        windows = whole_lines(self._windows)
        speeds = planned_speeds(windows, valid_s, to_steady_s(servo))
        return rest_of(name, self._arm(), killed_s, valid_s, speeds, self._braking())

    def _braking(self) -> list[float]:
        """With what the buffer lets the arm brake, rad/s^2 of each joint."""
        buffer = self._plan.parameters("buffer_node")
        limits = load_robot_limits(
            joint_names=(),
            robot_file=buffer["robot_file"],
            robot_description="",
            robot_description_file="",
        )
        return [most * buffer["acceleration_share"] for most in limits.acceleration]

    def _plays(self) -> bool:
        """The newest servo ticks of a buffer that lives play a chunk."""
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

    def _until(
        self, stack: Supervisor, done: Callable[[], bool], what: str, limit_s: float
    ) -> None:
        end_s = time.monotonic() + limit_s
        while not done():
            self._look_after(stack)
            if time.monotonic() > end_s:
                raise RuntimeError("\n".join([f"waited in vain for {what}", *self._said[-20:]]))

    def _wait(self, stack: Supervisor, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            self._look_after(stack)

    def _look_after(self, stack: Supervisor) -> None:
        for event in stack.poll(_LOOK_S):
            if event.text:
                self._said.append(f"{event.process}: {event.text}")
        if stack.failure is not None:
            raise RuntimeError("\n".join([stack.failure, *self._said[-20:]]))


def whole_lines(path: Path) -> list[dict[str, Any]]:
    """JSON objects, one a line; a line that is still being written is left out."""
    lines = path.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def loop_settings(plan: SessionPlan) -> tuple[float, int]:
    """Rate [Hz] and priority of safety's loop, as the stack sets them."""
    safety = plan.parameters("safety_node")
    return float(safety["rate_hz"]), int(safety["realtime_priority"])


def loop_of(status: Sequence[Mapping[str, Any]]) -> Loop:
    """What safety_status said over a window: its last percentiles, and the ticks lost in between.

    Raises:
        ValueError: fewer than two of them.
    """
    if len(status) < 2:
        raise ValueError(f"{len(status)} safety_status in the window, expected at least 2")
    jitter = status[-1]["loop_jitter_ms"]
    return Loop(
        p50_ms=jitter["p50"],
        p99_ms=jitter["p99"],
        p999_ms=jitter["p999"],
        max_ms=jitter["max"],
        lost=int(status[-1]["lost_ticks"]) - int(status[0]["lost_ticks"]),
    )
