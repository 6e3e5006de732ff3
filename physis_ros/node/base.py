"""What every node has: a life cycle with autostart, parameters, diagnostics and an orderly exit.

Threads: ROS callbacks run on the main thread, one at a time. A node class implements `configure`,
`activate`, `deactivate` and `cleanup`, which raise UserError where a person must act. With
`autostart` such an error ends the process with one line and exit code 2. Without it the node stays
unconfigured, gives the reason on /diagnostics, and can be configured again.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from rclpy.event_handler import PublisherEventCallbacks, SubscriptionEventCallbacks
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.publisher import Publisher
from rclpy.subscription import Subscription
from rclpy.timer import Timer

from physis_core.types import UserError
from physis_ros.node.clock import ClockJump, NodeClock, TimerCallback
from physis_ros.node.diagnosis import ERROR, OK, STALE, WARN, Diagnosis, diagnostic_array
from physis_ros.node.interfaces import DIAGNOSTICS, Topic, qos_mismatch
from physis_ros.node.metric_names import Sample
from physis_ros.node.metrics import MetricsEndpoint
from physis_ros.node.node_parameters import NodeParameters
from physis_ros.node.parameters import BaseParameters
from physis_ros.node.process import EXIT_FAULT, EXIT_OK, EXIT_USER, main
from physis_ros.node.waiting import WaitNotice

__all__ = [
    "ACTIVE",
    "ERROR",
    "EXIT_FAULT",
    "EXIT_OK",
    "EXIT_USER",
    "OK",
    "STALE",
    "WARN",
    "BaseParameters",
    "Diagnosis",
    "PhysisNode",
    "main",
]

_DIAGNOSTICS_PERIOD_S = 1.0
ACTIVE = "active"
"""What each node logs when it begins to work; `physis up` reads it."""


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
        self._wait = WaitNotice()
        self._metrics: MetricsEndpoint | None = None
        self.parameters: NodeParameters[P] = NodeParameters(
            self, parameters, validate=self.validate_parameters, on_change=self.on_parameters
        )
        self._clocks = NodeClock(
            self, jump_s=self.params.clock_jump_s, on_jump=self._handle_clock_jump
        )
        self._diagnostics = self.create_publisher(
            DIAGNOSTICS.type, DIAGNOSTICS.name, DIAGNOSTICS.qos
        )
        self.steady_timer(_DIAGNOSTICS_PERIOD_S, self._every_second)

    # What a node may override ------------------------------------------------------------------

    def validate_parameters(self, new: P) -> None:
        """Refuse (UserError) values that do not fit together. Runs before `self.params` changes."""

    def on_parameters(self, new: P) -> None:
        """Apply parameters that changed at run time."""

    def configure(self) -> None:
        """Create what the node needs. Raise UserError where input is wrong."""

    def activate(self) -> None:
        """Begin to work."""

    def deactivate(self) -> None:
        """Stop working; keep what `configure` made."""

    def cleanup(self) -> None:
        """Release what `configure` made. Also called after `configure` failed."""

    def on_clock_jump(self, delta_s: float) -> None:
        """ROS time jumped by `delta_s`: drop what was placed on the old time."""

    def diagnose(self) -> Sequence[Diagnosis]:
        """Statuses for /diagnostics, once a second."""
        return ()

    def metrics(self) -> Iterable[Sample]:
        """Samples for the OpenMetrics endpoint, once a second while active and `metrics_port` is
        set."""
        return ()

    def waits_for(self) -> str:
        """What does not come, and why, while the node is active and cannot do its work; empty where
        it works. Logged after some seconds."""
        return ""

    # What a node uses --------------------------------------------------------------------------

    @property
    def params(self) -> P:
        return self.parameters.value

    @property
    def active(self) -> bool:
        return bool(self._state_machine.current_state[1] == "active")

    def stopping(self) -> bool:
        """True once a signal or a fault has asked the process to end: abandon long work."""
        return self._stop.is_set()

    def now_ns(self) -> int:
        """ROS time (simulated where use_sim_time) in nanoseconds."""
        return self._clocks.now_ns()

    def steady_s(self) -> float:
        return self._clocks.steady_s()

    def both_clocks(self) -> tuple[float, int]:
        """Steady seconds and ROS nanoseconds of one moment."""
        return self._clocks.both()

    def standstill(self) -> str:
        """Why simulated time does not advance; empty where it does, and on wall time."""
        return self._clocks.standstill()

    def clock_fault(self) -> str:
        """Why simulated time does not serve: it stands still or is too coarse; else empty."""
        return self._clocks.fault()

    def clock_step_s(self) -> float:
        """The usual step in which simulated time advances; 0 where it is fine, and on wall time."""
        return self._clocks.step_s()

    def steady_timer(self, period_s: float, callback: TimerCallback) -> Timer:
        """A timer that a paused or jumping /clock does not touch."""
        return self._clocks.steady_timer(period_s, callback)

    def subscribe(
        self,
        topic: Topic,
        callback: Callable[[Any], None],
        *,
        deadline: Callable[[Any], None] | None = None,
        liveliness: Callable[[Any], None] | None = None,
        raw: bool = False,
    ) -> Subscription[Any]:
        """Subscribe with the topic's QoS; an incompatible publisher is reported with the policy.
        With `raw` the callback gets the serialized message."""
        events = SubscriptionEventCallbacks(
            incompatible_qos=lambda event: self._report_qos(topic.name, "subscribe", event),
            deadline=deadline,
            liveliness=liveliness,
        )
        return self.create_subscription(
            topic.type, topic.name, callback, topic.qos, event_callbacks=events, raw=raw
        )

    def publisher(self, topic: Topic) -> Publisher[Any]:
        """Publish with the topic's QoS; an incompatible subscriber is reported with the policy."""
        events = PublisherEventCallbacks(
            incompatible_qos=lambda event: self._report_qos(topic.name, "publish", event)
        )
        return self.create_publisher(topic.type, topic.name, topic.qos, event_callbacks=events)

    def set_fault(self, reason: str) -> None:
        """Log once, and show on /diagnostics until cleared, why the node does not work."""
        if reason and reason != self._fault:
            self.get_logger().error(reason)
        self._fault = reason

    def request_exit(self, code: int, reason: str) -> None:
        """End the process in an orderly way with this exit code. Callable from any thread."""
        if code != EXIT_OK:
            self.get_logger().fatal(reason)
        self._exit_code = max(self._exit_code, code)
        self._stop.set()

    @property
    def exit_code(self) -> int:
        """The highest code given to `request_exit`."""
        return self._exit_code

    def end_by(self, stop: threading.Event) -> None:
        """The process ends when `stop` is set, by a signal or by this node."""
        self._stop = stop

    # Life cycle --------------------------------------------------------------------------------

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        self.set_fault("")
        done = self._run("configure", self._configure)
        if done != TransitionCallbackReturn.SUCCESS:
            self._run("cleanup", self._cleanup, keep_fault=True)
            return done
        return super().on_configure(state)

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        done = self._run("activate", self.activate)
        if done != TransitionCallbackReturn.SUCCESS:
            return done
        self.get_logger().info(ACTIVE)
        return super().on_activate(state)

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        done = self._run("deactivate", self.deactivate)
        return done if done != TransitionCallbackReturn.SUCCESS else super().on_deactivate(state)

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        self._qos_faults.clear()
        done = self._run("cleanup", self._cleanup)
        return done if done != TransitionCallbackReturn.SUCCESS else super().on_cleanup(state)

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        if state.label == "active":
            self._run("deactivate", self.deactivate)
        if state.label in ("active", "inactive"):
            self._run("cleanup", self._cleanup)
        return super().on_shutdown(state)

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        self._run("cleanup", self._cleanup, keep_fault=True)
        return super().on_error(state)

    def _configure(self) -> None:
        if self.params.metrics_port:
            self._metrics = MetricsEndpoint(self.params.metrics_port)
        self.configure()

    def _cleanup(self) -> None:
        metrics, self._metrics = self._metrics, None
        if metrics is not None:
            metrics.close()
        self.cleanup()

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
        except TimeoutError as error:
            # No input is wrong: a less busy machine may finish in time.
            self.set_fault(f"{what}: {error}")
            return TransitionCallbackReturn.ERROR
        except Exception as error:  # noqa: BLE001
            # The state machine would hide it; log the whole traceback.
            self.get_logger().error(f"{what} failed\n{traceback.format_exc()}")
            if not keep_fault:
                self._fault = f"{what} failed: {type(error).__name__}: {error}"
            return TransitionCallbackReturn.ERROR
        return TransitionCallbackReturn.SUCCESS

    def autostart(self) -> int:
        """Configure and activate. Returns an exit code; 0: the node works, or was asked to stop."""
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

    def shut_down(self) -> None:
        """Leave the life cycle, whatever state it is in."""
        if self._state_machine.current_state[1] in ("unconfigured", "inactive", "active"):
            self.trigger_shutdown()

    # Own work ----------------------------------------------------------------------------------

    def _every_second(self) -> None:
        self.publish_diagnostics()
        if self._metrics is not None:
            name = self.get_fully_qualified_name()
            own = Sample(family="physis_node_active", value=self.active, labels={"node": name})
            self._metrics.publish((own, *(self.metrics() if self.active else ())))
        line = self._wait.look(self.waits_for() if self.active else "", self.steady_s())
        if line:
            self.get_logger().info(line)

    def publish_diagnostics(self) -> None:
        state = self._state_machine.current_state[1]
        own_level, own_message = OK, state
        if self._fault:
            own_level, own_message = ERROR, self._fault
        elif self._qos_faults:
            own_level, own_message = WARN, "; ".join(self._qos_faults.values())
        elif clock_fault := self.clock_fault():
            own_level, own_message = WARN, clock_fault
        found = [
            Diagnosis(part="node", level=own_level, message=own_message, values={"state": state})
        ]
        found.extend(self.diagnose())
        self._diagnostics.publish(
            diagnostic_array(
                found,
                node=self.get_fully_qualified_name(),
                namespace=self.get_namespace(),
                stamp=self.get_clock().now().to_msg(),
            )
        )

    def _handle_clock_jump(self, jump: ClockJump) -> None:
        self.get_logger().warning(f"ROS time jumped by {jump.delta_s:+.3f} s")
        self.on_clock_jump(jump.delta_s)

    def _report_qos(self, topic: str, we: str, event: Any) -> None:
        line = qos_mismatch(int(event.last_policy_kind), topic=topic, we=we)
        if self._qos_faults.get(topic) != line:
            self.get_logger().warning(line)
        self._qos_faults[topic] = line
