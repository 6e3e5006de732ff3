"""Buffer and safety controller as a chunk executor of the fast closed loop.

The decisions of buffer_node and safety_node are pure, so the fast loop runs the same code: the
chunk timeline, the windows that it hands off, the safety filter that checks, slows down or refuses
each window, and the rebase of the timeline on the commanded motion. Not modelled: message transport
between the nodes (`transit_s` is a constant for it), and joint states that differ from the
commanded motion.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

import numpy as np

from physis_core.files import read_file
from physis_core.observe.percentiles import percentiles_of
from physis_core.types import Array, UserError
from physis_lab.evaluation.chunk_execution import ArrivedChunk
from physis_ros.node.share import share_directory
from physis_ros.robot.joint_limits import RobotLimits
from physis_ros.robot.joint_motion import CommandedTrajectory
from physis_ros.safety.filter import SafetyFilter
from physis_ros.safety.types import Instant, SafetyConfig, Verdict
from physis_ros.timeline.chunk_timeline import ChunkTimeline
from physis_ros.timeline.robot_state import RobotState
from physis_ros.timeline.timed_chunk import IncomingChunk, RefusedChunk
from physis_ros.timeline.types import TimelineConfig

SOURCE = "model"
COUNTED = ("trips", "accepted", "limited", "rejected")
"""Counters of the safety filter; `limited`: slowed down."""

COMMANDED_PERIOD_S = 0.02
"""safety_node publishes the commanded state 50 times per second."""

# A capture may precede the task's start, and a stamp must not be negative.
_ZERO_S = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotSide:
    """Settings of buffer_node and safety_node. `planned`: the buffer's share of `limits`."""

    limits: RobotLimits
    planned: RobotLimits
    timeline: TimelineConfig
    safety: SafetyConfig
    transit_s: float = 0.002


class RobotSideExecutor:
    """Implements `ChunkExecutor`. Starts at rest at `start` [J] rad."""

    def __init__(self, start: Array, side: RobotSide) -> None:
        self._side = side
        self._names = side.limits.names
        self._timeline = ChunkTimeline(side.planned, side.timeline)
        self._timeline.rebase(start, np.zeros_like(start), 0)
        self._filter = SafetyFilter(side.limits, side.safety)
        self._robot = RobotState(self._names)
        self._position = start.copy()
        self._offered = 0
        self._followed_s = -_ZERO_S
        self._ticked = False
        self._verdict = Verdict.HOLD
        self.refused: list[str] = []
        """The reason of each chunk that the timeline refused."""
        self.rebases = 0
        self.ages_s: list[tuple[float, float]] = []
        """(time, action age) of every command that came from a chunk [s]."""
        self.underruns: list[float] = []
        """Times of commands without a valid chunk, after the first chunk [s]."""

    @property
    def limits(self) -> RobotLimits:
        return self._side.limits

    @property
    def timeline_config(self) -> TimelineConfig:
        return self._side.timeline

    @property
    def counts(self) -> Mapping[str, int]:
        """Counters of the safety filter, by COUNTED."""
        return {name: getattr(self._filter.counts, name) for name in COUNTED}

    @property
    def verdict(self) -> Verdict:
        """Verdict of the newest tick."""
        return self._verdict

    def offer(self, chunk: ArrivedChunk, now_s: float) -> None:
        if not self._ticked:
            self.command(now_s)
        outcome = self._timeline.offer(
            IncomingChunk(
                epoch=0,
                chunk_id=self._offered,
                capture_oldest_ns=_ns(chunk.captured_s),
                start_ns=_ns(chunk.start_s),
                step_ns=round(chunk.step_s * 1e9),
                joint_names=self._names,
                positions=chunk.points,
            ),
            _ns(now_s),
        )
        self._offered += 1
        if isinstance(outcome, RefusedChunk):
            self.refused.append(outcome.reason)
        else:
            self._hand_off(now_s)

    def command(self, t_s: float) -> Array:
        now = _instant(t_s)
        # The robot follows exactly: measured = commanded.
        self._filter.joints.see(
            self._names, self._position.tolist(), [], now.steady_s, stamp_ns=_ns(t_s)
        )
        tick = self._filter.tick(now)
        self._verdict = tick.finding.verdict
        if tick.forward is not None:
            self._filter.handover.acknowledged(now.motion_s)
        self._ticked = True
        state = self._filter.commanded(now)
        assert state is not None, "joints were seen"
        if t_s - self._followed_s >= COMMANDED_PERIOD_S - 1e-9:
            self._followed_s = t_s
            self._follow(t_s, *state)
        point = self._timeline.point(_ns(t_s))
        if point.valid:
            self.ages_s.append((t_s, point.age_s))
        elif self.ages_s:
            self.underruns.append(t_s)
        self._position = state[0].copy()
        return self._position

    def _hand_off(self, now_s: float) -> None:
        window = self._timeline.window(_ns(now_s))
        asked = _instant(now_s + self._side.transit_s)
        offered = self._filter.offer(
            CommandedTrajectory(
                joint_names=self._names,
                times_s=window.times_s.tolist(),
                positions=window.positions.tolist(),
                velocities=window.velocities.tolist(),
            ),
            SOURCE,
            asked,
            started_s=self._side.transit_s,
        )
        if offered.forward is not None:
            self._filter.handover.acknowledged(asked.motion_s + self._side.transit_s)

    def _follow(self, t_s: float, position: Array, velocity: Array) -> None:
        """Rebase the timeline when the robot is not on the planned motion, as buffer_node does."""
        planned = self._timeline.point(_ns(t_s))
        self._robot.commanded()
        if not self._robot.differs_from_plan(
            planned.position, planned.velocity, position, velocity
        ):
            return
        self.rebases += 1
        self._robot.rebased()
        if self._timeline.rebase(position, velocity, _ns(t_s), keep_newest=True):
            self._hand_off(t_s)


