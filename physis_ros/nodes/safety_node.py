"""safety_node: judges every trajectory for the robot, and brakes when anything is missing.

In:  `safety/command_in` (model), `safety/teleop_in` (teleoperator, pre-empts), `joint_states`.
Out: `joint_trajectory_controller/joint_trajectory` or `forward_position_controller/commands`,
     `safety_status`, `safety/commanded_state`, `safety/heartbeat`, /diagnostics.
Services: `~/estop`, `~/reset`, `~/enable`.

THIS IS NOT A CERTIFIED SAFETY FUNCTION. It is software on a general computer; it can fail or be
late. Keep a hardware emergency stop within reach, and the robot's own limits configured.

Needs nothing but `joint_states` and itself. A forwarded trajectory ends in a braking tail, so that
a trajectory controller brings the robot to rest even when this process is gone. A forward position
controller cannot do that: without this process it holds its last point at once.

Threads: the loop and the sender (safety_output) have threads of their own; ROS callbacks run on the
executor's. `_lock` guards the filter; whoever decides puts what is to be sent into the outbox while
holding it, so that messages leave in the order of the decisions. Judging a command, which takes
longest, holds no lock. All threads have real-time priority where it was granted.
"""

from __future__ import annotations

import gc
import math
import sys
import threading
from collections.abc import Sequence
from typing import Any

from sensor_msgs.msg import JointState
from std_srvs.srv import SetBool, Trigger
from trajectory_msgs.msg import JointTrajectory

from physis_core.types import UserError
from physis_ros.command_judge import judged
from physis_ros.command_sources import Source
from physis_ros.conversions.trajectories import from_trajectory, nanoseconds
from physis_ros.fixed_rate import FixedRateThread
from physis_ros.interfaces import (
    ENABLE,
    ESTOP,
    JOINT_STATES,
    RESET,
    SAFETY_COMMAND_IN,
    SAFETY_TELEOP_IN,
)
from physis_ros.nodes.base import EXIT_FAULT, Diagnosis, PhysisNode, main
from physis_ros.nodes.safety_output import SafetyOutput
from physis_ros.nodes.safety_parameters import SafetyParameters
from physis_ros.nodes.safety_report import SafetyReport
from physis_ros.realtime import ask_realtime, lock_memory
from physis_ros.robot_files import load_robot_limits
from physis_ros.safety_filter import SafetyFilter
from physis_ros.safety_types import Forward, Instant, Offered, SafetyConfig
from physis_ros.safety_verdict import FINE, Finding, Verdict

_SWITCH_S = 5e-4


