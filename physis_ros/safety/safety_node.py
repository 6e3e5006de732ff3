"""safety_node: checks every trajectory before the robot gets it, and brakes when input is missing.

In:  `safety/command_in` (model), `safety/teleop_in` (teleoperator, pre-empts), `joint_states`,
     `safety/estop`, `safety/deadman`.
Out: `joint_trajectory_controller/joint_trajectory` or `forward_position_controller/commands`,
     `gripper_controller/commands` where `gripper_joint` is set, `safety_status`,
     `safety/commanded_state`, `safety/heartbeat`, /diagnostics.
Services: `~/estop`, `~/reset`, `~/enable`, `~/hand_back`.

THIS IS NOT A CERTIFIED SAFETY FUNCTION. It is software on a general computer; it can fail or be
late. Keep a hardware emergency stop within reach, and configure the robot's own limits.

The node needs only `joint_states`. It starts disarmed: commands pass after `~/enable`. A forwarded
trajectory ends in a braking tail, so a trajectory controller brings the robot to rest even when
this process is gone. A forward position controller cannot: without this process it holds its last
point at once.

Threads: the loop, the sender (physis_ros.safety.output) and the look-ahead each have a thread; ROS
callbacks run on the executor's. The look-ahead also judges a command that waited for an
acknowledgement. All share one filter (physis_ros.safety.guarded_filter). The loop's thread never
calls the middleware: it leaves messages and log lines to the sender. A thread that fails ends the
process with exit code 1. All threads have real-time priority where it was granted.
"""

from __future__ import annotations

import gc
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rclpy.lifecycle import LifecycleState, TransitionCallbackReturn
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool
from trajectory_msgs.msg import JointTrajectory

from physis_core.types import UserError
from physis_ros.node.base import EXIT_FAULT, Diagnosis, PhysisNode, main
from physis_ros.node.graph import publisher_names, with_publisher
from physis_ros.node.interfaces import (
    JOINT_STATES,
    SAFETY_COMMAND_IN,
    SAFETY_DEADMAN,
    SAFETY_ESTOP,
    SAFETY_TELEOP_IN,
)
from physis_ros.node.metric_names import Sample
from physis_ros.node.system import lock_memory, request_realtime
from physis_ros.node.threads import FixedRateThread, OnDemandThread
from physis_ros.node.time_messages import time_to_ns
from physis_ros.robot.description_topic import limits_for, published_description
from physis_ros.robot.joint_readings import with_prefix
from physis_ros.robot.trajectory_messages import from_trajectory
from physis_ros.safety.controller_client import ControllerClient
from physis_ros.safety.filter import SafetyFilter
from physis_ros.safety.guarded_filter import GuardedFilter
from physis_ros.safety.output import SafetyOutput, StatusSnapshot
from physis_ros.safety.parameters import SafetyParameters
from physis_ros.safety.report import SafetyReport
from physis_ros.safety.services import SafetyServices
from physis_ros.safety.surroundings import problems, unknown
from physis_ros.safety.types import Decision, Finding, Instant, OfferedCommand, Verdict

_SWITCH_S = 5e-4
_SURROUNDINGS_S = 0.5
_REST_LOOK_S = 0.02


