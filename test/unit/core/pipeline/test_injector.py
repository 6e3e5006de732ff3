from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from physis_core.pipeline.injector import (
    Injector,
    InjectorConfig,
    ReleaseChunk,
    SkipRelease,
    WaitFor,
)
from physis_core.types import UserError


def injector(
    period_s: float | None = 1.0, credits: int = 2, max_age_s: float = 5.0
) -> Injector[str]:
    return Injector(InjectorConfig(period_s=period_s, credits=credits, max_age_s=max_age_s))


def test_the_schedule_starts_with_the_first_observation_and_keeps_its_grid() -> None:
    stream = injector(credits=10)
    assert stream.poll(3.0) == WaitFor(time_s=math.inf, reason="observation")
    stream.offer("a", 9.9)
    first = stream.poll(10.0)
    assert first == ReleaseChunk(chunk_id=0, release_s=10.0, observation="a", observation_s=9.9)
    assert stream.poll(10.0) == WaitFor(time_s=11.0, reason="period")
    stream.offer("b", 10.5)
    stream.offer("c", 11.0)
    late = stream.poll(11.3)
    assert isinstance(late, ReleaseChunk)
    assert (late.chunk_id, late.release_s, late.observation) == (1, 11.0, "c")
    assert stream.superseded == 1


def test_newest_wins_and_older_is_refused() -> None:
    stream = injector()
    assert stream.offer("new", 2.0)
    assert not stream.offer("old", 1.0)
    assert stream.newest() == ("new", 2.0)


def test_old_observations_leave_a_gap() -> None:
    stream = injector(max_age_s=1.5, credits=10)
    stream.offer("a", 0.0)
    assert isinstance(stream.poll(0.0), ReleaseChunk)
    assert isinstance(stream.poll(1.0), ReleaseChunk)
    assert stream.poll(2.0) == SkipRelease(chunk_id=2, count=1, reason="observation too old")
    stream.offer("b", 2.9)
    release = stream.poll(3.0)
    assert isinstance(release, ReleaseChunk)
    assert release.chunk_id == 3
    assert stream.dropped == 1


def test_without_credit_a_chunk_waits_for_its_period_and_is_then_dropped() -> None:
    stream = injector(credits=1)
    stream.offer("a", 0.0)
    assert isinstance(stream.poll(0.0), ReleaseChunk)
    assert stream.poll(1.2) == WaitFor(time_s=2.0, reason="credit")
    assert stream.poll(2.0) == SkipRelease(chunk_id=1, count=1, reason="too many chunks in flight")
    stream.finished()
    release = stream.poll(2.5)
    assert isinstance(release, ReleaseChunk)
    assert (release.chunk_id, release.release_s) == (2, 2.0)


def test_a_long_pause_drops_in_one_step() -> None:
    stream = injector(credits=10)
    stream.offer("a", 0.0)
    stream.poll(0.0)
    stream.offer("b", 1000.0)
    assert stream.poll(1000.5) == SkipRelease(chunk_id=1, count=999, reason="late")
    assert isinstance(stream.poll(1000.5), ReleaseChunk)


def test_free_running_is_bound_by_credits_and_age() -> None:
    stream = injector(period_s=None, credits=2, max_age_s=1.0)
    stream.offer("a", 0.0)
    assert isinstance(stream.poll(0.0), ReleaseChunk)
    assert isinstance(stream.poll(0.0), ReleaseChunk)
    assert stream.poll(0.0) == WaitFor(time_s=math.inf, reason="credit")
    stream.finished()
    assert stream.poll(5.0) == WaitFor(time_s=math.inf, reason="observation")


def test_a_restart_counts_from_zero() -> None:
    stream = injector()
    stream.offer("a", 0.0)
    stream.poll(0.0)
    stream.restart()
    assert stream.poll(0.5) == WaitFor(time_s=math.inf, reason="observation")
    stream.offer("b", 0.4)
    release = stream.poll(0.5)
    assert isinstance(release, ReleaseChunk)
    assert release.chunk_id == 0
    assert stream.in_flight == 1


def test_more_credits_than_given_is_our_own_mistake() -> None:
    with pytest.raises(ValueError, match="in flight"):
        injector().finished()


@pytest.mark.parametrize(
    ("field", "config"),
    [
        ("period_s", {"period_s": 0.0, "credits": 1}),
        ("credits", {"period_s": 1.0, "credits": 0}),
        ("max_age_s", {"period_s": 1.0, "credits": 1, "max_age_s": math.nan}),
    ],
)
def test_bad_configuration_names_the_field(field: str, config: dict[str, float]) -> None:
    with pytest.raises(UserError) as error:
        InjectorConfig(**config)  # type: ignore[arg-type]
    assert error.value.field == field


@settings(max_examples=60, deadline=None)
@given(
    period_s=st.floats(0.01, 2.0),
    credits=st.integers(1, 4),
    gaps=st.lists(st.floats(0.0, 3.0), min_size=1, max_size=40),
    data=st.data(),
)
def test_ids_are_accounted_for_releases_are_on_the_grid_and_credits_hold(
    period_s: float, credits: int, gaps: list[float], data: st.DataObject
) -> None:
    stream = injector(period_s=period_s, credits=credits, max_age_s=1.0)
    now_s, next_id, start_s = 0.0, 0, None
    for gap_s in gaps:
        now_s += gap_s
        if data.draw(st.booleans()):
            stream.offer("x", now_s - data.draw(st.floats(0.0, 2.0)))
        if stream.in_flight and data.draw(st.booleans()):
            stream.finished()
        for _ in range(1000):
            step = stream.poll(now_s)
            if isinstance(step, WaitFor):
                assert step.time_s > now_s
                break
            assert step.chunk_id == next_id
            if isinstance(step, SkipRelease):
                next_id += step.count
                if start_s is None:
                    start_s = now_s
                continue
            next_id += 1
            if start_s is None:
                start_s = now_s
            assert step.release_s == pytest.approx(start_s + step.chunk_id * period_s)
            assert step.release_s <= now_s + period_s * 1e-6
            assert now_s - step.observation_s <= 1.0
            assert stream.in_flight <= credits
        else:
            pytest.fail("poll never said WaitFor")
        assert stream.released + stream.dropped == next_id
