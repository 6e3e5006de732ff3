"""The safety controller's decisions, without ROS: commands, joint states and time in; motion out.

The filter knows where the robot is commanded to be: it evaluates what it forwarded exactly as the
trajectory controller does. While a motion of ours is under way, a hold brakes from there. At rest
the measured position is the commanded one. Everything it forwards ends at rest, so the robot stops
when every process of ours falls silent. Everything it forwards may arrive up to `late_s` late, or
never: one trajectory at a time is in flight, and the next waits for its acknowledgement.

Nothing is forwarded while disarmed (physis_ros.safety.arming), except the brake that ends the
motion under way. A stop is repeated until the robot is measured at rest.

This is not a certified safety function. A hardware stop is needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from physis_ros.robot.joint_limits import RobotLimits, tolerances
from physis_ros.robot.joint_motion import CommandedTrajectory, Floats
from physis_ros.safety.arming import Answer, Arming
from physis_ros.safety.command_sources import CommandSources
from physis_ros.safety.controller_handover import ControllerHandover
from physis_ros.safety.joint_watch import JointWatch
from physis_ros.safety.last_command import LastCommand
from physis_ros.safety.motion.checks import CheckedTrajectory, Violation
from physis_ros.safety.motion.command_judge import judge_command
from physis_ros.safety.stopping import Stopping
from physis_ros.safety.types import (
    Decision,
    Finding,
    Instant,
    JudgeRequest,
    OfferedCommand,
    SafetyConfig,
    SafetyCounts,
    StopLatch,
    TickResult,
    Verdict,
    most_severe,
)

_NEAR_REST_S = 0.5
_NOT_FOLLOWED = (
    "the robot stood still where it was commanded to move: look whether it is blocked or stopped, "
    "or its controller was restarted; ~/enable arms"
)


class SafetyFilter:
    """Not thread safe: one owner calls everything."""

    def __init__(self, limits: RobotLimits, config: SafetyConfig) -> None:
        self.limits = limits
        self.config = config
        self.counts = SafetyCounts()
        self.joints = JointWatch(limits, config.joints)
        self._tracking_tolerance = np.array(
            tolerances(limits.tracking, len(limits.names), config.tracking_tolerance)
        )
        self.handover = ControllerHandover(limits, config)
        self._arming = Arming(at_start=config.arm_at_start)
        self._sources = CommandSources(config.sources)
        self._latch = StopLatch(config.reset_cooldown_s)
        self._stopping = Stopping(self.handover, self.joints, settle_s=config.settle_s)
        self._surroundings: tuple[str, ...] = ()
        # When the deadman was last seen held (steady).
        self._held_s = -math.inf
        self._last = LastCommand(config.command_age_s)
        # A teleoperator took over by the command that is being judged.
        self._takes_over = False
        # The newest command that waits for an acknowledgement.
        self._waiting: OfferedCommand | None = None
        self._blind = True
        self._off_track_since_s: float | None = None
        self._verdict = Verdict.HOLD

    @property
    def enabled(self) -> bool:
        """Whether it is armed."""
        return self._arming.armed

    @property
    def stopping(self) -> str:
        """Why the robot is not known to rest although it should; empty where no stop is under
        way."""
        return self._stopping.reason

    @property
    def moves_robot(self) -> bool:
        """Whether a position controller needs points: armed, or braking."""
        return self._arming.armed or self._stopping.active

    @property
    def latched(self) -> bool:
        return self._latch.finding is not None

    @property
    def source(self) -> str:
        """The source of the last accepted command; empty before the first."""
        return self._last.source

    def command_age_s(self, now: Instant) -> float | None:
        """Since the last accepted command; None before the first."""
        return self._last.age_s(now.steady_s)

    def commanded(self, now: Instant) -> tuple[Floats, Floats] | None:
        """Commanded position and velocity, [joints] each; None until joints were seen."""
        return self.handover.commanded(now.motion_s)

    def surroundings(self, problems: Sequence[str]) -> None:
        """What is wrong with the controller and its topic, as seen from outside: one line each.
        Anything wrong disarms."""
        self._surroundings = tuple(problems)

    def deadman(self, held: bool, now: Instant) -> None:
        """A message of the deadman switch came."""
        self._held_s = now.steady_s if held else -math.inf

    def _released(self, now: Instant) -> str:
        """One line where a deadman is needed and not held; empty otherwise."""
        timeout_s = self.config.deadman_timeout_s
        if timeout_s is None or now.steady_s - self._held_s <= timeout_s:
            return ""
        return "deadman: not held"

    def against_arming(self, now: Instant) -> tuple[str, ...]:
        """All that is not right yet, one line each."""
        latched = self._latch.finding
        found = [
            f"STOP is latched ({latched.reason}): call ~/reset first" if latched else "",
            self.joints.moving(now.steady_s),
            self.joints.beyond_limits(),
            self.handover.unreachable(),
            *self._surroundings,
        ]
        return tuple(line for line in found if line)

    def offer(
        self, command: CommandedTrajectory, source: str, now: Instant, *, started_s: float = 0.0
    ) -> Decision:
        """Judge a command from `source`. `started_s`: seconds since its start time (0: it starts
        now).

        Raises:
            KeyError: for a source that is not configured.
        """
        offered = OfferedCommand(command=command, source=source, asked=now, started_s=started_s)
        request = self.request(offered)
        if isinstance(request, Decision):
            return request
        return self.decide(request, self.judge(request, offered), now)

    def waiting(self, now: Instant) -> OfferedCommand | None:
        """The command that waited for an acknowledgement, to be offered again, when that came."""
        waiting = self._waiting
        if waiting is None or self.handover.in_flight:
            return None
        self._waiting = None
        return waiting.at(now)

    def request(self, offered: OfferedCommand) -> JudgeRequest | Decision:
        """First step of `offer`: whether a command may be judged, and against what. One that comes
        while another is in flight waits (`waiting`), the newest alone."""
        source, now = offered.source, offered.asked
        if self._sources.heard(source, now.steady_s):
            self._takes_over = True
        holder = self._sources.preempted_by(source)
        if holder:
            self.counts.preempted += 1
            return Decision(
                forward=None,
                finding=Finding(
                    verdict=Verdict.OK,
                    reason=f"{source}: pre-empted by {holder}; ~/hand_back gives control back",
                ),
            )
        self._waiting = None
        refusal = self._refusal(now)
        if refusal is not None or self.commanded(now) is None:
            self.counts.rejected += 1
            self._brake_takeover(now)
            return Decision(
                forward=None,
                finding=refusal or Finding(verdict=Verdict.HOLD, reason="joint_states: none yet"),
            )
        if self.handover.in_flight:
            self.counts.waited += 1
            self._waiting = offered
            self._brake_takeover(now)
            return Decision(
                forward=None,
                finding=Finding(
                    verdict=Verdict.OK, reason=f"{source}: the last command is still in flight"
                ),
                waits=True,
            )
        return JudgeRequest(
            source=source,
            asked=now,
            estimate=self.handover.estimate(),
            changes=self.handover.changes,
        )

    def judge(
        self, request: JudgeRequest, offered: OfferedCommand
    ) -> tuple[CheckedTrajectory, Violation | None] | Violation:
        """Second step of `offer`. It takes longest and reads nothing that changes, so it may run
        beside the ticks."""
        return judge_command(
            offered.command,
            request.estimate,
            offered.asked.motion_s,
            self.limits,
            self.config,
            started_s=offered.started_s,
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
            self._brake_takeover(now)
            finding = self._last.rejected(source, now.steady_s, reason=judgement.reason)
            return Decision(forward=None, finding=finding)
        refusal = self._refusal(now)
        if refusal is not None or request.changes != self.handover.changes:
            self.counts.rejected += 1
            self._brake_takeover(now)
            return Decision(
                forward=None,
                finding=refusal
                or Finding(
                    verdict=Verdict.OK,
                    reason=f"{source}: obsolete when it was judged",
                ),
            )
        trajectory, limited = judgement
        self._takes_over = False
        self.counts.accepted += 1
        self.counts.limited += limited is not None
        finding = self._last.accepted(
            source, now.steady_s, limited="" if limited is None else limited.reason
        )
        self._stopping.end()
        return Decision(
            forward=self.handover.forward(
                trajectory.times_s,
                trajectory.positions,
                trajectory.velocities,
                request.asked.motion_s,
                request.estimate.arrivals(request.asked.motion_s),
            ),
            finding=finding,
        )

    def _brake_takeover(self, now: Instant) -> None:
        """A teleoperator took over by a command that is not forwarded: the model's motion ends."""
        if self._takes_over:
            self._takes_over = False
            self._stopping.begin(now)

    def tick(self, now: Instant) -> TickResult:
        """Run the watchdogs; call at a fixed rate."""
        blind = self.joints.missing(now.steady_s)
        sees = not blind
        self.handover.update(now, self.joints, sees=sees)
        idle = self._idle(now)
        if sees and idle:
            self._rest_where_measured(now)
        against = self.against_arming(now) if self._arming.waits else ()
        self._arming.update(against)
        if self._surroundings and self.enabled:
            self.disarm(now, "; ".join(self._surroundings))
        if self.handover.not_followed and self.enabled:
            self.disarm(now, _NOT_FOLLOWED)
        finding = most_severe(self._findings(now, blind, idle, against))
        if finding.verdict >= Verdict.HOLD > self._verdict or (
            finding.verdict is Verdict.STOP and self._verdict < Verdict.STOP
        ):
            self.counts.trips += 1
        self._verdict = finding.verdict
        return TickResult(finding=finding, forward=self._stopping.step(now, sees=sees))

    def estop(self, now: Instant, reason: str = "emergency stop was asked for") -> None:
        """Latch STOP and disarm. Ticks brake until the robot is measured at rest."""
        self._latch.trip(reason, now.steady_s)
        self._arming.disarm("a STOP came; ~/reset, then ~/enable")
        self._stopping.begin(now)

    def reset(self, now: Instant) -> Answer:
        """Release the latch if the cause is gone, the robot rests and the cooldown is over. The
        controller stays disarmed."""
        cause = (
            self.joints.missing(now.steady_s)
            or self.joints.out_of_limits()
            or self.joints.beyond_limits()
        )
        if not cause and self._stopping.active:
            cause = f"still braking: {self._stopping.reason}"
        answer = self._latch.reset(now.steady_s, present_cause=cause)
        if answer.done:
            self._last.wait("no command since the reset")
        return answer

    def arm(self, now: Instant) -> Answer:
        """Let commands pass, if nothing stands against it."""
        was_armed = self.enabled
        answer = self._arming.arm(self.against_arming(now))
        if was_armed or not answer.done:
            return answer
        self._last.wait("no command since arming")
        if self._sources.taken_over:
            holder = self._sources.holder
            return Answer(
                done=True, reason=f"armed; {holder} is in control until ~/hand_back is called"
            )
        return answer

    def disarm(self, now: Instant, why: str = "~/enable arms") -> None:
        """Brake, and refuse every command from now on."""
        if self._arming.disarm(why):
            self._stopping.begin(now)

    def begin(self) -> None:
        """Before the first tick after a pause: disarmed, or waiting to arm, as at first."""
        self._arming.begin()

    def hand_back(self, now: Instant) -> Answer:
        """Give control from a teleoperator back to the model."""
        holder = self._sources.hand_back()
        if not holder:
            return Answer(done=True, reason="the model is in control already")
        self._stopping.begin(now)
        self._last.wait(f"no command since {holder} handed back")
        return Answer(done=True, reason=f"{holder} handed back; the model is in control")

    def clock_jumped(self, now: Instant, *, delta_s: float) -> None:
        """The controller's clock jumped: the forwarded times belong to the old time."""
        self.joints.forget_stamps()
        self.handover.clock_jumped(now.motion_s, delta_s=delta_s)
        self._stopping.begin(now)
        self._last.wait(f"ROS time jumped by {delta_s:+.3f} s")

    def _findings(
        self, now: Instant, blind: str, idle: bool, against: Sequence[str]
    ) -> list[Finding]:
        findings: list[Finding] = []
        self._look(bool(blind), now)
        if blind:
            findings.append(Finding(verdict=Verdict.HOLD, reason=blind))
        else:
            self._check_tracking(now)
        if self._latch.finding is not None:
            findings.append(self._stopping.annotated(self._latch.finding, now))
        unreachable = self.handover.unreachable()
        if unreachable:
            findings.append(Finding(verdict=Verdict.HOLD, reason=unreachable))
        released = self._released(now)
        if released and self.handover.moves(now.motion_s):
            self._stopping.begin(now)
        for line in (
            self._arming.refusal(against),
            released,
            self._moved_by_others(now, idle),
            self._silent_operator(now),
        ):
            if line:
                findings.append(Finding(verdict=Verdict.HOLD, reason=line))
        findings.extend(self._last.findings(now.steady_s))
        return findings

    def _look(self, blind: bool, now: Instant) -> None:
        """Brake when joint states are lost."""
        # A controller that sends nothing may also take messages late: if the trajectory soon ends
        # at rest, leave it alone.
        if blind and not self._blind and -self.handover.rested_s(now.motion_s) > _NEAR_REST_S:
            self._stopping.begin(now)
        self._blind = blind

    def _check_tracking(self, now: Instant) -> None:
        cause = self.joints.out_of_limits()
        if cause:
            self.estop(now, cause)
            return
        state = self.commanded(now)
        off_track = (
            "" if state is None else self.joints.away_from(state[0], self._tracking_tolerance)
        )
        if not off_track:
            self._off_track_since_s = None
        elif self._off_track_since_s is None:
            self._off_track_since_s = now.steady_s
        elif now.steady_s - self._off_track_since_s > self.config.tracking_time_s:
            self.estop(now, off_track)

    def _idle(self, now: Instant) -> bool:
        """Nothing of ours moves the robot, and it had time to come to rest."""
        return self.handover.settled(now.motion_s, self.config.settle_s)

    def _rest_where_measured(self, now: Instant) -> None:
        """Whoever moves an idle robot may (a hand, a restarted controller): it is where it is
        measured to be. Differences within the sensors' noise are ignored."""
        if not self.joints.complete:
            return
        state = self.commanded(now)
        if state is None:
            self.handover.rest_at(self.joints.position, now.motion_s)
        elif self.joints.away_from(state[0], self.joints.rest_tolerance):
            self.handover.rest_at(self.joints.rest_near(state[0]), now.motion_s)

    def _moved_by_others(self, now: Instant, idle: bool) -> str:
        """One line where an idle robot moves; empty otherwise."""
        if not idle:
            return ""
        moving = self.joints.moving(now.steady_s)
        return f"moved by something else: {moving}" if moving else ""

    def _silent_operator(self, now: Instant) -> str:
        silent_s = self._sources.silent_s(now.steady_s)
        if not silent_s:
            return ""
        return (
            f"{self._sources.holder}: in control, no command for {silent_s:.1f} s; "
            "~/hand_back gives control to the model"
        )

    def _refusal(self, now: Instant) -> Finding | None:
        """Why no command is accepted now; None where commands are accepted."""
        if self._latch.finding is not None:
            return self._latch.finding
        reason = (
            self._arming.refusal()
            or self._released(now)
            or self.joints.missing(now.steady_s)
            or self._moved_by_others(now, self._idle(now))
            or self.handover.unreachable()
        )
        return Finding(verdict=Verdict.HOLD, reason=reason) if reason else None
