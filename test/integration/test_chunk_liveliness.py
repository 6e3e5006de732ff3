"""Whether an engine is alive, as DDS tells who reads its chunks."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from arm_stack import ENGINE
from rclpy.event_handler import SubscriptionEventCallbacks
from restless_model import restless_model

from physis_ros.node.interfaces import action_chunk

pytestmark = pytest.mark.integration


def test_a_quiet_engine_is_alive_and_one_that_stands_still_is_not(ros: Any, tmp_path: Path) -> None:
    model = restless_model(tmp_path / "model.safetensors")
    told: list[Any] = []
    topic = action_chunk(lease_s=0.5)
    ros.node.create_subscription(
        topic.type,
        topic.name,
        print,
        topic.qos,
        event_callbacks=SubscriptionEventCallbacks(liveliness=told.append),
    )
    engine = ros.start("engine_node", f"model:={model}", *ENGINE, "lease_s:=0.5")
    ros.wait(lambda: told and told[-1].alive_count == 1, "an engine that is alive")
    # No observation comes, so no chunk does. For several leases:
    end_s = time.monotonic() + 2.5
    ros.wait(lambda: time.monotonic() > end_s, "time to pass")
    ros.wait(lambda: told[-1].alive_count == 1, "an engine that is alive, and has nothing to do")
    os.kill(engine.pid, signal.SIGSTOP)
    try:
        ros.wait(lambda: told[-1].alive_count == 0, "an engine that is not alive")
    finally:
        os.kill(engine.pid, signal.SIGCONT)
    ros.wait(lambda: told[-1].alive_count == 1, "the engine to be alive again")
