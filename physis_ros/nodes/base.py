"""What every node has: a life cycle with autostart, parameters, diagnostics, clean ends.

Threads: ROS callbacks run on the main thread, one at a time. A node class gives `configure`,
`activate`, `deactivate` and `cleanup`, which raise UserError where a person must act. With
`autostart` such an error ends the process with exit code 2 and one line; without it the node stays
unconfigured, says why on /diagnostics, and may be configured again.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.clock import Clock, ClockType, JumpThreshold
from rclpy.duration import Duration
from rclpy.event_handler import PublisherEventCallbacks, SubscriptionEventCallbacks
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.publisher import Publisher
from rclpy.signals import SignalHandlerOptions
from rclpy.subscription import Subscription
from rclpy.timer import Timer

from physis_core.types import UserError
from physis_ros.clock_jump import ClockJumpWatch
from physis_ros.domain import domain_from
from physis_ros.image_memory import keep_image_memory
from physis_ros.interfaces import DIAGNOSTICS, Topic, qos_mismatch
from physis_ros.params import NodeParameters, param

EXIT_OK = 0
EXIT_FAULT = 1
EXIT_USER = 2

_DIAGNOSTICS_PERIOD_S = 1.0
_CLOCK_LOOK_PERIOD_S = 0.1
_CLOCK_PAIR_READS = 5
_CLOCK_PAIR_S = 2e-4
_STOP_LOOK_PERIOD_S = 0.05

OK = DiagnosticStatus.OK
WARN = DiagnosticStatus.WARN
ERROR = DiagnosticStatus.ERROR
STALE = DiagnosticStatus.STALE


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseParameters:
    """Parameters that every node has; a node's own dataclass derives from this one."""

    autostart: bool = param(True, description="Configure and activate by itself at start")
    clock_jump_s: float = param(
        1.0,
        description="ROS time that moves by more than this against steady time has jumped",
        unit="s",
        minimum=0.01,
        maximum=3600.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """One status on /diagnostics. `level` is OK, WARN, ERROR or STALE."""

    part: str
    level: bytes
    message: str
    values: Mapping[str, object] = field(default_factory=dict)


P = TypeVar("P", bound=BaseParameters)


class PhysisNode(LifecycleNode, Generic[P]):
    """Base of the project's nodes.

    Raises:
        UserError: from the constructor, where a parameter is unknown or does not fit.
    """

    def __init__(self, name: str, parameters: type[P], **kwargs: Any) -> None:
        super().__init__(name, **kwargs)
        self._stop = threading.Event()
        self._exit_code = EXIT_OK
        self._fault = ""
        self._qos_faults: dict[str, str] = {}
        self._steady = Clock(clock_type=ClockType.STEADY_TIME)
        self.parameters: NodeParameters[P] = NodeParameters(
            self, parameters, validate=self.validate_parameters, on_change=self.on_parameters
        )
        use_sim_time = bool(self.get_parameter("use_sim_time").value)
        self._clock_watch = ClockJumpWatch(
            threshold_s=self.params.clock_jump_s, simulated=use_sim_time
        )
        # The clock calls back at once when /clock steps; looking ten times a second finds the rest.
        self._jump_handle = self.get_clock().create_jump_callback(
            JumpThreshold(
                min_forward=Duration(seconds=self.params.clock_jump_s),
                min_backward=Duration(nanoseconds=-1),
                on_clock_change=True,
            ),
            post_callback=lambda _jump: self._look_at_clock(),
        )
        self._diagnostics = self.create_publisher(
            DIAGNOSTICS.type, DIAGNOSTICS.name, DIAGNOSTICS.qos
        )
        self.steady_timer(_DIAGNOSTICS_PERIOD_S, self.publish_diagnostics)
        self.steady_timer(_CLOCK_LOOK_PERIOD_S, self._look_at_clock)

    # What a node may override ------------------------------------------------------------------

    def validate_parameters(self, new: P) -> None:
        """Refuse (UserError) values that do not fit together. Runs before `self.params` changes."""

    def on_parameters(self, new: P) -> None:
        """Take over parameters that changed at run time."""

    def configure(self) -> None:
        """Create what the node needs. Raise UserError where input is wrong."""

    def activate(self) -> None:
        """Begin to work."""

    def deactivate(self) -> None:
        """Stop working; keep what `configure` made."""

    def cleanup(self) -> None:
        """Give back what `configure` made. Also called after `configure` failed half way."""

    def on_clock_jump(self, delta_s: float) -> None:
        """ROS time jumped by `delta_s`: drop what was placed on the old time."""

    def diagnose(self) -> Sequence[Diagnosis]:
        """Statuses for /diagnostics, once a second."""
        return ()

    # What a node uses --------------------------------------------------------------------------

    @property
    def params(self) -> P:
        return self.parameters.value

    @property
    def active(self) -> bool:
        return bool(self._state_machine.current_state[1] == "active")

    def stopping(self) -> bool:
        """A signal or a fault has asked this process to end: long work should be given up."""
        return self._stop.is_set()

    def now_ns(self) -> int:
        """ROS time (simulated where use_sim_time) in nanoseconds."""
        return int(self.get_clock().now().nanoseconds)

    @staticmethod
    def steady_s() -> float:
        return time.monotonic()

    def both_clocks(self) -> tuple[float, int]:
        """Steady seconds and ROS nanoseconds of one moment.

        Read again where the thread was interrupted between the two: the difference would displace
        whatever is carried from one clock to the other.
        """
        for _ in range(_CLOCK_PAIR_READS):
            before_s, ros_ns = self.steady_s(), self.now_ns()
            after_s = self.steady_s()
            if after_s - before_s < _CLOCK_PAIR_S:
                break
        return 0.5 * (before_s + after_s), ros_ns

    def steady_timer(self, period_s: float, callback: Callable[[], None]) -> Timer:
        """A timer that a paused or jumping /clock does not touch."""
        return self.create_timer(period_s, callback, clock=self._steady)

    def subscribe(
        self,
        topic: Topic,
        callback: Callable[[Any], None],
        *,
        deadline: Callable[[Any], None] | None = None,
        liveliness: Callable[[Any], None] | None = None,
    ) -> Subscription[Any]:
        """Subscribe by the table; a publisher whose QoS does not fit is reported by policy name."""
        events = SubscriptionEventCallbacks(
            incompatible_qos=lambda event: self._report_qos(topic.name, "subscribe", event),
            deadline=deadline,
            liveliness=liveliness,
        )
        return self.create_subscription(
            topic.type, topic.name, callback, topic.qos, event_callbacks=events
        )

    def publisher(self, topic: Topic) -> Publisher[Any]:
        """Publish by the table; a subscriber whose QoS does not fit is reported by policy name."""
        events = PublisherEventCallbacks(
            incompatible_qos=lambda event: self._report_qos(topic.name, "publish", event)
        )
        return self.create_publisher(topic.type, topic.name, topic.qos, event_callbacks=events)

    def set_fault(self, reason: str) -> None:
        """Say once on the log, and on /diagnostics until cleared, why the node does not work."""
        if reason and reason != self._fault:
            self.get_logger().error(reason)
        self._fault = reason

    def request_exit(self, code: int, reason: str) -> None:
        """End the process in order, with this exit code. Callable from any thread."""
        if code != EXIT_OK:
            self.get_logger().fatal(reason)
        self._exit_code = max(self._exit_code, code)
        self._stop.set()

    # Life cycle --------------------------------------------------------------------------------

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        self.set_fault("")
        done = self._run("configure", self.configure)
        if done != TransitionCallbackReturn.SUCCESS:
            self._run("cleanup", self.cleanup, keep_fault=True)
            return done
        return super().on_configure(state)

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        done = self._run("activate", self.activate)
        return done if done != TransitionCallbackReturn.SUCCESS else super().on_activate(state)

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        done = self._run("deactivate", self.deactivate)
        return done if done != TransitionCallbackReturn.SUCCESS else super().on_deactivate(state)

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        self._qos_faults.clear()
        done = self._run("cleanup", self.cleanup)
        return done if done != TransitionCallbackReturn.SUCCESS else super().on_cleanup(state)

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        if state.label == "active":
            self._run("deactivate", self.deactivate)
        if state.label in ("active", "inactive"):
            self._run("cleanup", self.cleanup)
        return super().on_shutdown(state)

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        self._run("cleanup", self.cleanup, keep_fault=True)
        return super().on_error(state)

    def _run(
        self, what: str, step: Callable[[], None], *, keep_fault: bool = False
    ) -> TransitionCallbackReturn:
        try:
            step()
        except InterruptedError as error:
            self.get_logger().info(f"{what}: {error}")
            return TransitionCallbackReturn.FAILURE
        except UserError as error:
            if not keep_fault:
                self.set_fault(str(error))
            return TransitionCallbackReturn.FAILURE
        except Exception as error:  # noqa: BLE001
            # The state machine would swallow it; a fault of ours must be seen whole.
            self.get_logger().error(f"{what} failed\n{traceback.format_exc()}")
            if not keep_fault:
                self._fault = f"{what} failed: {type(error).__name__}: {error}"
            return TransitionCallbackReturn.ERROR
        return TransitionCallbackReturn.SUCCESS

    def autostart(self) -> int:
        """Configure and activate. Returns an exit code; 0 = the node works, or was told to stop."""
        if not self.params.autostart:
            return EXIT_OK
        for trigger in (self.trigger_configure, self.trigger_activate):
            done = trigger()
            if done != TransitionCallbackReturn.SUCCESS and self.stopping():
                return self._exit_code
            if done == TransitionCallbackReturn.FAILURE:
                return EXIT_USER
            if done != TransitionCallbackReturn.SUCCESS:
                return EXIT_FAULT
        return EXIT_OK

    # Own work ----------------------------------------------------------------------------------

    def publish_diagnostics(self) -> None:
        state = self._state_machine.current_state[1]
        own_level, own_message = OK, state
        if self._fault:
            own_level, own_message = ERROR, self._fault
        elif self._qos_faults:
            own_level, own_message = WARN, "; ".join(self._qos_faults.values())
        found = [
            Diagnosis(part="node", level=own_level, message=own_message, values={"state": state})
        ]
        found.extend(self.diagnose())
        message = DiagnosticArray()
        message.header.stamp = self.get_clock().now().to_msg()
        for diagnosis in found:
            message.status.append(
                DiagnosticStatus(
                    level=diagnosis.level,
                    name=f"{self.get_fully_qualified_name()}: {diagnosis.part}",
                    message=diagnosis.message,
                    hardware_id=self.get_namespace().strip("/"),
                    values=[
                        KeyValue(key=key, value=str(value))
                        for key, value in diagnosis.values.items()
                    ],
                )
            )
        self._diagnostics.publish(message)

    def _look_at_clock(self) -> None:
        jump = self._clock_watch.look(ros_ns=self.now_ns(), steady_s=self.steady_s())
        if jump is not None:
            self.get_logger().warning(f"ROS time jumped by {jump.delta_s:+.3f} s")
            self.on_clock_jump(jump.delta_s)

    def _report_qos(self, topic: str, we: str, event: Any) -> None:
        line = qos_mismatch(int(event.last_policy_kind), topic=topic, we=we)
        if self._qos_faults.get(topic) != line:
            self.get_logger().warning(line)
        self._qos_faults[topic] = line


def main(node_class: Callable[[], PhysisNode[Any]], argv: Sequence[str] | None = None) -> int:
    """Run one node until a signal or a fault. Returns the exit code.

    0: stopped by SIGINT or SIGTERM. 1: a fault of ours. 2: bad input, one line on standard error.
    """
    arguments = list(sys.argv if argv is None else argv)
    program = os.path.basename(arguments[0]) if arguments else "node"
    keep_image_memory()
    stop = threading.Event()
    # Handlers go in first, so that a stop during start-up is not lost.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: stop.set())
    # Kept since the first line of this process (physis_ros/nodes/__init__.py).
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        # Fast DDS ends the process without a word of ours where the id is too high.
        domain_from(os.environ)
        rclpy.init(args=arguments, signal_handler_options=SignalHandlerOptions.NO)
        node = node_class()
    except UserError as error:
        return _refuse(program, str(error))
    except RuntimeError as error:  # what rcl raises for bad arguments, files, domains
        return _refuse(program, str(error))
    node._stop = stop
    code = EXIT_FAULT
    try:
        code = _spin(node, stop)
    finally:
        if node._state_machine.current_state[1] in ("unconfigured", "inactive", "active"):
            node.trigger_shutdown()
        node.destroy_node()
        rclpy.try_shutdown()
        # All is closed; an impatient second signal must not spoil the exit code of what is left.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
    return code


def _spin(node: PhysisNode[Any], stop: threading.Event) -> int:
    code = node.autostart()
    if code != EXIT_OK:
        return code
    # What start-up made stays; a collector that walks through it would hold up some callback.
    gc.collect()
    gc.freeze()
    executor = _new_executor()
    executor.add_node(node)
    try:
        # spin() of the EventsExecutor neither fires timers nor lets signal handlers run.
        while not stop.is_set():
            executor.spin_once(timeout_sec=_STOP_LOOK_PERIOD_S)
    except ExternalShutdownException:
        node.get_logger().info("the ROS context was shut down")
    except Exception:  # noqa: BLE001  reported whole, and the process ends
        node.get_logger().fatal(f"a callback failed\n{traceback.format_exc()}")
        return EXIT_FAULT
    finally:
        executor.remove_node(node)
    return node._exit_code


def _new_executor() -> Any:
    try:
        from rclpy.experimental import EventsExecutor
    except ImportError:  # before Kilted
        return SingleThreadedExecutor()
    return EventsExecutor()


def _refuse(program: str, reason: str) -> int:
    print(f"{program}: {' '.join(reason.split())}", file=sys.stderr, flush=True)
    rclpy.try_shutdown()
    return EXIT_USER
