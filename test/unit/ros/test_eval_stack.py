"""What a stack's report says was run is enough for the fast mode to run the same."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from physis_core.arm.kinematics import HOME_RAD
from physis_core.observe.result_file import result_text
from physis_ros.eval_stack import StackRuns, stack_config
from physis_ros.robot_side_player import robot_side
from physis_ros.session import plan_session


def test_the_fast_mode_takes_buffer_and_safety_as_the_stack_had_them(tmp_path: Path) -> None:
    plan = plan_session(
        tmp_path / "run", domain=55, seed=3, sets=["buffer_node.lead_s=0.11", "engine_node.seed=4"]
    )
    config = stack_config(StackRuns(episodes=(), plan=plan, reason=""), task="follow")
    told = json.loads(result_text(config))
    assert told["mode"] == "stack"
    assert told["task"] == "follow"
    assert told["engine"]["seed"] == 4
    assert told["buffer"]["lead_s"] == 0.11
    assert "record_path" not in told["buffer"]
    assert told["period_ms"] == 100.0
    player = robot_side(told["buffer"], told["safety"])(np.array(HOME_RAD))
    assert player.timeline_config.lead_s == 0.11
