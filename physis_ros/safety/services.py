"""The services of safety_node: `~/estop`, `~/reset`, `~/enable`, `~/hand_back`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rclpy.task import Future
from std_srvs.srv import SetBool, Trigger

from physis_ros.node.base import PhysisNode
from physis_ros.node.interfaces import ENABLE, ESTOP, HAND_BACK, RESET
from physis_ros.safety.arming import Answer
from physis_ros.safety.guarded_filter import GuardedFilter
from physis_ros.safety.parameters import SafetyParameters


class SafetyServices:
    """`look_around` brings the filter's surroundings up to date, `not_checked` says what of them
    could not be checked."""

    def __init__(
        self,
        node: PhysisNode[SafetyParameters],
        guard: GuardedFilter,
        *,
        look_around: Callable[[], None],
        not_checked: Callable[[], str],
    ) -> None:
        self._node = node
        self._guard = guard
        self._look_around = look_around
        self._not_checked = not_checked
        # Those who wait for the robot to rest, and until when (steady seconds).
        self._stops: list[tuple[Future[str], float]] = []
        self._made: list[Any] = [
            node.create_service(ESTOP.type, ESTOP.name, self._on_estop),
            node.create_service(RESET.type, RESET.name, self._on_reset),
            node.create_service(ENABLE.type, ENABLE.name, self._on_enable),
            node.create_service(HAND_BACK.type, HAND_BACK.name, self._on_hand_back),
        ]

    def answer_stops(self) -> None:
        """Answer `~/estop` where the robot rests, or should by now; call often."""
        if not self._stops:
            return
        moving, now_s = self._guard.stopping(), self._node.steady_s()
        waiting = []
        for future, until_s in self._stops:
            if moving and now_s < until_s:
                waiting.append((future, until_s))
            else:
                future.set_result(moving)
        self._stops = waiting

    def deactivated(self) -> None:
        """Nobody looks whether the robot rests any more: answer at once."""
        for future, _ in self._stops:
            future.set_result("safety_node was deactivated")
        self._stops = []

    def close(self) -> None:
        for service in self._made:
            self._node.destroy_service(service)
        self._made = []

    async def _on_estop(
        self, _request: Trigger.Request, response: Trigger.Response
    ) -> Trigger.Response:
        """Answers when the robot is measured at rest, or when it should have been."""
        if not self._node.active:
            return _not_active(response)
        begun_s = self._node.steady_s()
        self._guard.estop("~/estop was called")
        future: Future[str] = Future()
        self._stops.append((future, begun_s + self._node.params.stop_answer_s))
        # Empty where the robot rests, or why it is not known to.
        moving = await future
        took_s = self._node.steady_s() - begun_s
        response.success = not moving
        response.message = (
            f"STOP is latched; NOT AT REST after {took_s:.1f} s: {moving}"
            if moving
            else f"STOP is latched; at rest after {took_s:.2f} s; ~/reset, then ~/enable"
        )
        return response

    def _on_reset(self, _request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        if not self._node.active:
            return _not_active(response)
        return _answered(response, self._guard.reset())

    def _on_enable(self, request: SetBool.Request, response: SetBool.Response) -> SetBool.Response:
        if not self._node.active:
            return _not_active(response)
        if not request.data:
            self._guard.disarm()
            return _answered(response, Answer(done=True, reason="disarmed; braking"))
        self._look_around()
        answer = self._guard.arm()
        not_checked = self._not_checked()
        if answer.done and not_checked:
            answer = Answer(done=True, reason=f"{answer.reason}; {not_checked}")
        return _answered(response, answer)

    def _on_hand_back(
        self, _request: Trigger.Request, response: Trigger.Response
    ) -> Trigger.Response:
        if not self._node.active:
            return _not_active(response)
        return _answered(response, self._guard.hand_back())


def _answered(response: Any, answer: Answer) -> Any:
    response.success, response.message = answer.done, answer.reason
    return response


def _not_active(response: Any) -> Any:
    return _answered(response, Answer(done=False, reason="safety_node is not active"))
