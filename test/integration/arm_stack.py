"""A robot of real processes with a restless model, and the simulated arm as the judge."""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from restless_model import STEP_S

from physis_core.observe.rowlog import RowTable, read_rows
from physis_lab.arm.judge import MotionJudge, Passed
from physis_lab.arm.kinematics import HOME_RAD
from physis_lab.arm.limits import JOINT_NAMES, UR5E_LIMITS
from physis_lab.robot.conversions import trajectory_of
from physis_ros.msg import SafetyStatus, StreamStatus
from physis_ros.node.interfaces import (
    ACTION_CHUNK,
    JOINT_TRAJECTORY,
    SAFETY_STATUS,
    STREAM_STATUS,
    Topic,
    in_namespace,
    reliable,
)
from physis_ros.node.time_messages import duration_to_seconds, time_to_ns
from physis_ros.robot.point_interpolation import MotionState
from physis_ros.robot.trajectory_controller import (
    ControllerConfig,
    Trajectory,
    TrajectoryController,
)

ROBOT_SIDE = ("safety_node", "robot_sim_node", "observation_node", "buffer_node")
ENGINE = ("workers:=0", "devices:=1", "partition:=sequential", "max_batch:=1")
BRAKE_RAD_S2 = 0.6 * min(UR5E_LIMITS.acceleration_rad_s2)
"""What the buffer's plans brake with: its acceleration_share of the limit."""
LATE_S = 0.2
"""What safety forwards may begin so late (its late_s), and so end so late."""
TICK_S = 0.008
_MOVING_RAD_S = 0.05
_REST_S = 0.3
# Reading the record takes a while; oftener, and the messages would wait.
_LOOK_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """The arm's commands stand still from `at_s` (steady) on; `fastest` [rad/s] before that."""

    at_s: float
    fastest: float

    @property
    def braking_s(self) -> float:
        return self.fastest / BRAKE_RAD_S2


