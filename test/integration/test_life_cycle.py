"""A node that was deactivated may be activated again, and works as before."""

from __future__ import annotations

from typing import Any

import pytest
from lifecycle_msgs.srv import ChangeState

from physis_ros.node.interfaces import SAFETY_HEARTBEAT, STREAM_STATUS, Service, Topic


@pytest.mark.parametrize(
    ("name", "tells"), [("safety_node", SAFETY_HEARTBEAT), ("buffer_node", STREAM_STATUS)]
)
def test_a_node_works_again_after_it_was_deactivated(ros: Any, name: str, tells: Topic) -> None:
    heard = ros.listen(tells)
    node = ros.start(name, "autostart:=false")
    change = Service(name=f"{name}/change_state", type=ChangeState)

    def go(label: str) -> bool:
        request = ChangeState.Request()
        request.transition.label = label
        return bool(ros.call(change, request).success)

    assert go("configure")
    for _ in range(2):
        heard.clear()
        assert go("activate")
        ros.wait(lambda: heard, f"{tells.name} of an active {name}")
        assert go("deactivate")
    assert go("cleanup")
    assert ros.stop(node) == 0
