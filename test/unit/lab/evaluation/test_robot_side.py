"""Buffer and safety as a executor of the fast loop."""

from __future__ import annotations

import numpy as np
import pytest

from physis_core.types import UserError
from physis_lab.arm.kinematics import HOME_RAD
from physis_lab.evaluation.chunk_execution import ArrivedChunk
from physis_lab.evaluation.robot_side import robot_side, side_figures

HOME = np.array(HOME_RAD)
LEAD_S = 0.06


def chunk(captured_s: float, lookahead_s: float, points: np.ndarray) -> ArrivedChunk:
    return ArrivedChunk(
        exit_s=captured_s + lookahead_s,
        start_s=captured_s + lookahead_s,
        step_s=0.05,
        points=points,
        captured_s=captured_s,
    )


def test_it_stands_still_before_the_first_chunk_and_then_keeps_the_chunks_path() -> None:
    executor = robot_side()(HOME)
    for tick in range(-30, 15):
        assert np.array_equal(executor.command(0.01 * tick), HOME)
    speed = np.array([0.2, 0.0, 0.0, 0.0, 0.0, 0.0])

    def path(t_s: float) -> np.ndarray:
        return HOME + t_s * speed

    for n in range(20):
        captured_s = 0.1 * n
        points = np.stack([path(captured_s + 0.15 + 0.05 * k) for k in range(8)])
        executor.offer(chunk(captured_s, 0.15, points), captured_s + 0.15)
        for tick in range(10):
            command = executor.command(captured_s + 0.15 + 0.01 * tick)
    assert command == pytest.approx(path(2.14), abs=2e-3)
    assert executor.refused == []
    assert executor.underruns == []
    assert executor.rebases == 0
    assert executor.counts["accepted"] == 20
    assert executor.counts["rejected"] == 0
    figures = side_figures([executor], 1.0)
    assert figures["underruns"] == figures["dropped"] == 0
    assert figures["safety"]["state"] == "OK"
    assert figures["servo_age_ms"]["n"] > 50
    # A chunk counts from the hand-over on: capture, lookahead and lead before.
    ages_s = np.array([age_s for at_s, age_s in executor.ages_s if at_s > 1.0])
    assert ages_s.min() >= 0.15 + LEAD_S - 0.011
    assert ages_s.max() <= 0.15 + LEAD_S + 0.1 + 0.011


def test_a_chunk_that_is_wholly_past_is_refused_and_changes_nothing() -> None:
    executor = robot_side()(HOME)
    executor.offer(chunk(0.0, 0.1, np.tile(HOME + 0.3, (8, 1))), 5.0)
    assert len(executor.refused) == 1
    assert "past" in executor.refused[0]
    assert np.array_equal(executor.command(5.5), HOME)


def test_a_sudden_far_chunk_is_gone_over_to_within_the_limits() -> None:
    side = robot_side()
    executor = side(HOME)
    path = [executor.command(0.01 * tick) for tick in range(10)]
    for n in range(6):
        # Half a radian to and fro: more than the drives can do in a chunk's time.
        points = np.tile(HOME + (0.5 if n % 2 else -0.5) * np.eye(6)[0], (8, 1))
        executor.offer(chunk(0.1 * n, 0.1, points), 0.1 * n + 0.1)
        path += [executor.command(0.1 * n + 0.1 + 0.01 * (tick + 1)) for tick in range(10)]
    speed = np.diff(np.stack(path), axis=0) / 0.01
    limits = executor.limits
    assert (np.abs(speed) <= np.array(limits.velocity) * 1.001).all()
    change = np.diff(speed, axis=0) / 0.01
    assert (np.abs(change) <= np.array(limits.acceleration) * 1.05).all()
    assert executor.counts["limited"] + executor.counts["rejected"] > 0


def test_a_parameter_that_no_node_has_is_refused_by_name() -> None:
    with pytest.raises(UserError, match=r"buffer_node\.leads_s"):
        robot_side({"leads_s": 0.1})
