"""Who counts as lost: numbers, and what holds for any course of time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from physis_core.engine.heartbeat import PERIOD_S, SLOW_LIMIT_S, Heartbeat

STEP_S = 0.1


def course(
    heartbeat: Heartbeat, until_s: float, *, hears: dict[int, float], start_s: float = 0.0
) -> dict[int, float]:
    """Turn every 0.1 s; worker w is heard until `hears[w]`. Returns when each counted as lost."""
    lost: dict[int, float] = {}
    for n in range(1, round((until_s - start_s) / STEP_S) + 1):
        now_s = start_s + STEP_S * n
        for worker, last_s in hears.items():
            if now_s <= last_s:
                heartbeat.heard(worker, now_s)
        for one in heartbeat.turn(now_s)[1]:
            assert one.worker not in lost, "a loss is said once"
            lost[one.worker] = now_s
    return lost


def two(runs: bool | None) -> Heartbeat:
    heartbeat = Heartbeat(1.0, lambda worker: runs)
    heartbeat.turn(0.0)
    for worker in (0, 1):
        heartbeat.watch(worker, 0.0)
    return heartbeat


def test_a_silent_worker_counts_as_lost_after_the_limit_and_no_other_does():
    lost = course(two(False), 5.0, hears={0: 9.0, 1: 2.0})
    assert list(lost) == [1]
    assert 3.0 <= lost[1] <= 3.0 + 2 * STEP_S


def test_a_worker_of_another_host_is_judged_by_its_silence_alone():
    assert course(two(None), 3.0, hears={0: 9.0})[1] <= 1.0 + 2 * STEP_S


def test_a_worker_whose_process_runs_has_more_time_but_not_for_ever():
    lost = course(two(True), 9.0, hears={0: 9.0, 1: 2.0})
    assert 2.0 + SLOW_LIMIT_S <= lost[1] <= 2.0 + SLOW_LIMIT_S + 2 * STEP_S


def test_the_engine_s_own_pause_is_nobody_s_silence():
    heartbeat = two(False)
    assert course(heartbeat, 2.0, hears={0: 2.0, 1: 2.0}) == {}
    assert heartbeat.turn(12.0)[1] == (), "it was stopped for ten seconds"
    lost = course(heartbeat, 15.0, hears={0: 15.0}, start_s=12.0)
    assert list(lost) == [1], "and then looks as before"
    assert lost[1] >= 12.9


def test_each_worker_is_pinged_several_times_within_the_limit():
    heartbeat = two(False)
    pings = 0
    for n in range(1, 21):
        heartbeat.heard(0, 0.1 * n)
        heartbeat.heard(1, 0.1 * n)
        pings += heartbeat.turn(0.1 * n)[0] == (0, 1)
    assert pings >= 2.0 / PERIOD_S - 1
    assert heartbeat.next_s() <= 2.0 + PERIOD_S


def test_who_is_forgotten_is_waited_for_no_more():
    heartbeat = two(False)
    heartbeat.forget(1)
    assert course(heartbeat, 5.0, hears={0: 9.0}) == {}
    heartbeat.heard(1, 5.0)
    assert course(heartbeat, 8.0, hears={0: 9.0}, start_s=5.0) == {}
    heartbeat.forget(0)
    assert heartbeat.next_s() == float("inf")


@given(
    gaps_s=st.lists(st.floats(0.01, 20.0), min_size=1, max_size=60),
    heard=st.lists(st.booleans(), min_size=60, max_size=60),
)
def test_who_answers_between_any_two_looks_is_never_lost(gaps_s, heard):
    """Whatever the engine's own pauses are. One that never answers is lost in the end."""
    heartbeat = Heartbeat(1.0, lambda worker: False)
    now_s = 0.0
    heartbeat.turn(now_s)
    heartbeat.watch(0, now_s)
    for gap_s in gaps_s:
        now_s += gap_s
        heartbeat.heard(0, now_s)
        assert heartbeat.turn(now_s)[1] == ()
    lost = [one.worker for n in range(30) for one in heartbeat.turn(now_s + 0.1 * (n + 1))[1]]
    assert lost == [0]
