from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from physis_core.pipeline.pacer import Pacer, PacerConfig
from physis_core.types import UserError

# Of a period of one second: what the offset exceeds the wanted one by when it is set.
ROOM_S = 0.02


def run_stream(
    pacer: Pacer, responses_s: list[float], period_s: float = 1.0, age_s: float = 0.0
) -> list[tuple[float, float, bool]]:
    """Play chunks with the given responses in order of time. Returns (deadline, delivery,
    missed).
    """
    events = sorted(
        [(i * period_s, 0, i) for i in range(len(responses_s))]
        + [(e, 1, i) for i, e in enumerate(_exits(responses_s, period_s))]
    )
    deadlines: dict[int, float] = {}
    out: list[tuple[float, float, bool]] = []
    for time_s, kind, chunk in events:
        if kind == 0:
            deadlines[chunk] = pacer.released(chunk, time_s, age_s)
        else:
            delivery = pacer.completed(chunk, time_s)
            assert delivery.deadline_s == deadlines[chunk]
            out.append((delivery.deadline_s, delivery.deliver_s, delivery.missed))
    return out


def _exits(responses_s: list[float], period_s: float) -> list[float]:
    """Chunks leave in order: an exit is never before the one ahead of it."""
    out: list[float] = []
    for i, response_s in enumerate(responses_s):
        exit_s = i * period_s + response_s
        out.append(max(exit_s, out[-1] + 1e-6) if out else exit_s)
    return out


def test_bursts_become_periodic() -> None:
    pacer = Pacer(PacerConfig(period_s=1.0, first_responses=8))
    responses_s = [3.0, 3.4, 3.1, 3.9] * 40
    out = run_stream(pacer, responses_s)[40:]
    steps = [b[1] - a[1] for a, b in itertools.pairwise(out)]
    assert steps == pytest.approx([1.0] * len(steps))
    assert not any(missed for _, _, missed in out)
    assert pacer.state().depth_s == pytest.approx(3.9 + ROOM_S - pacer.state().response_p50_s)


def test_a_jitter_of_less_than_the_room_is_late_no_more_often_than_the_anchor_moves() -> None:
    pacer = Pacer(PacerConfig(period_s=1.0, first_responses=8))
    responses_s = [3.0 + 1e-4 * chunk for chunk in range(400)]
    missed = [missed for _, _, missed in run_stream(pacer, responses_s)[8:]]
    # 40 ms in all: two moves, each noticed when the chunks under way then have come.
    assert pacer.state().last_reanchor == "deeper"
    assert sum(missed) <= 2 * 4


def test_a_cap_on_action_age_lets_it_starve_and_says_so() -> None:
    pacer = Pacer(PacerConfig(period_s=1.0, max_action_age_s=3.5, first_responses=4))
    out = run_stream(pacer, [3.0, 3.0, 3.0, 3.9] * 20, age_s=0.2)
    assert pacer.state().capped
    assert pacer.state().offset_s == pytest.approx(3.3)
    assert pacer.state().misses == sum(missed for _, _, missed in out) > 0


def test_a_cap_that_moves_with_the_age_of_observations_is_no_break_in_the_period() -> None:
    pacer = Pacer(PacerConfig(period_s=1.0, max_action_age_s=3.5, first_responses=4))
    for chunk in range(200):
        pacer.released(chunk, float(chunk), 0.2 + 0.005 * (chunk % 3))
        pacer.completed(chunk, chunk + 3.9)
    state = pacer.state()
    assert state.capped
    assert state.reanchors <= 3


def test_a_stall_is_counted_and_does_not_deepen_the_buffer() -> None:
    pacer = Pacer(PacerConfig(period_s=1.0, first_responses=4, stall_s=5.0))
    run_stream(pacer, [2.0] * 30)
    before = pacer.state()
    pacer.released(100, 100.0)
    pacer.completed(100, 140.0)
    after = pacer.state()
    assert (after.stalls, after.misses) == (before.stalls + 1, before.misses + 1)
    assert after.offset_s == before.offset_s


def test_lasting_slowness_moves_the_anchor() -> None:
    pacer = Pacer(PacerConfig(period_s=1.0, first_responses=4, stall_s=5.0))
    run_stream(pacer, [2.0] * 30 + [20.0] * 60)
    assert pacer.state().offset_s == pytest.approx(20.0 + ROOM_S)
    assert pacer.state().last_reanchor == "after a stall"


def test_a_quieter_pipeline_gets_a_shallower_buffer() -> None:
    pacer = Pacer(PacerConfig(period_s=1.0, first_responses=4, window=32))
    run_stream(pacer, [3.9] * 20 + [3.0] * 200)
    assert pacer.state().offset_s == pytest.approx(3.0 + ROOM_S)
    assert pacer.state().last_reanchor == "shallower"


