"""Buffer, safety filter and trajectory controller on one virtual clock, with links between them.

What decides is the real code: `ActionBuffer`, `SafetyFilter`, `TrajectoryController`. What is
emulated is what lies between them: messages that are delayed, lost, repeated or out of order,
acknowledgements, queues that keep the newest message only, processes that do not run for a while,
and a model that sends random chunks. Deterministic: the same random generator gives the same run.

The robot obeys the controller exactly, unless a person moves it (`guide`). The controller runs on a
steady clock, so a jump of ROS time does not move it.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from physis_lab.bench.robot.simulated.chunk_source import ChunkSource
from physis_lab.bench.robot.simulated.counts import LoopCounts, kind_of, said
from physis_lab.bench.robot.simulated.links import Link, Links
from physis_lab.bench.robot.simulated.robot_side import CONTROLLER_S, RobotSide
from physis_ros.robot.joint_limits import RobotLimits
from physis_ros.robot.joint_motion import CommandedTrajectory, Floats
from physis_ros.safety.filter import SafetyFilter
from physis_ros.safety.surroundings import ControllerFacts, problems
from physis_ros.safety.types import (
    Decision,
    Forward,
    Instant,
    OfferedCommand,
    SafetyConfig,
)
from physis_ros.timeline.action_buffer import ActionBuffer, BufferInstant
from physis_ros.timeline.timed_chunk import IncomingChunk, RefusedChunk
from physis_ros.timeline.types import TimelineConfig

SAFETY_S = 0.005
COMMANDED_S = 0.02
SURROUNDINGS_S = 0.5
# As in config/buffer_node.param.yaml.
VELOCITY_SHARE, ACCELERATION_SHARE = 0.95, 0.6
# As physis_ros.safety.output: what was judged longer ago than this share of late_s is not sent.
_SEND_SHARE = 0.5
# Longer than anything that may still be on its way.
_REST_SHOWN_S = 0.6
_REST_LOOK_S = 0.2
_START_S = 1000.0
_START_NS = 1_700_000_000_000_000_000


@dataclass(slots=True)
class _Process:
    """Runs one callback at a time; while it is stalled, events wait."""

    free_s: float = 0.0


class ClosedLoop:
    """`run` advances everything; in between the caller may change `links`, stop processes, move
    the arm, or call safety's services through `safety`."""

    def __init__(
        self,
        limits: RobotLimits,
        home: Floats,
        random: np.random.Generator,
        *,
        timeline: TimelineConfig | None = None,
        safety: SafetyConfig | None = None,
        links: Links | None = None,
        source: ChunkSource | None = None,
        safety_s: float = SAFETY_S,
    ) -> None:
        self.limits, self.random = limits, random
        self.links = links or Links()
        self.counts = LoopCounts()
        self.robot = RobotSide(limits, home)
        self.now_s = _START_S
        self.ros_offset_ns = _START_NS - round(_START_S * 1e9)
        rules = safety or SafetyConfig(arm_at_start=True)
        self.late_s = rules.late_s
        self.safety = SafetyFilter(limits, rules)
        self.buffer = ActionBuffer(
            limits.scaled(velocity=VELOCITY_SHARE, acceleration=ACCELERATION_SHARE),
            timeline or TimelineConfig(lead_s=0.06),
        )
        self._safety_s = safety_s
        self._servo_s = (timeline or TimelineConfig()).tick_s
        self.source = source
        self.safety_lives = True
        self.foreign_publisher = False
        # An operator who arms whenever safety is disarmed.
        self.operator_arms = False
        # Shares of messages that arrive with a value that is not finite.
        self.spoiled_windows = self.spoiled_joints = 0.0
        self._last_at: dict[str, float] = {}
        self._window: CommandedTrajectory | None = None
        self._window_ns = 0
        self._window_waits = False
        self._verdict_reason = ""
        self._buffer_process, self._safety_process = _Process(), _Process()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self.buffer.begin(self._buffer_now())
        self._at(self.now_s, self._controller_tick)
        self._at(self.now_s + 1e-4, self._safety_tick)
        self._at(self.now_s + 2e-4, self._commanded_tick)
        self._at(self.now_s + 3e-4, self._servo_tick)
        self._at(self.now_s + 4e-4, self._surroundings_tick)
        if source is not None:
            self._at(self.now_s + 0.3, self._source_tick)

    # What a trial does -------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self._events[0][0] < end_s:
            self.now_s, _, act = heapq.heappop(self._events)
            act()
        self.now_s = end_s

    @property
    def rests(self) -> bool:
        """Whether the controller has commanded no velocity for `_REST_SHOWN_S`."""
        return self.robot.motion.moving_until_s(self.now_s - _REST_SHOWN_S) is None

    def run_to_rest(self, most_s: float) -> None:
        """Run until the robot rests, at most `most_s`."""
        end_s = self.now_s + most_s
        self.run(_REST_SHOWN_S)
        while not self.rests and self.now_s < end_s:
            self.run(_REST_LOOK_S)

    def stall(self, *, buffer_s: float = 0.0, safety_s: float = 0.0) -> None:
        """The executors of buffer_node and of safety_node do not run for a while; safety's loop
        has a thread of its own and goes on."""
        for process, stall_s in (
            (self._buffer_process, buffer_s),
            (self._safety_process, safety_s),
        ):
            process.free_s = max(process.free_s, self.now_s + stall_s)

    def jump_clock(self, delta_s: float) -> None:
        """ROS time jumps; both nodes notice at once."""
        self.ros_offset_ns += round(delta_s * 1e9)
        self.buffer.clock_jumped(self._buffer_now())
        self.safety.joints.forget_stamps()

    def guide(self, path: Callable[[float], Floats] | None) -> None:
        """A person moves the stopped arm along `path` (of seconds from now, [joints]); None: lets
        go."""
        begun_s = self.now_s
        self.robot.guide(None if path is None else lambda now_s: path(now_s - begun_s))

    @property
    def instant(self) -> Instant:
        return Instant(steady_s=self.now_s, motion_s=self.now_s)

    @property
    def ros_ns(self) -> int:
        return round(self.now_s * 1e9) + self.ros_offset_ns

    # Events ------------------------------------------------------------------------------------

    def _at(self, at_s: float, act: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (at_s, self._number, act))

    def _deliver(self, name: str, link: Link, act: Callable[[], None]) -> None:
        for _ in range(2 if self.random.random() < link.twice else 1):
            if self.random.random() < link.lost:
                continue
            at_s = self.now_s + link.delay_s(self.random)
            if link.ordered:
                at_s = max(at_s, self._last_at.get(name, 0.0))
                self._last_at[name] = at_s
            self._at(at_s, act)

    def _within(self, process: _Process, act: Callable[[], None]) -> Callable[[], None]:
        """`act` as a callback of a process: it waits while the process does not run."""

        def call() -> None:
            if process.free_s > self.now_s:
                self._at(process.free_s, call)
            else:
                act()

        return call

    def _buffer_now(self) -> BufferInstant:
        return BufferInstant(ros_ns=self.ros_ns, steady_s=self.now_s)

    # The model and the buffer ------------------------------------------------------------------

    def _source_tick(self) -> None:
        assert self.source is not None
        for chunk in self.source.chunks(self.ros_ns, self.robot.position):
            self.counts.chunks += 1
            self._deliver(
                "chunk",
                self.links.chunks,
                self._within(self._buffer_process, self._chunk_arrival(chunk)),
            )
        self._at(self.now_s + self.source.wait_s(), self._source_tick)

    def _chunk_arrival(self, chunk: IncomingChunk) -> Callable[[], None]:
        def arrive() -> None:
            answer = self.buffer.chunk(chunk, self._buffer_now())
            if isinstance(answer.outcome, RefusedChunk):
                self.counts.refused_chunks[answer.outcome.why.name] += 1
            if answer.send:
                self._send_window()

        return arrive

    def _servo_tick(self) -> None:
        # A timer that missed ticks fires once.
        self._at(self.now_s + self._servo_s, self._servo_tick)
        if self._buffer_process.free_s > self.now_s:
            return
        if self.buffer.tick(self._buffer_now()):
            self._send_window()

    def _commanded_tick(self) -> None:
        self._at(self.now_s + COMMANDED_S, self._commanded_tick)
        state = self.safety.commanded(self.instant) if self.safety_lives else None
        if state is None:
            return
        position, velocity = state
        stamp_ns = self.ros_ns

        def arrive() -> None:
            if self.buffer.commanded(position, velocity, stamp_ns, self._buffer_now()):
                self._send_window()

        self._deliver("commanded", self.links.commanded, self._within(self._buffer_process, arrive))

    def _send_window(self) -> None:
        window = self.buffer.window(self._buffer_now())
        self.counts.windows += 1
        stamp_ns = self.ros_ns
        positions = window.positions
        if self.random.random() < self.spoiled_windows:
            positions = positions.copy()
            positions[0, 0] = np.nan
        command = CommandedTrajectory(
            joint_names=self.limits.names,
            # A message carries whole nanoseconds.
            times_s=[round(time_s * 1e9) * 1e-9 for time_s in window.times_s.tolist()],
            positions=positions,
            velocities=window.velocities,
        )

        def arrive() -> None:
            # The queue keeps the newest.
            self._window, self._window_ns = command, stamp_ns
            if not self._window_waits:
                self._window_waits = True
                self._within(self._safety_process, self._judge_window)()

        self._deliver("window", self.links.windows, arrive)

    # Safety ------------------------------------------------------------------------------------

    def _judge_window(self) -> None:
        command, stamp_ns = self._window, self._window_ns
        self._window_waits = False
        if command is None or not self.safety_lives:
            return
        self._judge(
            OfferedCommand(
                command=command,
                source="model",
                asked=self.instant,
                started_s=(self.ros_ns - stamp_ns) * 1e-9,
            )
        )

    def _judge(self, offered: OfferedCommand) -> None:
        request = self.safety.request(offered)
        if isinstance(request, Decision):
            self._note(request)
            return
        judgement = self.safety.judge(request, offered)

        def decide() -> None:
            if not self.safety_lives:
                return
            decision = self.safety.decide(request, judgement, self.instant)
            self._note(decision)
            self._send(decision.forward)

        # Judging takes a while, during which the loop may tick and a message be acknowledged.
        done_s = self.now_s + float(self.random.uniform(0.0005, 0.004))
        self._safety_process.free_s = max(self._safety_process.free_s, done_s)
        self._at(done_s, self._within(self._safety_process, decide))

    def _note(self, decision: Decision) -> None:
        kind = kind_of(decision)
        self.counts.judged[kind] += 1
        self.counts.examples.setdefault(kind, decision.finding.reason)

    def _safety_tick(self) -> None:
        self._at(self.now_s + self._safety_s, self._safety_tick)
        if not self.safety_lives:
            return
        result = self.safety.tick(self.instant)
        reason = f"{result.finding.verdict.name} {said(result.finding.reason)}".strip()
        if reason != self._verdict_reason:
            self._verdict_reason = reason
            self.counts.said[reason] += 1
        self._send(result.forward)

    def _surroundings_tick(self) -> None:
        self._at(self.now_s + SURROUNDINGS_S, self._surroundings_tick)
        facts = ControllerFacts(
            topic="joint_trajectory",
            publishers=("/foreign",) if self.foreign_publisher else (),
            state="active" if self.robot.active else "inactive",
        )
        self.safety.surroundings(problems(facts, self.limits.names, positions=False))
        if self.operator_arms and not self.safety.enabled:
            self.safety.arm(self.instant)

    def _send(self, forward: Forward | None) -> None:
        if forward is None:
            return
        if self.now_s - forward.at_s > _SEND_SHARE * self.late_s:
            taken_s = acknowledged_s = math.inf
        else:
            taken_s, acknowledged_s = self._way_of_trajectory(forward)
        self.robot.send(forward, taken_s=taken_s, acknowledged_s=acknowledged_s)
        if math.isfinite(acknowledged_s):
            self._at(acknowledged_s, self._acknowledge)

    def _acknowledge(self) -> None:
        done = self.robot.all_acknowledged(self.now_s)
        if self.safety_lives and self.safety.handover.in_flight and done:
            self.safety.handover.acknowledged(self.now_s)
            waiting = self.safety.waiting(self.instant)
            if waiting is not None:
                self._judge(waiting)

    def _way_of_trajectory(self, forward: Forward) -> tuple[float, float]:
        """When it is taken, and when safety learns that it has arrived."""
        links, random = self.links, self.random
        if random.random() < links.trajectories.lost:
            return math.inf, math.inf
        arrives_s = self.now_s + links.trajectories.delay_s(random)
        taken_s = arrives_s + links.taking.delay_s(random)
        # What the proof assumes: taken within late_s, by a controller that looks once a period.
        taken_s = min(taken_s, forward.at_s + self.late_s - CONTROLLER_S)
        arrives_s = min(arrives_s, taken_s)
        taken_s = max(taken_s, self.robot.latest_taken_s())
        if random.random() < links.acknowledgements.lost:
            return taken_s, math.inf
        return taken_s, arrives_s + links.acknowledgements.delay_s(random)

    # The controller ----------------------------------------------------------------------------

    def _controller_tick(self) -> None:
        self._at(self.now_s + CONTROLLER_S, self._controller_tick)
        self.robot.tick(self.now_s, in_flight=self.safety.handover.in_flight)
        names, position, velocity = (
            self.limits.names,
            self.robot.position.tolist(),
            self.robot.velocity.tolist(),
        )
        stamp_ns = self.ros_ns
        if self.random.random() < self.spoiled_joints:
            position[0] = math.nan

        def arrive() -> None:
            self.safety.joints.see(names, position, velocity, self.now_s, stamp_ns=stamp_ns)

        self._deliver("joints", self.links.joints, self._within(self._safety_process, arrive))
