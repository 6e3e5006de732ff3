"""The robot's side as a player of the fast closed loop: buffer and safety, by their own code.

What buffer_node and safety_node decide is pure, so the fast loop runs the very same: the action
timeline, the windows that it hands off, the safety filter that judges each, slows it down or
refuses it, and the timeline that follows where the robot is commanded to be. What is not here: the
time that messages take between the nodes (`transit_s` stands for it), and joint states that differ
from the commanded motion.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

import numpy as np
import yaml

from physis_core.observe.percentiles import percentiles_of
from physis_core.types import Array, UserError
from physis_lab.evaluation.chunk_execution import Chunk
from physis_ros.node.share import share_directory
from physis_ros.robot.joint_limits import RobotLimits
from physis_ros.robot.joint_motion import CommandedTrajectory
from physis_ros.safety.filter import SafetyFilter
from physis_ros.safety.types import Instant, SafetyConfig, Verdict
from physis_ros.timeline.chunk_timeline import ChunkTimeline
from physis_ros.timeline.robot_place import RobotPlace
from physis_ros.timeline.timed_chunk import IncomingChunk, RefusedChunk
from physis_ros.timeline.types import TimelineConfig

SOURCE = "model"
COUNTED = ("trips", "accepted", "limited", "rejected")
"""`limited`: slowed down."""

COMMANDED_PERIOD_S = 0.02
"""safety_node says 50 times a second where the robot is commanded to be."""

# A capture may lie before the task's beginning, and a stamp is no negative number.
_ZERO_S = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotSide:
    """How buffer_node and safety_node are set. `planned` limits are the buffer's share of
    `limits`."""

    limits: RobotLimits
    planned: RobotLimits
    timeline: TimelineConfig
    safety: SafetyConfig
    transit_s: float = 0.002


class RobotSidePlayer:
    """Implements `chunk_execution.Player`. Begins at rest at `start` [J] rad."""

    def __init__(self, start: Array, side: RobotSide) -> None:
        self._side = side
        self._names = side.limits.names
        self._timeline = ChunkTimeline(side.planned, side.timeline)
        self._timeline.rebase(start, np.zeros_like(start), 0)
        self._filter = SafetyFilter(side.limits, side.safety)
        self._place = RobotPlace(self._names)
        self._position = start.copy()
        self._offered = 0
        self._told_s = -_ZERO_S
        self._looked = False
        self._verdict = Verdict.HOLD
        self.refused: list[str] = []
        """Why, one line for each chunk that the timeline refused."""
        self.rebases = 0
        self.ages_s: list[tuple[float, float]] = []
        """(time, action age) of every command that a chunk stood behind [s]."""
        self.underruns: list[float] = []
        """When a command had no chunk behind it any more, once one had begun [s]."""

    @property
    def limits(self) -> RobotLimits:
        return self._side.limits

    @property
    def timeline_config(self) -> TimelineConfig:
        return self._side.timeline

    @property
    def counts(self) -> Mapping[str, int]:
        """What safety made of the windows, by COUNTED."""
        return {name: getattr(self._filter.counts, name) for name in COUNTED}

    @property
    def verdict(self) -> Verdict:
        """Of the newest tick."""
        return self._verdict

    def offer(self, chunk: Chunk, now_s: float) -> None:
        if not self._looked:
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
        # The robot obeys: what it measures is what it was commanded to.
        self._filter.joints.see(
            self._names, self._position.tolist(), [], now.steady_s, stamp_ns=_ns(t_s)
        )
        tick = self._filter.tick(now)
        self._verdict = tick.finding.verdict
        if tick.forward is not None:
            self._filter.handover.taken(now.motion_s)
        self._looked = True
        state = self._filter.commanded(now)
        assert state is not None, "joints were seen"
        if t_s - self._told_s >= COMMANDED_PERIOD_S - 1e-9:
            self._told_s = t_s
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
            self._filter.handover.taken(asked.motion_s + self._side.transit_s)

    def _follow(self, t_s: float, position: Array, velocity: Array) -> None:
        """As buffer_node does where the robot is on another motion than the plan's."""
        planned = self._timeline.point(_ns(t_s))
        self._place.commanded()
        if not self._place.another_motion(planned.position, planned.velocity, position, velocity):
            return
        self.rebases += 1
        self._place.rebased()
        if self._timeline.rebase(position, velocity, _ns(t_s), keep_newest=True):
            self._hand_off(t_s)


def side_figures(players: Sequence[RobotSidePlayer], settle_s: float) -> dict[str, Any]:
    """What a report says of the robot's side: action age at the servo [ms] and underruns after
    settling, and what safety did in the whole."""
    ages_ms = [1e3 * age_s for p in players for at_s, age_s in p.ages_s if at_s > settle_s]
    worst = max((player.verdict for player in players), default=Verdict.OK)
    return {
        "servo_age_ms": asdict(percentiles_of(ages_ms)),
        "underruns": sum(at_s > settle_s for p in players for at_s in p.underruns),
        "dropped": sum(len(player.refused) for player in players),
        "safety": {
            "state": worst.name,
            **{name: sum(p.counts[name] for p in players) for name in COUNTED},
        },
    }


def robot_side(
    buffer: Mapping[str, Any] | None = None, safety: Mapping[str, Any] | None = None
) -> Callable[[Array], RobotSidePlayer]:
    """Players as config/buffer_node.param.yaml and config/safety_node.param.yaml say.

    Args:
        buffer, safety: parameters of these nodes that were run with other values.

    Raises:
        UserError: a parameter, or a robot file that it names, does not fit.
    """
    from physis_ros.safety.parameters import SafetyParameters
    from physis_ros.timeline.parameters import BufferParameters

    of_buffer = _parameters(BufferParameters, "buffer_node", buffer or {})
    of_safety = _parameters(SafetyParameters, "safety_node", safety or {})
    side = RobotSide(
        limits=of_safety.limits(),
        planned=of_buffer.limits().scaled(
            velocity=of_buffer.velocity_share, acceleration=of_buffer.acceleration_share
        ),
        timeline=of_buffer.timeline(),
        safety=of_safety.filter(),
    )
    return lambda start: RobotSidePlayer(start, side)


P = TypeVar("P")


def _parameters(kind: type[P], node: str, overrides: Mapping[str, Any]) -> P:
    path = share_directory() / "config" / f"{node}.param.yaml"
    values = yaml.safe_load(path.read_text())["/**"]["ros__parameters"]
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    for name, value in overrides.items():
        if name not in known:
            raise UserError(f"{node}.{name}", value, f"is no parameter of {node}")
        values[name] = value
    return kind(**values)


def _ns(at_s: float) -> int:
    return round((_ZERO_S + at_s) * 1e9)


def _instant(at_s: float) -> Instant:
    return Instant(steady_s=_ZERO_S + at_s, motion_s=_ZERO_S + at_s)
