"""safety_node: judges every trajectory for the robot, and brakes when anything is missing.

In:  `safety/command_in` (model), `safety/teleop_in` (teleoperator, pre-empts), `joint_states`.
Out: `joint_trajectory_controller/joint_trajectory` or `forward_position_controller/commands`,
     `safety_status`, `safety/commanded_state`, `safety/heartbeat`, /diagnostics.
Services: `~/estop`, `~/reset`, `~/enable`.

THIS IS NOT A CERTIFIED SAFETY FUNCTION. It is software on a general computer; it can fail or be
late.
Keep a hardware emergency stop within reach, and the robot's own limits configured.

Needs nothing but `joint_states` and itself. A forwarded trajectory ends in a braking tail, so that
a
trajectory controller brings the robot to rest even when this process is gone. A forward position
controller cannot do that: without this process it holds its last point at once.
Threads: the loop has its own thread, which sleeps from one grid point of the steady clock to the
next;
ROS callbacks run on the executor's thread. `_lock` guards the filter, and whoever holds it also
sends
what the filter decided, so that trajectories leave in the order of the decisions. All threads have
real-time priority where it was granted.
"""

from __future__ import annotations

import gc
import math
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray, Header
from std_srvs.srv import SetBool, Trigger
from trajectory_msgs.msg import JointTrajectory

from physis_core.types import UserError
from physis_ros.command_sources import Source
from physis_ros.conversions.statuses import percentiles_message
from physis_ros.conversions.trajectories import from_trajectory, nanoseconds, to_trajectory
from physis_ros.interfaces import (
    ENABLE,
    ESTOP,
    FORWARD_POSITION,
    JOINT_STATES,
    JOINT_TRAJECTORY,
    RESET,
    SAFETY_COMMAND_IN,
    SAFETY_COMMANDED_STATE,
    SAFETY_HEARTBEAT,
    SAFETY_STATUS,
    SAFETY_TELEOP_IN,
)
from physis_ros.loop_timing import LoopTiming
from physis_ros.msg import SafetyStatus
from physis_ros.nodes.base import (
    ERROR,
    EXIT_FAULT,
    OK,
    WARN,
    Diagnosis,
    PhysisNode,
    main,
)
from physis_ros.nodes.safety_parameters import SafetyParameters
from physis_ros.realtime import ask_realtime
from physis_ros.robot_files import load_robot_limits
from physis_ros.safety_filter import SafetyFilter
from physis_ros.safety_types import Forward, Instant, SafetyConfig
from physis_ros.safety_verdict import FINE, Finding, Verdict

# A stamped trajectory starts half way to its first point: on time, it is played at its exact times;
# late, a controller that shifts it still has the other half for the way to that point.
_START_SHARE = 0.5
_SWITCH_S = 5e-4
_LEVELS = {Verdict.OK: OK, Verdict.LIMIT: WARN, Verdict.HOLD: WARN, Verdict.STOP: ERROR}