class SafetyNode(PhysisNode[SafetyParameters]):
    def __init__(self) -> None:
        super().__init__("safety_node", SafetyParameters)
        self._guard: GuardedFilter | None = None
        self._output: SafetyOutput | None = None
        self._controller: ControllerClient | None = None
        self._operator_services: SafetyServices | None = None
        self._arm_joints: tuple[str, ...] = ()
        self._said_no_velocity = False
        self._disagree: tuple[bytes, ...] = ()
        self._logged = ""
        self._report = SafetyReport()
        self._loop: FixedRateThread | None = None
        self._ahead: OnDemandThread | None = None
        self._subscriptions_made: list[Any] = []
        self._timers_made: list[Any] = []
        self._simulated = bool(self.get_parameter("use_sim_time").value)

    # Life cycle --------------------------------------------------------------------------------

    def configure(self) -> None:
        p = self.params
        limits = limits_for(self)
        tool = p.tool_limits(limits.names, published_description(self) if p.tool_link else "")
        gripper = with_prefix(p.gripper_joint, p.joint_prefix) if p.gripper_joint else ""
        self._arm_joints = tuple(name for name in limits.names if name != gripper)
        output = SafetyOutput(
            self,
            limits.names,
            gripper=_number_of(gripper, limits.names),
            positions=p.output == "position",
            stamped=p.forward_start == "stamped",
            simulated=self._simulated,
            late_s=p.late_s,
            acknowledged=self._on_acknowledged,
            failed=lambda error: self._fail("sender", error),
        )
        self._output = output
        self._guard = GuardedFilter(
            SafetyFilter(limits, p.filter(tool)),
            now=lambda: self._instant_of(*self.both_clocks()),
            forward=output.forward,
            position=output.position,
            changed=self._on_change,
        )
        self._subscriptions_made = [
            self.subscribe(JOINT_STATES, with_publisher(self._on_joints)),
            self.subscribe(SAFETY_COMMAND_IN, lambda message: self._on_command(message, "model")),
            self.subscribe(SAFETY_TELEOP_IN, lambda message: self._on_command(message, "teleop")),
            self.subscribe(SAFETY_ESTOP, self._on_estop_topic),
            self.subscribe(SAFETY_DEADMAN, self._on_deadman),
        ]
        controller = ControllerClient(self, output.robot)
        self._controller = controller
        self._operator_services = SafetyServices(
            self,
            self._guard,
            look_around=self._look_around,
            not_checked=lambda: unknown(controller.known, positions=p.output == "position"),
        )
        self._report.realtime = "realtime_priority is 0"
        if p.realtime_priority > 0:
            self._report.realtime = request_realtime(p.realtime_priority)
            self._report.memory = lock_memory()
            for refused in filter(None, (self._report.realtime, self._report.memory)):
                self.get_logger().warning(refused)
        self.get_logger().info(
            "not a certified safety function: keep a hardware emergency stop within reach"
        )

    def activate(self) -> None:
        guard, output, services, p = self._guard, self._output, self._operator_services, self.params
        assert guard is not None and output is not None and services is not None
        self._loop = FixedRateThread(
            "safety",
            guard.tick,
            lambda error: self._fail("loop", error),
            period_s=1.0 / p.rate_hz,
            window=p.jitter_window,
        )
        self._ahead = OnDemandThread(
            "look-ahead", self._prepare, lambda error: self._fail("look-ahead", error)
        )
        self._timers_made = [
            self.steady_timer(1.0 / p.status_hz, self._publish_heartbeat),
            self.steady_timer(1.0 / p.commanded_hz, self._publish_commanded),
            self.steady_timer(_SURROUNDINGS_S, self._look_around),
            self.steady_timer(_REST_LOOK_S, services.answer_stops),
        ]
        guard.begin()
        self._look_around()
        # Bounds how long the loop waits for a callback that holds the interpreter.
        sys.setswitchinterval(_SWITCH_S)
        # Objects from start-up stay; the garbage collector must not scan them during a tick.
        gc.collect()
        gc.freeze()
        output.start()
        self._ahead.start()
        self._loop.start()

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        done = super().on_activate(state)
        if done == TransitionCallbackReturn.SUCCESS:
            # Publishers work from here on: tell those who wait for this node at once.
            self._publish_heartbeat()
        return done

    def deactivate(self) -> None:
        for timer in self._timers_made:
            self.destroy_timer(timer)
        self._timers_made = []
        if self._loop is not None:
            self._loop.stop()
            self._loop = None
        if self._guard is not None and self._output is not None:
            self._guard.disarm()
            self._output.stop()
        if self._operator_services is not None:
            self._operator_services.deactivated()
        # After the sender, which makes requests to it.
        if self._ahead is not None:
            self._ahead.stop()
            self._ahead = None

    def cleanup(self) -> None:
        for subscription in self._subscriptions_made:
            self.destroy_subscription(subscription)
        self._subscriptions_made = []
        if self._operator_services is not None:
            self._operator_services.close()
            self._operator_services = None
        if self._controller is not None:
            self._controller.close()
            self._controller = None
        if self._output is not None:
            self._output.close()
            self._output = None
        self._guard = None

    def on_clock_jump(self, delta_s: float) -> None:
        # Only with simulated time does the controller's progress depend on the ROS clock.
        if self._guard is not None:
            self._guard.clock_jumped(delta_s, motion_jumped=self._simulated)

    def _fail(self, part: str, error: Exception) -> None:
        """End the process: without this thread the node is not safe."""
        self.request_exit(EXIT_FAULT, f"safety {part}: {type(error).__name__}: {error}")

    # Input -------------------------------------------------------------------------------------

    def _on_joints(self, message: JointState, publisher: bytes | None) -> None:
        if self._guard is not None:
            found = self._guard.joints(
                message.name,
                message.position,
                message.velocity,
                stamp_ns=time_to_ns(message.header.stamp),
                publisher=publisher,
            )
            if found is not None and found.publishers != self._disagree:
                self._guard.publishers(publisher_names(self, JOINT_STATES.name))
            self._disagree = () if found is None else found.publishers
            if self._guard.filter.joints.without_velocity and not self._said_no_velocity:
                self._said_no_velocity = True
                self.get_logger().warning(
                    "joint_states carry no velocities: measured velocities are not checked"
                )

    def _on_command(self, message: JointTrajectory, source: str) -> None:
        if self._guard is None or not self.active:
            return
        stamp_ns = time_to_ns(message.header.stamp)
        steady_s, now_ns = self.both_clocks()
        self._log_refusal(
            self._guard.command(
                OfferedCommand(
                    command=from_trajectory(message),
                    source=source,
                    asked=self._instant_of(steady_s, now_ns),
                    started_s=(now_ns - stamp_ns) * 1e-9 if stamp_ns else 0.0,
                )
            )
        )

    def _log_refusal(self, decision: Decision) -> None:
        if decision.finding.verdict >= Verdict.HOLD:
            self.get_logger().warning(decision.finding.reason, throttle_duration_sec=1.0)

    def _on_acknowledged(self) -> None:
        if self._guard is not None:
            self._guard.acknowledged()
        if self._ahead is not None:
            self._ahead.request()

    def _prepare(self) -> None:
        """After an acknowledgement, on the look-ahead's thread: judge the command that waited for
        it, or compute what the next one needs."""
        guard = self._guard
        if guard is None:
            return
        decision = guard.command_that_waited()
        if decision is not None:
            self._log_refusal(decision)
        if decision is None or decision.forward is None:
            guard.look_ahead()

    def _on_estop_topic(self, message: Bool) -> None:
        # False never releases a STOP: that is what ~/reset is for.
        if message.data and self._guard is not None:
            self._guard.estop("safety/estop is true")

    def _on_deadman(self, message: Bool) -> None:
        if self._guard is not None:
            self._guard.deadman(bool(message.data))

    def _look_around(self) -> None:
        guard, controller, output = self._guard, self._controller, self._output
        if guard is None or controller is None or output is None:
            return
        guard.set_listening(output.has_subscriber)
        guard.surroundings(
            problems(
                controller.poll(),
                self._arm_joints,
                positions=self.params.output == "position",
            )
        )

    def _instant_of(self, steady_s: float, ros_ns: int) -> Instant:
        motion_s = ros_ns * 1e-9 if self._simulated else steady_s
        return Instant(steady_s=steady_s, motion_s=motion_s)

    # Output -----------------------------------------------------------------------------------

    def _on_change(self, finding: Finding) -> None:
        """Called on the loop's thread: the sender logs and publishes."""
        if self._output is not None:
            self._output.do(lambda: self._log_change(finding))
            self._output.status(self._status)

    def _log_change(self, finding: Finding) -> None:
        """Log from HOLD on, and the return from there; commands that were slowed are counted."""
        held = finding.verdict >= Verdict.HOLD
        line = f"{finding.verdict.name}: {finding.reason}" if held else "OK"
        if line == self._logged:
            return
        self._logged = line
        if held:
            self.get_logger().warning(line)
        else:
            self.get_logger().info(line)

    def _publish_heartbeat(self) -> None:
        if self._guard is None or self._output is None:
            return
        self._guard.clock(self.clock_fault())
        self._guard.set_listening(self._output.has_subscriber)
        self._output.status(self._status)
        self._output.heartbeat()

    def _publish_commanded(self) -> None:
        if self._guard is None or self._output is None:
            return
        state = self._guard.commanded()
        if state is not None:
            self._output.commanded(state)
            if self._guard.filter.moves_robot:
                self._output.gripper(state[0])

    def _status(self) -> StatusSnapshot | None:
        guard = self._guard
        if guard is None:
            return None
        age_s = guard.command_age_s()
        age_ms = math.nan if age_s is None else age_s * 1e3
        return self._report.status(guard.filter, guard.finding, age_ms, self._loop)

    def waits_for(self) -> str:
        if self._guard is None or self._guard.finding.verdict != Verdict.HOLD:
            return ""
        return self._guard.finding.reason

    def diagnose(self) -> Sequence[Diagnosis]:
        guard = self._guard
        if guard is None or self._loop is None or self._output is None:
            return ()
        return self._report.diagnoses(guard.filter, guard.finding, self._loop, self._output)

    def metrics(self) -> Iterable[Sample]:
        guard, loop = self._guard, self._loop
        if guard is None or loop is None:
            return ()
        return self._report.metrics(guard.filter, guard.finding, loop)

    def validate_parameters(self, new: SafetyParameters) -> None:
        if new.joint_state_timeout_s < 1.0 / new.rate_hz:
            raise UserError(
                "joint_state_timeout_s", new.joint_state_timeout_s, "below one period of rate_hz"
            )


def _number_of(gripper_joint: str, names: Sequence[str]) -> int | None:
    if not gripper_joint:
        return None
    if gripper_joint not in names:
        raise UserError("gripper_joint", gripper_joint, f"is none of {', '.join(names)}")
    if len(names) == 1:
        raise UserError("gripper_joint", gripper_joint, "leaves no joint for the arm")
    return names.index(gripper_joint)


if __name__ == "__main__":
    sys.exit(main(SafetyNode))
