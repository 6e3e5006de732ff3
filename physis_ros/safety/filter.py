"""The safety controller's decisions, without ROS: commands, joint states and time in; motion out.

The filter knows where the robot is commanded to be: it evaluates what it forwarded exactly as the
trajectory controller does. A hold brakes from there, never from the measured state. Everything it
forwards ends at rest, so the robot stops when every process of ours falls silent. Everything it
forwards may arrive up to `late_s` late, or never: one trajectory at a time is in flight, and the
next waits for its acknowledgement.

This is not a certified safety function. A hardware stop is needed.
"""

from __future__ import annotations

from physis_ros.robot.joint_limits import RobotLimits
from physis_ros.robot.joint_motion import CommandedTrajectory, Floats
from physis_ros.safety.checks import CheckedTrajectory, Violation
from physis_ros.safety.command_judge import judge_command
from physis_ros.safety.command_sources import CommandSources
from physis_ros.safety.controller_handover import ControllerHandover
from physis_ros.safety.joint_watch import JointWatch
from physis_ros.safety.types import (
    FINE,
    Decision,
    Finding,
    Instant,
    JudgeRequest,
    ResetAnswer,
    SafetyConfig,
    SafetyCounts,
    StopLatch,
    TickResult,
    Verdict,
    most_severe,
)

_NEAR_REST_S = 0.5


