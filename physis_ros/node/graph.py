"""Who publishes a topic: from the ROS graph, and from the id that a message brings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from rclpy.node import Node
from rclpy.subscription import Subscription


def with_publisher(callback: Callable[[Any, bytes | None], None]) -> Callable[..., None]:
    """A subscription's callback that is given each message's publisher, by its id; None where this
    rclpy does not say it."""
    if not hasattr(Subscription, "CallbackType"):
        return lambda message: callback(message, None)

    def take(*given: Any) -> None:
        # Kilted's EventsExecutor passes one tuple where it should pass two arguments.
        message, info = given[0] if len(given) == 1 else given
        callback(message, _publisher_id(info))

    # rclpy looks at the signature: two arguments ask for the message's info.
    vars(take)["__signature__"] = inspect.signature(lambda message, info: None)
    return take


def _publisher_id(info: Mapping[str, Any]) -> bytes | None:
    gid = info.get("publisher_gid")
    return None if gid is None else bytes(gid["data"])


def publisher_names(node: Node, topic: str) -> dict[bytes, str]:
    """The full name of each publisher's node, by the publisher's id."""
    return {
        bytes(found.endpoint_gid): f"{found.node_namespace.rstrip('/')}/{found.node_name}"
        for found in node.get_publishers_info_by_topic(topic)
    }
