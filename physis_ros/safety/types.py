"""The nouns of the safety controller: verdicts, configuration, clocks, and its answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum

from physis_core.types import UserError
from physis_ros.robot.joint_motion import CommandedTrajectory, Floats
from physis_ros.safety.arming import Answer
from physis_ros.safety.command_sources import Source
from physis_ros.safety.joint_watch import JointRules
from physis_ros.safety.motion.controller_estimate import ControllerEstimate
from physis_ros.safety.motion.tool_limits import ToolLimits


class Verdict(IntEnum):
    """The most severe verdict wins; STOP is latched until reset. Values as in SafetyStatus."""

    OK = 0
    LIMIT = 1
    HOLD = 2
    STOP = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check at one tick, with a reason in one line."""

    verdict: Verdict
    reason: str


FINE = Finding(verdict=Verdict.OK, reason="")


def most_severe(findings: Iterable[Finding]) -> Finding:
    """The first of the most severe findings; FINE where there is none."""
    return max(findings, key=lambda finding: finding.verdict, default=FINE)


class StopLatch:
    """Latches the first STOP. Only `reset` releases it, when the cause is gone and the cooldown
    since the last cause is over. Times are seconds of a steady clock."""

    def __init__(self, cooldown_s: float) -> None:
        self._cooldown_s = cooldown_s
        self._finding: Finding | None = None
        self._last_cause_s = 0.0

    @property
    def finding(self) -> Finding | None:
        return self._finding

    def trip(self, reason: str, now_s: float) -> bool:
        """True if this was the first cause."""
        first = self._finding is None
        if first:
            self._finding = Finding(verdict=Verdict.STOP, reason=reason)
        self._last_cause_s = now_s
        return first

    def reset(self, now_s: float, *, present_cause: str) -> Answer:
        if self._finding is None:
            return Answer(done=True, reason="nothing to reset")
        if present_cause:
            return Answer(done=False, reason=f"the cause persists: {present_cause}")
        waited_s = now_s - self._last_cause_s
        if waited_s < self._cooldown_s:
            return Answer(
                done=False,
                reason=f"cooling down: {self._cooldown_s - waited_s:.2f} s of "
                f"{self._cooldown_s:.2f} s left",
            )
        was = self._finding.reason
        self._finding = None
        return Answer(done=True, reason=f"reset after: {was}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Instant:
    """One moment on two clocks: `steady_s` for every watchdog, `motion_s` for the controller's
    progress along a trajectory (ROS time where it is simulated, else the steady clock)."""

    steady_s: float
    motion_s: float


def _default_sources() -> Mapping[str, Source]:
    return {
        "teleop": Source(priority=10, timeout_s=0.5),
        "model": Source(priority=0, timeout_s=0.5),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetyConfig:
    """`late_s`: the controller may take a forwarded trajectory up to this long after it was judged
    and stay within the limits; not acknowledged by then, it counts as lost. `acknowledged`: False
    where forwarding needs no acknowledgement. `slow_most`: the largest factor by which a command
    that is too fast is slowed down. `settle_s`: this long after the last motion of ours ended, the
    measured position is the commanded one. `arm_at_start`: see `Arming`. `tool`: None
    where its place and speed are not limited. `deadman_timeout_s`: None where there is none."""

    late_s: float = 0.2
    acknowledged: bool = True
    joints: JointRules = field(default_factory=JointRules)
    settle_s: float = 0.3
    command_age_s: float = 0.5
    longest_command_s: float = 30.0
    slow_most: float = 1.2
    tracking_tolerance: float = 0.35
    tracking_time_s: float = 0.25
    reset_cooldown_s: float = 1.0
    arm_at_start: bool = False
    tool: ToolLimits | None = None
    deadman_timeout_s: float | None = None
    sources: Mapping[str, Source] = field(default_factory=_default_sources)

    def __post_init__(self) -> None:
        for name, value in (
            ("joint_state_timeout_s", self.joints.timeout_s),
            ("rest_tolerance", self.joints.rest_tolerance),
            ("command_age_s", self.command_age_s),
            ("longest_command_s", self.longest_command_s),
            ("tracking_tolerance", self.tracking_tolerance),
        ):
            if not value > 0.0:
                raise UserError(name, value, "must be above 0")
        if not 0.0 <= self.late_s <= 1.0:
            raise UserError("late_s", self.late_s, "must be between 0 and 1")
        if not self.slow_most >= 1.0:
            raise UserError("slow_most", self.slow_most, "must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Forward:
    """A trajectory for the robot: times [N] counted from `at_s` of the controller's clock,
    positions and velocities [N, joints]; ends at rest."""

    at_s: float
    times_s: Floats
    positions: Floats
    velocities: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The answer to a command. `forward` is None where nothing is forwarded; `finding` says why, or
    what limited it. `waits`: it is judged when the command before is acknowledged."""

    forward: Forward | None
    finding: Finding
    waits: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OfferedCommand:
    """A command that came from `source` at `asked`, `started_s` after its start time."""

    command: CommandedTrajectory
    source: str
    asked: Instant
    started_s: float

    def at(self, now: Instant) -> OfferedCommand:
        """The same as if it came now."""
        waited_s = now.motion_s - self.asked.motion_s
        return replace(self, asked=now, started_s=self.started_s + waited_s)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JudgeRequest:
    """Permission to judge a command against `estimate` at the instant `asked`. The judgement is
    obsolete if the filter's `changes` differs from this one by then."""

    source: str
    asked: Instant
    estimate: ControllerEstimate
    changes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TickResult:
    """The finding of one tick, and a braking motion if this tick starts one."""

    finding: Finding
    forward: Forward | None


@dataclass(slots=True)
class SafetyCounts:
    accepted: int = 0
    limited: int = 0
    rejected: int = 0
    preempted: int = 0
    waited: int = 0
    trips: int = 0