class SafetyFilter:
    """Not thread safe: one owner calls everything."""

    def __init__(self, limits: RobotLimits, config: SafetyConfig) -> None:
        self.limits = limits
        self.config = config
        self.counts = SafetyCounts()
        self.joints = JointWatch(limits, timeout_s=config.joint_state_timeout_s)
        self._sources = CommandSources(config.sources)
        self._latch = StopLatch(config.reset_cooldown_s)
        self.handover = ControllerHandover(limits, config)
        self._enabled = config.enabled
        self._last_answer: Finding = Finding(verdict=Verdict.HOLD, reason="no command yet")
        self._accepted_s: float | None = None
        # The source and time of the last rejected command, until one is accepted.
        self._rejected: tuple[str, float] | None = None
        self._source = ""
        self._blind = True
        self._off_track_since_s: float | None = None
        self._verdict = Verdict.HOLD
        self._brake_wanted = False

    @property
    def enabled(self) -> bool:
        return self._enabled

    @property
    def latched(self) -> bool:
        return self._latch.finding is not None

    @property
    def source(self) -> str:
        """The source of the last accepted command; empty before the first."""
        return self._source

    def command_age_s(self, now: Instant) -> float | None:
        """Since the last accepted command; None before the first."""
        return None if self._accepted_s is None else now.steady_s - self._accepted_s

    def commanded(self, now: Instant) -> tuple[Floats, Floats] | None:
        """Commanded position and velocity, [joints] each; None until joints were seen."""
        return self.handover.commanded(now.motion_s)

    def offer(
        self, command: CommandedTrajectory, source: str, now: Instant, *, started_s: float = 0.0
    ) -> Decision:
        """Judge a command from `source`. `started_s`: seconds since its start time (0: it starts
        now).

        Raises:
            KeyError: for a source that is not configured.
        """
        request = self.request(source, now)
        if isinstance(request, Decision):
            return request
        judgement = judge_command(
            command, request.estimate, now.motion_s, self.limits, self.config, started_s=started_s
        )
        return self.decide(request, judgement, now)

    def request(self, source: str, now: Instant) -> JudgeRequest | Decision:
        """First step of `offer`: whether a command may be judged, and against what.

        The second step, `command_judge.judge_command`, takes longest and needs only this request,
        so it can run beside the ticks.
        """
        holder = self._sources.preempted_by(source, now.steady_s)
        if holder:
            self.counts.preempted += 1
            return Decision(
                forward=None,
                finding=Finding(verdict=Verdict.OK, reason=f"{source}: pre-empted by {holder}"),
            )
        refusal = self._refusal(now)
        if refusal is not None or self.commanded(now) is None:
            self.counts.rejected += 1
            return Decision(
                forward=None,
                finding=refusal or Finding(verdict=Verdict.HOLD, reason="joint_states: none yet"),
            )
        if self.handover.in_flight:
            # The source stays active; its next command may be forwarded.
            self._sources.heard(source, now.steady_s)
            self.counts.waited += 1
            return Decision(
                forward=None,
                finding=Finding(
                    verdict=Verdict.OK, reason=f"{source}: the last command is still in flight"
                ),
            )
        return JudgeRequest(
            source=source,
            asked=now,
            estimate=self.handover.estimate(),
            changes=self.handover.changes,
        )

    def decide(
        self,
        request: JudgeRequest,
        judgement: tuple[CheckedTrajectory, Violation | None] | Violation,
        now: Instant,
    ) -> Decision:
        """Last step of `offer`: apply the judgement, unless it is obsolete by now."""
        source = request.source
        if isinstance(judgement, Violation):
            self.counts.rejected += 1
            self._rejected = source, now.steady_s
            self._last_answer = Finding(
                verdict=Verdict.HOLD, reason=f"{source}: rejected: {judgement.reason}"
            )
            return Decision(forward=None, finding=self._last_answer)
        refusal = self._refusal(now)
        if refusal is not None or request.changes != self.handover.changes:
            self.counts.rejected += 1
            return Decision(
                forward=None,
                finding=refusal
                or Finding(
                    verdict=Verdict.OK,
                    reason=f"{source}: obsolete when it was judged",
                ),
            )
        trajectory, limited = judgement
        self._sources.heard(source, now.steady_s)
        self._source = source
        self._accepted_s = now.steady_s
        self.counts.accepted += 1
        self._rejected = None
        self._last_answer = FINE
        if limited is not None:
            self.counts.limited += 1
            self._last_answer = Finding(
                verdict=Verdict.LIMIT, reason=f"{source}: slowed down: {limited.reason}"
            )
        self._brake_wanted = False
        return Decision(
            forward=self.handover.forward(
                trajectory.times_s,
                trajectory.positions,
                trajectory.velocities,
                request.asked.motion_s,
                request.estimate.arrivals(request.asked.motion_s),
            ),
            finding=self._last_answer,
        )

    def tick(self, now: Instant) -> TickResult:
        """Run the watchdogs; call at a fixed rate."""
        sees = not self.joints.missing(now.steady_s)
        self.handover.update(now.motion_s, self.joints, sees=sees)
        finding = most_severe(self._findings(now))
        if finding.verdict >= Verdict.HOLD > self._verdict or (
            finding.verdict is Verdict.STOP and self._verdict < Verdict.STOP
        ):
            self.counts.trips += 1
        self._verdict = finding.verdict
        forward = None
        if self._brake_wanted:
            self._brake_wanted = False
            forward = self.handover.brake(now.motion_s)
        return TickResult(finding=finding, forward=forward)

    def estop(self, now: Instant, reason: str = "emergency stop was asked for") -> None:
        """Latch STOP; the next tick brakes."""
        if self._latch.trip(reason, now.steady_s):
            self._brake_wanted = True
            self._sources.forget_all()

    def reset(self, now: Instant) -> ResetAnswer:
        """Release the latch if the cause is gone, the robot rests and the cooldown is over."""
        cause = self.joints.missing(now.steady_s) or self.joints.out_of_limits()
        if not cause and now.motion_s < self.handover.end_s:
            cause = "the robot is still braking"
        answer = self._latch.reset(now.steady_s, present_cause=cause)
        if answer.done:
            self._wait_for_command("no command since the reset")
            self._rest_where_measured_if_apart(now)
        return answer

    def enable(self, enabled: bool) -> None:
        """A disabled filter brakes and refuses every command."""
        if self._enabled and not enabled:
            self._brake_wanted = True
            self._sources.forget_all()
        self._enabled = enabled
        if enabled:
            self._wait_for_command("no command since enabling")

    def clock_jumped(self, now: Instant, *, delta_s: float) -> None:
        """The controller's clock jumped: the forwarded times belong to the old time."""
        self.joints.forget_stamps()
        self.handover.clock_jumped(now.motion_s, delta_s=delta_s)
        self._brake_wanted = True
        self._wait_for_command(f"ROS time jumped by {delta_s:+.3f} s")

    def _wait_for_command(self, reason: str) -> None:
        self._rejected = None
        self._last_answer = Finding(verdict=Verdict.HOLD, reason=reason)

    def _findings(self, now: Instant) -> list[Finding]:
        findings: list[Finding] = []
        blind = self.joints.missing(now.steady_s)
        self._look(bool(blind), now)
        if blind:
            findings.append(Finding(verdict=Verdict.HOLD, reason=blind))
        else:
            self._check_tracking(now)
        if self._latch.finding is not None:
            findings.append(self._latch.finding)
        unreachable = self.handover.unreachable()
        if unreachable:
            findings.append(Finding(verdict=Verdict.HOLD, reason=unreachable))
        if not self._enabled:
            findings.append(Finding(verdict=Verdict.HOLD, reason="disabled"))
        findings.append(self._last_finding(now))
        age_s = self.command_age_s(now)
        if age_s is not None and age_s > self.config.command_age_s:
            findings.append(
                Finding(
                    verdict=Verdict.HOLD,
                    reason=f"{self._source}: no command for {age_s:.1f} s, "
                    f"limit {self.config.command_age_s:g} s",
                )
            )
        return findings

    def _last_finding(self, now: Instant) -> Finding:
        """The last answer; a rejection older than `command_age_s` is reported as silence."""
        if self._rejected is None:
            return self._last_answer
        source, rejected_s = self._rejected
        silent_s = now.steady_s - rejected_s
        if silent_s <= self.config.command_age_s:
            return self._last_answer
        return Finding(
            verdict=Verdict.HOLD,
            reason=f"{source}: no command for {silent_s:.1f} s, limit "
            f"{self.config.command_age_s:g} s; last: {self._last_answer.reason}",
        )

    def _look(self, blind: bool, now: Instant) -> None:
        """Brake when joint states are lost; when they return, the robot may be anywhere."""
        if blind and not self._blind:
            # A controller that sends nothing may also take messages late: if the trajectory soon
            # ends at rest, leave it alone.
            self._brake_wanted = self.handover.end_s - now.motion_s > _NEAR_REST_S
            self._sources.forget_all()
        if self._blind and not blind:
            self._rest_where_measured_if_apart(now)
        self._blind = blind

    def _check_tracking(self, now: Instant) -> None:
        cause = self.joints.out_of_limits()
        if cause:
            self.estop(now, cause)
            return
        state = self.commanded(now)
        off_track = (
            "" if state is None else self.joints.away_from(state[0], self.config.tracking_tolerance)
        )
        if not off_track:
            self._off_track_since_s = None
            return
        if self._idle(now):
            # We do not move the robot: somebody else does, and may.
            self._rest_where_measured_if_apart(now)
            return
        if self._off_track_since_s is None:
            self._off_track_since_s = now.steady_s
        elif now.steady_s - self._off_track_since_s > self.config.tracking_time_s:
            self.estop(now, off_track)

    def _idle(self, now: Instant) -> bool:
        resting = now.motion_s > self.handover.end_s + 1.0
        age_s = self.command_age_s(now)
        return resting and (age_s is None or age_s > self.config.command_age_s)

    def _rest_where_measured_if_apart(self, now: Instant) -> None:
        """Take the measured state as commanded, if the two are further apart than the tolerance."""
        if not self.joints.complete:
            return
        state = self.commanded(now)
        if state is None or self.joints.away_from(state[0], self.config.tracking_tolerance):
            self.handover.rest_at(self.joints.position, now.motion_s)
        self._off_track_since_s = None

    def _refusal(self, now: Instant) -> Finding | None:
        """Why no command is accepted now; None where commands are accepted."""
        if self._latch.finding is not None:
            return self._latch.finding
        if not self._enabled:
            return Finding(verdict=Verdict.HOLD, reason="disabled")
        reason = self.joints.missing(now.steady_s) or self.handover.unreachable()
        return Finding(verdict=Verdict.HOLD, reason=reason) if reason else None