class SafetyNode(PhysisNode[SafetyParameters]):
    def __init__(self) -> None:
        super().__init__("safety_node", SafetyParameters)
        self._filter: SafetyFilter | None = None
        self._timing: LoopTiming | None = None
        self._handles: list[Any] = []
        self._services: list[Any] = []
        self._timers: list[Any] = []
        self._lock = threading.Lock()
        self._loop_end = threading.Event()
        self._loop: threading.Thread | None = None
        self._finding: Finding = FINE
        self._instant_ns = 0
        self._realtime = False
        self._realtime_reason = ""
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
        self._filter = SafetyFilter(
            limits,
            SafetyConfig(
                lead_s=p.lead_s,
                joint_state_timeout_s=p.joint_state_timeout_s,
                command_age_s=p.command_age_s,
                longest_command_s=p.longest_command_s,
                align_s=p.align_s,
                slow_most=p.slow_most,
                tracking_tolerance=p.tracking_tolerance,
                tracking_time_s=p.tracking_time_s,
                reset_cooldown_s=p.reset_cooldown_s,
                enabled=p.enabled_at_start,
                sources={
                    "teleop": Source(priority=10, timeout_s=p.teleop_timeout_s),
                    "model": Source(priority=0, timeout_s=p.model_timeout_s),
                },
            ),
        )
        self._finding = Finding(verdict=Verdict.HOLD, reason="starting")
        self._robot = self.publisher(
            JOINT_TRAJECTORY if p.output == "trajectory" else FORWARD_POSITION
        )
        self._status = self.publisher(SAFETY_STATUS)
        self._commanded = self.publisher(SAFETY_COMMANDED_STATE)
        self._heartbeat = self.publisher(SAFETY_HEARTBEAT)
        self._handles = [
            self._robot,
            self._status,
            self._commanded,
            self._heartbeat,
            self.subscribe(JOINT_STATES, self._on_joints),
            self.subscribe(SAFETY_COMMAND_IN, lambda message: self._on_command(message, "model")),
            self.subscribe(SAFETY_TELEOP_IN, lambda message: self._on_command(message, "teleop")),
        ]
        self._services = [
            self.create_service(ESTOP.type, ESTOP.name, self._on_estop),
            self.create_service(RESET.type, RESET.name, self._on_reset),
            self.create_service(ENABLE.type, ENABLE.name, self._on_enable),
        ]
        if p.realtime_priority > 0:
            self._realtime_reason = ask_realtime(p.realtime_priority)
            self._realtime = not self._realtime_reason
            if self._realtime_reason:
                self.get_logger().warning(self._realtime_reason)
        else:
            self._realtime_reason = "realtime_priority is 0"
        self.get_logger().info(
            "not a certified safety function: keep a hardware emergency stop within reach"
        )

    def activate(self) -> None:
        p = self.params
        self._timing = LoopTiming(period_s=1.0 / p.rate_hz, window=p.jitter_window)
        self._timers = [
            self.steady_timer(1.0 / p.status_hz, self._beat),
            self.steady_timer(1.0 / p.commanded_hz, self._publish_commanded),
        ]
        # The loop must not wait longer than this for a callback that computes.
        sys.setswitchinterval(_SWITCH_S)
        self._loop_end.clear()
        self._loop = threading.Thread(target=self._run_loop, name="safety", daemon=True)
        self._loop.start()
        # What start-up made stays; a collector that walks through it would cost a tick.
        gc.collect()
        gc.freeze()

    def deactivate(self) -> None:
        for timer in self._timers:
            self.destroy_timer(timer)
        self._timers = []
        self._loop_end.set()
        if self._loop is not None:
            self._loop.join()
            self._loop = None
        if self._filter is not None:
            with self._lock:
                self._filter.enable(False)
                self._send(self._filter.tick(self._instant()).forward)
                self._filter.enable(self.params.enabled_at_start)

    def cleanup(self) -> None:
        for handle in self._handles:
            if hasattr(handle, "publish"):
                self.destroy_publisher(handle)
            else:
                self.destroy_subscription(handle)
        for service in self._services:
            self.destroy_service(service)
        self._handles, self._services = [], []
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

    # Input -------------------------------------------------------------------------------------

    def _on_joints(self, message: JointState) -> None:
        if self._filter is None:
            return
        stamp_ns = nanoseconds(message.header.stamp)
        with self._lock:
            self._filter.joints.see(
                message.name,
                message.position,
                message.velocity,
                self.steady_s(),
                stamp_ns=stamp_ns,
            )

    def _on_command(self, message: JointTrajectory, source: str) -> None:
        judge = self._filter
        if judge is None or not self.active:
            return
        stamp_ns = nanoseconds(message.header.stamp)
        command = from_trajectory(message)
        with self._lock:
            now = self._instant()
            started_s = (self._instant_ns - stamp_ns) * 1e-9 if stamp_ns else 0.0
            offered = judge.offer(command, source, now, started_s=started_s)
            self._send(offered.forward)
        if offered.forward is None:
            self.get_logger().warning(offered.finding.reason, throttle_duration_sec=1.0)

    def _on_estop(self, _request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        if self._filter is None:
            response.success, response.message = False, "not configured"
            return response
        with self._lock:
            self._filter.estop(self._instant())
        self._judge_now()
        response.success, response.message = True, "STOP is latched; ~/reset opens it"
        return response

    def _on_reset(self, _request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        if self._filter is None:
            response.success, response.message = False, "not configured"
            return response
        with self._lock:
            answer = self._filter.reset(self._instant())
        response.success, response.message = answer.done, answer.reason
        self._judge_now()
        return response

    def _on_enable(self, request: SetBool.Request, response: SetBool.Response) -> SetBool.Response:
        if self._filter is None:
            response.success, response.message = False, "not configured"
            return response
        with self._lock:
            self._filter.enable(bool(request.data))
        self._judge_now()
        response.success = True
        response.message = "enabled" if request.data else "disabled; braking"
        return response

    # The loop ----------------------------------------------------------------------------------

    def _instant(self) -> Instant:
        steady_s, self._instant_ns = self.both_clocks()
        motion_s = self._instant_ns * 1e-9 if self._simulated else steady_s
        return Instant(steady_s=steady_s, motion_s=motion_s)

    def _run_loop(self) -> None:
        """The fixed-rate loop. An error in it ends the process: without a loop nothing is safe."""
        try:
            assert self._timing is not None
            due_s = self.steady_s()
            while not self._loop_end.is_set():
                time.sleep(max(0.0, due_s - self.steady_s()))
                due_s = self._timing.tick(self.steady_s(), due_s)
                self._judge_now()
        except Exception as error:  # noqa: BLE001  said, and the process ends
            self.request_exit(EXIT_FAULT, f"safety loop: {type(error).__name__}: {error}")

    def _judge_now(self) -> None:
        judge = self._filter
        if judge is None:
            return
        with self._lock:
            now = self._instant()
            done = judge.tick(now)
            self._send(done.forward)
            if self.params.output == "position":
                self._send_position(now)
            changed = done.finding.verdict != self._finding.verdict
            self._finding = done.finding
        if changed:
            self._log_change(done.finding)
            self._publish_status()

    def _beat(self) -> None:
        self._publish_status()
        self._heartbeat.publish(Header(stamp=self.get_clock().now().to_msg()))

    def _log_change(self, finding: Finding) -> None:
        line = f"{finding.verdict.name}: {finding.reason}" if finding.reason else "OK"
        if finding.verdict >= Verdict.HOLD:
            self.get_logger().warning(line)
        else:
            self.get_logger().info(line)

    # Output ------------------------------------------------------------------------------------

    def _send(self, forward: Forward | None) -> None:
        if forward is None or self._filter is None or self.params.output != "trajectory":
            return
        start_ns, times_s = 0, forward.times_s
        if self.params.forward_start == "stamped":
            start_s = _START_SHARE * float(times_s[0])
            # Times count from the instant that was judged, not from the end of judging.
            start_ns = self._instant_ns + round(start_s * 1e9)
            times_s = times_s - start_s
        self._robot.publish(
            to_trajectory(
                self._filter.limits.names,
                times_s,
                forward.positions,
                forward.velocities,
                start_ns=start_ns,
            )
        )

    def _send_position(self, now: Instant) -> None:
        state = None if self._filter is None else self._filter.commanded(now)
        if state is not None:
            self._robot.publish(Float64MultiArray(data=state[0].tolist()))

    def _publish_commanded(self) -> None:
        judge = self._filter
        if judge is None:
            return
        with self._lock:
            state = judge.commanded(self._instant())
        if state is None:
            return
        message = JointState(
            name=list(judge.limits.names), position=state[0].tolist(), velocity=state[1].tolist()
        )
        message.header.stamp = self.get_clock().now().to_msg()
        self._commanded.publish(message)

    def _publish_status(self) -> None:
        judge, timing = self._filter, self._timing
        if judge is None:
            return
        with self._lock:
            age_s = judge.command_age_s(self._instant())
        message = SafetyStatus(
            verdict=int(self._finding.verdict),
            reason=self._finding.reason,
            latched=judge.latched,
            enabled=judge.enabled,
            source=judge.source,
            accepted=judge.counts.accepted,
            limited=judge.counts.limited,
            rejected=judge.counts.rejected,
            trips=judge.counts.trips,
            command_age_ms=math.nan if age_s is None else age_s * 1e3,
            realtime=self._realtime,
        )
        message.header.stamp = self.get_clock().now().to_msg()
        if timing is not None:
            message.loop_jitter_ms = percentiles_message(timing.jitter_ms())
            message.lost_ticks = timing.lost
        self._status.publish(message)

    def diagnose(self) -> Sequence[Diagnosis]:
        judge, timing = self._filter, self._timing
        if judge is None or timing is None:
            return ()
        jitter = timing.jitter_ms()
        realtime = "granted" if self._realtime else self._realtime_reason
        return (
            Diagnosis(
                part="verdict",
                level=_LEVELS[self._finding.verdict],
                message=f"{self._finding.verdict.name}: {self._finding.reason}".rstrip(": "),
                values={
                    "certified": "no: keep a hardware emergency stop",
                    "latched": judge.latched,
                    "enabled": judge.enabled,
                    "source": judge.source,
                    "accepted": judge.counts.accepted,
                    "limited": judge.counts.limited,
                    "rejected": judge.counts.rejected,
                    "pre-empted": judge.counts.preempted,
                    "trips": judge.counts.trips,
                },
            ),
            Diagnosis(
                part="loop",
                level=OK if self._realtime else WARN,
                message=f"real-time priority: {realtime}",
                values={
                    "rate [Hz]": self.params.rate_hz,
                    "jitter [ms]": f"p50 {jitter.p50:.3f}, p99 {jitter.p99:.3f}, "
                    f"p99.9 {jitter.p999:.3f}, max {jitter.max:.3f}, n {jitter.n}",
                    "ticks": timing.ticks,
                    "lost ticks": timing.lost,
                },
            ),
        )

    def validate_parameters(self, new: SafetyParameters) -> None:
        if new.joint_state_timeout_s < 1.0 / new.rate_hz:
            raise UserError(
                "joint_state_timeout_s", new.joint_state_timeout_s, "below one period of rate_hz"
            )


if __name__ == "__main__":
    sys.exit(main(SafetyNode))