class SafetyNode(PhysisNode[SafetyParameters]):
    def __init__(self) -> None:
        super().__init__("safety_node", SafetyParameters)
        self._filter: SafetyFilter | None = None
        self._output: SafetyOutput | None = None
        self._report = SafetyReport()
        self._loop: FixedRateThread | None = None
        self._subscriptions_made: list[Any] = []
        self._services: list[Any] = []
        self._timers: list[Any] = []
        self._lock = threading.Lock()
        self._finding: Finding = FINE
        self._simulated = bool(self.get_parameter("use_sim_time").value)

    # Life cycle --------------------------------------------------------------------------------

    def configure(self) -> None:
        p = self.params
        limits = load_robot_limits(
            joint_names=p.joint_names,
            robot_file=p.robot_file,
            robot_description=p.robot_description,
            robot_description_file=p.robot_description_file,
        )
        self._filter = SafetyFilter(limits, _config(p))
        self._finding = Finding(verdict=Verdict.HOLD, reason="starting")
        self._output = SafetyOutput(
            self,
            limits.names,
            positions=p.output == "position",
            stamped=p.forward_start == "stamped",
            simulated=self._simulated,
            acknowledged=self._on_acknowledged,
            failed=lambda error: self._fail("sender", error),
        )
        self._subscriptions_made = [
            self.subscribe(JOINT_STATES, self._on_joints),
            self.subscribe(SAFETY_COMMAND_IN, lambda message: self._on_command(message, "model")),
            self.subscribe(SAFETY_TELEOP_IN, lambda message: self._on_command(message, "teleop")),
        ]
        self._services = [
            self.create_service(ESTOP.type, ESTOP.name, self._on_estop),
            self.create_service(RESET.type, RESET.name, self._on_reset),
            self.create_service(ENABLE.type, ENABLE.name, self._on_enable),
        ]
        self._report.realtime = "realtime_priority is 0"
        if p.realtime_priority > 0:
            self._report.realtime = ask_realtime(p.realtime_priority)
            self._report.memory = lock_memory()
            for refused in filter(None, (self._report.realtime, self._report.memory)):
                self.get_logger().warning(refused)
        self.get_logger().info(
            "not a certified safety function: keep a hardware emergency stop within reach"
        )

    def activate(self) -> None:
        assert self._output is not None
        p = self.params
        self._loop = FixedRateThread(
            "safety",
            self._tick,
            lambda error: self._fail("loop", error),
            period_s=1.0 / p.rate_hz,
            window=p.jitter_window,
        )
        self._timers = [
            self.steady_timer(1.0 / p.status_hz, self._beat),
            self.steady_timer(1.0 / p.commanded_hz, self._tell_commanded),
        ]
        # The loop must not wait longer than this for a callback that computes.
        sys.setswitchinterval(_SWITCH_S)
        # What start-up made stays; a collector that walks through it would cost a tick.
        gc.collect()
        gc.freeze()
        self._output.start()
        self._loop.start()

    def deactivate(self) -> None:
        for timer in self._timers:
            self.destroy_timer(timer)
        self._timers = []
        if self._loop is not None:
            self._loop.stop()
            self._loop = None
        if self._filter is not None and self._output is not None:
            with self._lock:
                self._filter.enable(False)
                self._forward(self._filter.tick(self._instant()).forward)
                self._filter.enable(self.params.enabled_at_start)
            self._output.stop()

    def cleanup(self) -> None:
        for subscription in self._subscriptions_made:
            self.destroy_subscription(subscription)
        for service in self._services:
            self.destroy_service(service)
        self._subscriptions_made, self._services = [], []
        if self._output is not None:
            self._output.close()
            self._output = None
        self._filter = None

    def on_clock_jump(self, delta_s: float) -> None:
        # Without simulated time the controller's progress is counted on the steady clock.
        if self._filter is None:
            return
        with self._lock:
            if self._simulated:
                self._filter.clock_jumped(self._instant(), delta_s=delta_s)
            else:
                self._filter.joints.forget_stamps()

    def _fail(self, part: str, error: Exception) -> None:
        """An error there ends the process: nothing is safe without it."""
        self.request_exit(EXIT_FAULT, f"safety {part}: {type(error).__name__}: {error}")

    # Input -------------------------------------------------------------------------------------

    def _on_joints(self, message: JointState) -> None:
        if self._filter is None:
            return
        names, stamp_ns = message.name, nanoseconds(message.header.stamp)
        positions, velocities = message.position, message.velocity
        with self._lock:
            self._filter.joints.see(
                names, positions, velocities, self.steady_s(), stamp_ns=stamp_ns
            )

    def _on_command(self, message: JointTrajectory, source: str) -> None:
        judge = self._filter
        if judge is None or not self.active:
            return
        stamp_ns = nanoseconds(message.header.stamp)
        steady_s, now_ns = self.both_clocks()
        asked = self._instant_of(steady_s, now_ns)
        started_s = (now_ns - stamp_ns) * 1e-9 if stamp_ns else 0.0
        with self._lock:
            question = judge.question(source, asked)
        if isinstance(question, Offered):
            offered = question
        else:
            judgement = judged(
                from_trajectory(message),
                question.belief,
                asked.motion_s,
                judge.limits,
                judge.config,
                started_s=started_s,
            )
            with self._lock:
                offered = judge.answer(question, judgement, self._instant())
                self._forward(offered.forward)
        if offered.finding.verdict >= Verdict.HOLD:
            self.get_logger().warning(offered.finding.reason, throttle_duration_sec=1.0)

    def _on_acknowledged(self) -> None:
        judge = self._filter
        if judge is None:
            return
        with self._lock:
            judge.handover.taken(self._instant().motion_s)

    def _on_estop(self, _request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        if self._filter is None:
            response.success, response.message = False, "not configured"
            return response
        with self._lock:
            self._filter.estop(self._instant())
        self._tick()
        response.success, response.message = True, "STOP is latched; ~/reset opens it"
        return response

    def _on_reset(self, _request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        if self._filter is None:
            response.success, response.message = False, "not configured"
            return response
        with self._lock:
            answer = self._filter.reset(self._instant())
        response.success, response.message = answer.done, answer.reason
        self._tick()
        return response

    def _on_enable(self, request: SetBool.Request, response: SetBool.Response) -> SetBool.Response:
        if self._filter is None:
            response.success, response.message = False, "not configured"
            return response
        with self._lock:
            self._filter.enable(bool(request.data))
        self._tick()
        response.success = True
        response.message = "enabled" if request.data else "disabled; braking"
        return response

    # The loop ----------------------------------------------------------------------------------

    def _instant(self) -> Instant:
        return self._instant_of(*self.both_clocks())

    def _instant_of(self, steady_s: float, ros_ns: int) -> Instant:
        motion_s = ros_ns * 1e-9 if self._simulated else steady_s
        return Instant(steady_s=steady_s, motion_s=motion_s)

    def _tick(self) -> None:
        judge, output = self._filter, self._output
        if judge is None or output is None:
            return
        with self._lock:
            now = self._instant()
            done = judge.tick(now)
            self._forward(done.forward)
            if self.params.output == "position" and (state := judge.commanded(now)) is not None:
                output.position(state[0])
            changed = done.finding.verdict != self._finding.verdict
            self._finding = done.finding
        if changed:
            self._log_change(done.finding)
            self._tell_status()

    def _forward(self, forward: Forward | None) -> None:
        """Put a decision into the outbox. The caller holds the lock."""
        if forward is not None and self._output is not None:
            self._output.forward(forward)

    # Telling -----------------------------------------------------------------------------------

    def _beat(self) -> None:
        if self._filter is None or self._output is None:
            return
        listening = self._output.heard
        with self._lock:
            self._filter.handover.listened_to(listening)
        self._tell_status()
        self._output.heartbeat()

    def _log_change(self, finding: Finding) -> None:
        line = f"{finding.verdict.name}: {finding.reason}" if finding.reason else "OK"
        if finding.verdict >= Verdict.HOLD:
            self.get_logger().warning(line)
        else:
            self.get_logger().info(line)

    def _tell_commanded(self) -> None:
        if self._filter is None or self._output is None:
            return
        with self._lock:
            state = self._filter.commanded(self._instant())
        if state is not None:
            self._output.commanded(state)

    def _tell_status(self) -> None:
        if self._filter is None or self._output is None:
            return
        with self._lock:
            age_s = self._filter.command_age_s(self._instant())
        age_ms = math.nan if age_s is None else age_s * 1e3
        self._output.status(self._report.status(self._filter, self._finding, age_ms, self._loop))

    def diagnose(self) -> Sequence[Diagnosis]:
        if self._filter is None or self._loop is None or self._output is None:
            return ()
        return self._report.diagnoses(self._filter, self._finding, self._loop, self._output)

    def validate_parameters(self, new: SafetyParameters) -> None:
        if new.joint_state_timeout_s < 1.0 / new.rate_hz:
            raise UserError(
                "joint_state_timeout_s", new.joint_state_timeout_s, "below one period of rate_hz"
            )


def _config(p: SafetyParameters) -> SafetyConfig:
    return SafetyConfig(
        # A point for a forward position controller is in force at once; nothing acknowledges it.
        late_s=p.late_s if p.output == "trajectory" else 0.0,
        acknowledged=p.output == "trajectory",
        joint_state_timeout_s=p.joint_state_timeout_s,
        command_age_s=p.command_age_s,
        longest_command_s=p.longest_command_s,
        slow_most=p.slow_most,
        tracking_tolerance=p.tracking_tolerance,
        tracking_time_s=p.tracking_time_s,
        reset_cooldown_s=p.reset_cooldown_s,
        enabled=p.enabled_at_start,
        sources={
            "teleop": Source(priority=10, timeout_s=p.teleop_timeout_s),
            "model": Source(priority=0, timeout_s=p.model_timeout_s),
        },
    )


if __name__ == "__main__":
    sys.exit(main(SafetyNode))