def side_figures(executors: Sequence[RobotSideExecutor], settle_s: float) -> dict[str, Any]:
    """The report's figures of the robot's side: action age at the servo [ms] and underruns after
    settling, and the safety counters of the whole run."""
    ages_ms = [1e3 * age_s for p in executors for at_s, age_s in p.ages_s if at_s > settle_s]
    worst = max((executor.verdict for executor in executors), default=Verdict.OK)
    return {
        "servo_age_ms": asdict(percentiles_of(ages_ms)),
        "underruns": sum(at_s > settle_s for p in executors for at_s in p.underruns),
        "dropped": sum(len(executor.refused) for executor in executors),
        "safety": {
            "state": worst.name,
            **{name: sum(p.counts[name] for p in executors) for name in COUNTED},
        },
    }


def robot_side(
    buffer: Mapping[str, Any] | None = None, safety: Mapping[str, Any] | None = None
) -> Callable[[Array], RobotSideExecutor]:
    """Makes executors with the settings of config/buffer_node.param.yaml and safety_node's.

    Args:
        buffer, safety: parameters of these nodes that override the files.

    Raises:
        UserError: a parameter, or a robot file that it names, does not fit.
    """
    from physis_ros.safety.parameters import SafetyParameters
    from physis_ros.timeline.parameters import BufferParameters

    of_buffer = _parameters(BufferParameters, "buffer_node", buffer or {})
    # The task begins with the arm at rest, so there is nothing to wait for before arming.
    begins = {"enabled_at_start": True, "rest_time_s": 0.0}
    of_safety = _parameters(SafetyParameters, "safety_node", {**begins, **(safety or {})})
    side = RobotSide(
        limits=of_safety.limits(),
        planned=of_buffer.limits().scaled(
            velocity=of_buffer.velocity_share, acceleration=of_buffer.acceleration_share
        ),
        timeline=of_buffer.timeline(),
        safety=of_safety.filter(),
    )
    return lambda start: RobotSideExecutor(start, side)


P = TypeVar("P")


def _parameters(kind: type[P], node: str, overrides: Mapping[str, Any]) -> P:
    path = share_directory() / "config" / f"{node}.param.yaml"
    values = read_file(path)["/**"]["ros__parameters"]
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    for name, value in overrides.items():
        if name not in known:
            raise UserError(f"{node}.{name}", value, f"is not a parameter of {node}")
        values[name] = value
    return kind(**values)


def _ns(at_s: float) -> int:
    return round((_ZERO_S + at_s) * 1e9)


def _instant(at_s: float) -> Instant:
    return Instant(steady_s=_ZERO_S + at_s, motion_s=_ZERO_S + at_s)
