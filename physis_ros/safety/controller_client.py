"""Asks the ROS graph, the controller and its manager for `ControllerFacts`.

Nothing waits: each poll takes the answers that came and sends the next requests. A controller's
parameters are read from its node, which bears the name of its topic's namespace. Its state comes
from `controller_manager/list_controllers`, where controller_manager_msgs is installed and the
service is there.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any

from rcl_interfaces.msg import ParameterType, ParameterValue
from rcl_interfaces.srv import GetParameters
from rclpy.client import Client
from rclpy.node import Node
from rclpy.publisher import Publisher
from rclpy.task import Future

from physis_ros.safety.surroundings import ControllerFacts, state_of

_JOINTS = "joints"
_INTERPOLATES = "interpolate_from_desired_state"


class ControllerClient:
    """`publisher`: ours, on the controller's topic. `known` changes with `poll`."""

    def __init__(self, node: Node, publisher: Publisher[Any]) -> None:
        self._node = node
        self._topic = publisher.topic_name
        self._controller = self._topic.rsplit("/", 1)[0]
        self.known = ControllerFacts(topic=self._topic)
        self._parameters: Client[Any, Any] = node.create_client(
            GetParameters, f"{self._controller}/get_parameters"
        )
        self._list: Client[Any, Any] | None = None
        try:
            services = import_module("controller_manager_msgs.srv")
        except ModuleNotFoundError:
            # Not a part of every ROS installation; `unknown` names what is not checked then.
            node.get_logger().info("controller_manager_msgs is missing: no controller state")
        else:
            self._list = node.create_client(
                services.ListControllers, "controller_manager/list_controllers"
            )
        self._asked: dict[str, Future[Any]] = {}

    def close(self) -> None:
        for client in (self._parameters, self._list):
            if client is not None:
                self._node.destroy_client(client)

    def poll(self) -> ControllerFacts:
        """Look at the graph, take the answers that came, and ask again."""
        self.known = replace(self.known, publishers=self._other_publishers())
        request = GetParameters.Request(names=[_JOINTS, _INTERPOLATES])
        answer = self._ask("parameters", self._parameters, request)
        if answer is not None:
            joints, interpolates = _values(answer.values)
            self.known = replace(self.known, joints=joints, interpolates=interpolates)
        if self._list is not None:
            answer = self._ask("list", self._list, self._list.srv_type.Request())
            if answer is not None:
                listed = [(one.name, one.state) for one in answer.controller]
                name = self._controller.rsplit("/", 1)[-1]
                self.known = replace(self.known, state=state_of(name, listed))
        return self.known

    def _ask(self, what: str, client: Client[Any, Any], request: Any) -> Any:
        """The answer to the request of an earlier poll, once; None: none has come."""
        asked = self._asked.get(what)
        answer = None
        if asked is not None and asked.done():
            answer = asked.result()
            del self._asked[what]
        if what not in self._asked and client.service_is_ready():
            self._asked[what] = client.call_async(request)
        return answer

    def _other_publishers(self) -> tuple[str, ...]:
        own = (self._node.get_namespace(), self._node.get_name())
        found = [
            (end.node_namespace, end.node_name)
            for end in self._node.get_publishers_info_by_topic(self._topic)
        ]
        if own in found:
            # A second node of our name is somebody else.
            found.remove(own)
        return tuple(sorted(f"{space.rstrip('/')}/{name}" for space, name in found))


def _values(
    values: list[ParameterValue],
) -> tuple[tuple[str, ...] | None, bool | None]:
    """`joints` and `interpolate_from_desired_state`; None where the controller has no such."""
    if len(values) != 2:
        return None, None
    joints, interpolates = values
    return (
        tuple(joints.string_array_value)
        if joints.type == ParameterType.PARAMETER_STRING_ARRAY
        else None,
        bool(interpolates.bool_value)
        if interpolates.type == ParameterType.PARAMETER_BOOL
        else None,
    )
