"""What a stack's report says was run is enough for the fast mode to run the same."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console
from test_stack_episode import record

from physis_core.observe.result_file import result_text
from physis_core.types import UserError
from physis_lab.arm.kinematics import HOME_RAD
from physis_lab.evaluation import stack_run as eval_stack
from physis_lab.evaluation.robot_side import robot_side
from physis_lab.evaluation.stack_run import StackRuns, stack_config
from physis_lab.session.session import plan_session


def test_what_was_finished_before_an_interrupt_or_a_failure_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for end in ("interrupted", UserError("eval", "engine_node", "refused its input")):
        out = tmp_path / str(end)[:5]
        answers: list[object] = ["", end]
        counts: list[int] = []

        def plan(directory: Path, **_: object) -> SimpleNamespace:
            directory.mkdir(parents=True)
            (directory / "front.frames").touch()
            return SimpleNamespace(directory=directory)

        def play(*_: object, answers: list[object] = answers) -> object:
            answer = answers.pop(0)
            if isinstance(answer, UserError):
                raise answer
            return answer

        monkeypatch.setattr(eval_stack, "plan_session", plan)
        monkeypatch.setattr(eval_stack, "_run_one", play)
        monkeypatch.setattr(eval_stack, "read_run", lambda _: record())
        runs = eval_stack.run_episodes(
            range(7, 12),
            task="follow",
            duration_s=10.0,
            settle_s=2.0,
            out=out,
            sets=[],
            console=Console(quiet=True),
            verbose=False,
            finished=lambda runs, counts=counts: counts.append(len(runs.episodes)),
        )
        assert [episode.seed for episode in runs.episodes] == [7]
        assert counts == [1]
        assert str(end) in runs.reason
        assert not (out / "seed-7" / "front.frames").exists()


def test_the_fast_mode_takes_buffer_and_safety_as_the_stack_had_them(tmp_path: Path) -> None:
    plan = plan_session(
        tmp_path / "run", domain=55, seed=3, sets=["buffer_node.lead_s=0.11", "engine_node.seed=4"]
    )
    config = stack_config(StackRuns(episodes=(), plan=plan, reason=""), task="follow")
    saved = json.loads(result_text(config))
    assert saved["mode"] == "stack"
    assert saved["task"] == "follow"
    assert saved["engine"]["seed"] == 4
    assert saved["buffer"]["lead_s"] == 0.11
    assert "record_path" not in saved["buffer"]
    assert saved["period_ms"] == 100.0
    executor = robot_side(saved["buffer"], saved["safety"])(np.array(HOME_RAD))
    assert executor.timeline_config.lead_s == 0.11