class ArmStack:
    """The processes of one robot, in a namespace, and what they say. `record`: where the arm writes
    its ticks. With `engine`, the engine is one of them. `arguments`: ROS arguments by node."""

    def __init__(
        self,
        ros: Any,
        model: Path,
        record: Path,
        *,
        namespace: str = "",
        stream_id: str = "arm",
        engine: bool = True,
        use_sim_time: bool = False,
        arguments: Mapping[str, tuple[str, ...]] | None = None,
        chunk_topic: Topic = ACTION_CHUNK,
    ) -> None:
        self.ros = ros
        self.record = record
        self.processes: dict[str, Any] = {}
        self._place = ("-r", f"__ns:=/{namespace}") if namespace else ()
        self._common = ("use_sim_time:=true",) if use_sim_time else ()
        self._arguments = dict(arguments or {})
        self._parameters: dict[str, tuple[str, ...]] = {
            "safety_node": ("enabled_at_start:=true",),
            "robot_sim_node": (
                f"record_path:={record}",
                "width:=64",
                "height:=64",
                "camera_hz:=20.0",
            ),
            "observation_node": (f"model:={model}", f"stream_id:={stream_id}"),
            "buffer_node": (f"stream_id:={stream_id}",),
            "engine_node": (f"model:={model}", *ENGINE, f"stream_ids:=[{stream_id}]"),
        }
        self.names = (*ROBOT_SIDE, "engine_node") if engine else ROBOT_SIDE
        self.safety: list[Any] = ros.listen(in_namespace(SAFETY_STATUS, namespace))
        self.stream: list[Any] = ros.listen(in_namespace(STREAM_STATUS, namespace))
        self.chunks: list[Any] = ros.listen(in_namespace(chunk_topic, namespace))
        self.forwarded: list[Any] = []
        self._sent: list[tuple[float, Trajectory]] = []
        self._stamped_by_wall = not use_sim_time
        trajectories = in_namespace(JOINT_TRAJECTORY, namespace)
        ros.node.create_subscription(
            trajectories.type, trajectories.name, self._on_trajectory, reliable(100)
        )
        self._rows: RowTable | None = None
        self._read_s = 0.0
        self._wall_minus_steady_s = time.time() - time.monotonic()

    def start(self) -> ArmStack:
        for name in self.names:
            self.start_node(name)
        return self

    def start_node(self, name: str) -> None:
        self.processes[name] = self.ros.start(
            name,
            *self._parameters[name],
            *self._common,
            arguments=(*self._place, *self._arguments.get(name, ())),
        )

    # What is seen ------------------------------------------------------------------------------

    def rows(self, oldest_s: float = 0.0) -> RowTable:
        """The arm's record, read not longer than `oldest_s` ago."""
        now_s = time.monotonic()
        if self._rows is None or now_s - self._read_s > oldest_s:
            self._rows, self._read_s = read_rows(self.record / "arm.rows"), now_s
        return self._rows

    def speed(self) -> float:
        """Of the fastest joint's command [rad/s], over the ticks written last."""
        rows = self.rows(_LOOK_S)
        return float(_speeds(rows)[-25:].max()) if rows.rows else 0.0

    def assert_no_limit_passed(self) -> None:
        """At any tick, of everything that was forwarded so far.

        Safety answers for what is taken within LATE_S of its judgement. Where the arm's record
        shows a limit passed, it also shows when each trajectory was taken: if none was later than
        that, the stack passed the limit. If one was, because the machine kept the arm's process
        waiting, all is played again by the same controller and judge as the arm has, each
        trajectory taken when it was, but none later than safety allows for.
        """
        rows = self.rows()
        over = np.flatnonzero(rows["limit"])
        if not over.size:
            return
        judged_s = sorted(one[0] for one in self._sent)
        taken_s = times_taken(rows["t_s"], rows["accepted"] + rows["refused"], judged_s)
        late = [
            taken - judged for judged, taken in zip(judged_s, taken_s) if taken > judged + LATE_S
        ]
        assert late, f"passed at {rows['t_s'][over]}, and nothing was taken late"
        passed = {}
        controller = TrajectoryController(
            ControllerConfig(joint_names=JOINT_NAMES, interpolate_from_desired_state=True),
            _still(np.array(HOME_RAD)),
        )
        judge = MotionJudge(UR5E_LIMITS, TICK_S, tolerance=0.05)
        told = sorted(self._sent, key=lambda one: one[0])
        position = np.array(HOME_RAD)
        waiting = deque(
            (min(taken, judged + LATE_S), trajectory)
            for taken, (judged, trajectory) in zip(taken_s, told)
        )
        tick_s = waiting[0][0]
        while waiting or tick_s < time.monotonic():
            while waiting and waiting[0][0] <= tick_s:
                assert controller.accept(waiting.popleft()[1], tick_s) is None
            position = controller.update(tick_s, _still(position)).state.position.copy()
            found = judge.look(position, position, np.zeros(len(position)))
            if found is not Passed.NONE:
                passed[round(tick_s, 3)] = found
            tick_s += TICK_S
        assert passed == {}

    def _on_trajectory(self, message: Any, info: Any) -> None:
        self.forwarded.append(message)
        sent_s = info["source_timestamp"] * 1e-9 - self._wall_minus_steady_s
        # What safety judged in simulated time starts as it is sent.
        start_s = self.steady_s(message.header.stamp) if self._stamped_by_wall else sent_s
        self._sent.append((min(sent_s, start_s), trajectory_of(message, start_s)))

    @staticmethod
    def now_s() -> float:
        """On the steady clock of the arm's record."""
        return time.monotonic()

    def steady_s(self, stamp: Any) -> float:
        """A stamp of wall time, on the steady clock of the arm's record."""
        return time_to_ns(stamp) * 1e-9 - self._wall_minus_steady_s

    def chunks_end_s(self, *, until_s: float = float("inf")) -> float:
        """When the last point of all chunks that left the engine before `until_s` is due."""
        ends = [
            self.steady_s(chunk.start) + STEP_S * (len(chunk.positions) // len(JOINT_NAMES) - 1)
            for chunk in self.chunks
            if self.steady_s(chunk.header.stamp) <= until_s
        ]
        return max(ends)

    def forwarded_end_s(self) -> float:
        """When the last of all trajectories that were forwarded so far comes to rest."""
        return max(
            self.steady_s(one.header.stamp) + duration_to_seconds(one.points[-1].time_from_start)
            for one in self.forwarded
        )

    # What is waited for ------------------------------------------------------------------------

    def wait_moving(self) -> None:
        """All is well: new chunks are played, safety lets them pass, and the arm moves."""
        self.safety.clear()
        self.stream.clear()
        # The stack may hear a new engine before this process does.
        chunks, forwarded = len(self.chunks), len(self.forwarded)
        self.ros.wait(
            lambda: (
                self.safety
                and self.safety[-1].verdict <= SafetyStatus.LIMIT
                and self.stream
                and self.stream[-1].state == StreamStatus.PLAYING
                and len(self.chunks) > chunks
                and len(self.forwarded) > forwarded
                and self.speed() > _MOVING_RAD_S
            ),
            "the arm to move",
        )
        # What is waited for next must be said anew.
        self.safety.clear()
        self.stream.clear()

    def wait_rest(self, after_s: float) -> Rest:
        """The first rest that begins after `after_s` and lasts."""
        found: list[Rest] = []

        def resting() -> bool:
            rows = self.rows(_LOOK_S)
            late = rows["t_s"] > after_s
            times, speeds = rows["t_s"][late], _speeds(rows)[late]
            still = speeds < 1e-9
            if not times.size or not still[-1]:
                return False
            moving = np.flatnonzero(~still)
            first = int(moving[-1]) + 1 if moving.size else 0
            if times[-1] - times[first] < _REST_S:
                return False
            found.append(Rest(at_s=float(times[first]), fastest=float(speeds.max())))
            return True

        self.ros.wait(resting, "the arm to rest")
        # What was said before is heard by now.
        self.pause(_LOOK_S)
        return found[-1]

    def wait_held(self) -> None:
        """Safety says that it holds, and why: no command comes, or the last one was refused."""
        reasons = ("model: no command for", "model: rejected: ")
        self.ros.wait(
            lambda: any(
                one.verdict == SafetyStatus.HOLD and one.reason.startswith(reasons)
                for one in self.safety
            ),
            f"HOLD {reasons}",
        )

    def wait_stream(self, state: int, reason: str) -> None:
        self.ros.wait(
            lambda: any(one.state == state and reason in one.reason for one in self.stream),
            f"stream state {state} {reason!r}",
        )

    # Faults ------------------------------------------------------------------------------------

    @contextmanager
    def stopped(self, name: str, at_least_s: float) -> Iterator[float]:
        """The process does not run inside, and for `at_least_s`; gives the steady time of it."""
        process = self.processes[name]
        os.kill(process.pid, signal.SIGSTOP)
        stopped_s = time.monotonic()
        try:
            yield stopped_s
            self.pause(stopped_s + at_least_s - time.monotonic())
        finally:
            os.kill(process.pid, signal.SIGCONT)

    def pause(self, seconds: float) -> None:
        """The length of a fault, not a wait for anything: messages are heard meanwhile."""
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            self.ros.spin(0.02)


def times_taken(ticks_s: Any, taken: Any, judged_s: Sequence[float]) -> list[float]:
    """When each trajectory was taken that was judged at `judged_s` (sorted), from the arm's record:
    its ticks and how many it had taken by each [ticks].

    Where the arm took fewer than were sent, a newer one replaced some before they were taken, or
    they are still on their way: then each counts as taken at the first tick after it at which one
    was, and the last ones, after which none was, at the last tick.
    """
    steps = np.flatnonzero(np.diff(taken, prepend=0.0) > 0.0)
    if int(taken[-1]) == len(judged_s):
        index = np.searchsorted(taken, np.arange(1, len(judged_s) + 1))
        return [float(at) for at in ticks_s[index]]
    takings = np.append(ticks_s[steps], ticks_s[-1])
    after = np.minimum(np.searchsorted(takings, judged_s), takings.size - 1)
    return [float(max(judged, at)) for judged, at in zip(judged_s, takings[after])]


def _still(position: Any) -> MotionState:
    zeros = np.zeros(len(position))
    return MotionState(position=position, velocity=zeros, acceleration=zeros)


def _speeds(rows: RowTable) -> Any:
    """Of the fastest joint, as commanded, [ticks] rad/s."""
    return np.max([np.abs(rows[f"cmdd{j}"]) for j in range(len(JOINT_NAMES))], axis=0)