def test_free_running_delivers_at_once_and_misses_nothing() -> None:
    pacer = Pacer(PacerConfig(period_s=None))
    out = run_stream(pacer, [3.0, 8.0, 1.0])
    assert [missed for _, _, missed in out] == [False] * 3
    assert all(deadline == math.inf for deadline, _, _ in out)


def test_deliveries_are_handed_out_once_and_in_order() -> None:
    pacer = Pacer(PacerConfig(period_s=1.0, expected_response_s=5.0))
    for chunk in range(3):
        pacer.released(chunk, float(chunk))
    for chunk in range(3):
        pacer.completed(chunk, 2.0 + 0.1 * chunk)
    assert pacer.due(4.9) == []
    assert pacer.next_due_s() == 5.0
    assert [d.chunk_id for d in pacer.due(6.0)] == [0, 1]
    assert [d.chunk_id for d in pacer.due(60.0)] == [2]
    assert pacer.next_due_s() == math.inf
    assert pacer.state().delivered == 3


def test_without_hold_the_accounting_stays() -> None:
    pacer = Pacer(PacerConfig(period_s=1.0, expected_response_s=5.0, hold=False))
    deadline_s = pacer.released(0, 0.0)
    delivery = pacer.completed(0, 2.0)
    assert (delivery.deliver_s, delivery.deadline_s) == (2.0, deadline_s)


def test_a_chunk_that_was_not_released_is_an_error() -> None:
    pacer = Pacer(PacerConfig(period_s=1.0))
    with pytest.raises(KeyError):
        pacer.completed(0, 1.0)


@pytest.mark.parametrize(
    ("field", "value"),
    [("period_s", -1.0), ("margin_s", math.inf), ("max_action_age_s", 0.0), ("window", 1)],
)
def test_bad_configuration_names_the_field(field: str, value: float) -> None:
    with pytest.raises(UserError) as error:
        PacerConfig(**{"period_s": 1.0, field: value})  # type: ignore[arg-type]
    assert error.value.field == field


@settings(max_examples=60, deadline=None)
@given(
    responses_s=st.lists(st.floats(0.1, 6.0), min_size=1, max_size=120),
    max_age_s=st.one_of(st.just(math.inf), st.floats(1.0, 8.0)),
)
def test_delivery_is_periodic_never_before_ready_and_capped(
    responses_s: list[float], max_age_s: float
) -> None:
    pacer = Pacer(
        PacerConfig(period_s=1.0, max_action_age_s=max_age_s, first_responses=8, window=32)
    )
    out = run_stream(pacer, responses_s, age_s=0.5)
    exits_s = _exits(responses_s, 1.0)
    breaks = 0
    for i, (deadline_s, deliver_s, missed) in enumerate(out):
        assert deliver_s >= exits_s[i]
        assert missed == (exits_s[i] > deadline_s)
        assert deadline_s - i * 1.0 <= max(max_age_s - 0.5, 0.0) + 1e-9
        if i:
            assert deliver_s >= out[i - 1][1]
            breaks += abs(deadline_s - out[i - 1][0] - 1.0) > 1e-9
    # Every break in the period is a counted re-anchoring.
    assert breaks <= pacer.state().reanchors
    assert pacer.state().misses == sum(missed for _, _, missed in out)


@pytest.mark.parametrize("frozen_at", [3, 40])
@pytest.mark.parametrize("period_s", [0.05, 0.5, 2.0])
def test_a_freeze_of_ten_seconds_is_forgotten_within_some_periods(
    period_s: float, frozen_at: int
) -> None:
    """Also one that falls into the first responses, by which the offset is settled."""
    pacer = Pacer(PacerConfig(period_s=period_s, expected_response_s=0.1))
    held_s = []
    for chunk in range(frozen_at + 40):
        release_s = chunk * period_s
        # Four chunks were in flight when everything stood still.
        frozen = frozen_at <= chunk < frozen_at + 4
        response_s = 10.0 + 0.1 if frozen else 0.1
        pacer.released(chunk, release_s)
        delivery = pacer.completed(chunk, release_s + response_s)
        pacer.due(math.inf)
        held_s.append(delivery.deadline_s - release_s)
    after = max(frozen_at + 4, 16) + 1
    assert max(held_s[after:]) < 0.1 + 2.0 * period_s, "the offset is what it was"
    assert pacer.state().stalls == 4


def test_stalls_that_are_not_rare_count_as_jitter() -> None:
    pacer = Pacer(PacerConfig(period_s=0.1, first_responses=8, window=64))
    missed = []
    for chunk in range(400):
        release_s = 0.1 * chunk
        pacer.released(chunk, release_s)
        late = chunk % 6 == 5
        missed.append(pacer.completed(chunk, release_s + (0.6 if late else 0.1)).missed)
        pacer.due(math.inf)
    assert not any(missed[150:])
