"""What is set side by side of the stack and the fast mode."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from physis_lab.evaluation.chunk_schedule import PlannedChunk
from physis_lab.evaluation.compare import RUNS, EpisodeScore, beside, medians, print_comparison


def scores(errors_m: list[float], *, success: bool = True) -> list[EpisodeScore]:
    return [
        EpisodeScore(seed=seed, error_m=error_m, success=success, jerk_measured=9.0)
        for seed, error_m in enumerate(errors_m)
    ]


def test_differences_are_taken_episode_by_episode() -> None:
    # Episodes differ much, the two loops by 1 mm in each of them.
    stack, fast = [0.01, 0.05, 0.09], [0.009, 0.049, 0.089]
    row = beside(scores(stack), scores(fast, success=False))
    assert row["stack_minus_fast_m"] == pytest.approx(0.001)
    assert row["stack_minus_fast_m_ci95"] == pytest.approx(0.0, abs=1e-9)
    assert row["error_m"] == pytest.approx(0.049)
    assert row["error_m_ci95"] > 0.05
    assert row["stack_minus_fast_success"] == 1.0


def test_the_medians_are_those_of_all_chunks_after_the_task_began() -> None:
    def chunk(captured_s: float, lookahead_s: float, way_s: float) -> PlannedChunk:
        return PlannedChunk(
            captures_s=(captured_s,), lookahead_s=lookahead_s, arrives_s=captured_s + way_s
        )

    early = chunk(-0.5, 9.0, 9.0)
    episodes = [
        [early, chunk(0.1, 0.10, 0.20), chunk(0.2, 0.11, 0.30)],
        [early, chunk(0.1, 0.12, 0.25)],
    ]
    assert medians(episodes) == pytest.approx({"lookahead_s": 0.11, "arrives_s": 0.25})


def test_the_table_says_which_is_which() -> None:
    row = beside(scores([0.01, 0.02]), scores([0.011, 0.019]))
    said = io.StringIO()
    found = {
        "stack": row, **dict.fromkeys(RUNS, row), "noise": row,
        "median_delays_s": {"lookahead_s": 0.06, "arrives_s": 0.07},
    }  # fmt: skip
    print_comparison(found, Console(file=said, width=200))
    for words in ("stack", *RUNS, "lookahead 60 ms", "capture to buffer 70 ms"):
        assert words in said.getvalue()
