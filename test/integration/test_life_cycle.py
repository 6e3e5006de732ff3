"""A node that was deactivated may be activated again, and works as before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psutil
import pytest
from lifecycle_msgs.srv import ChangeState

from physis_ros.node.interfaces import SAFETY_HEARTBEAT, STREAM_STATUS, Service, Topic

GROWTH_BYTES = 8 << 20
"""Allowed over eight cycles; an engine that lingers takes about so much in each."""


def transitions(ros: Any, name: str) -> Callable[[str], bool]:
    change = Service(name=f"{name}/change_state", type=ChangeState)

    def go(label: str) -> bool:
        request = ChangeState.Request()
        request.transition.label = label
        return bool(ros.call(change, request).success)

    return go


@pytest.mark.parametrize(
    ("name", "tells"), [("safety_node", SAFETY_HEARTBEAT), ("buffer_node", STREAM_STATUS)]
)
def test_a_node_works_again_after_it_was_deactivated(ros: Any, name: str, tells: Topic) -> None:
    heard = ros.listen(tells)
    node = ros.start(name, "autostart:=false")
    go = transitions(ros, name)
    assert go("configure")
    for _ in range(2):
        heard.clear()
        assert go("activate")
        ros.wait(lambda: heard, f"{tells.name} of an active {name}")
        assert go("deactivate")
    assert go("cleanup")
    assert ros.stop(node) == 0


def test_an_engine_that_is_configured_again_and_again_does_not_grow(ros: Any) -> None:
    node = ros.start("engine_node", "autostart:=false", "workers:=0", "model:=physis_tiny_follow")
    go = transitions(ros, "engine_node")
    sizes = []
    for _ in range(12):
        for label in ("configure", "activate", "deactivate", "cleanup"):
            assert go(label), ros.log(node)
        sizes.append(psutil.Process(node.pid).memory_info().rss)
    # On a busy machine a thread of the last engine may not have ended yet.
    assert min(sizes[-3:]) - max(sizes[1:4]) < GROWTH_BYTES, sizes
    assert ros.stop(node) == 0
