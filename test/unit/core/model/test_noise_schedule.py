from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from physis_core.model.noise_schedule import FlowSchedule, draw_noise, draw_noise_rows
from physis_core.model.protocol import NoiseKey
from physis_core.types import UserError

schedules = st.builds(
    FlowSchedule, steps=st.integers(1, 12), shift=st.floats(0.2, 10.0, allow_nan=False)
)


def test_levels_of_four_steps_at_shift_5() -> None:
    schedule = FlowSchedule(steps=4, shift=5.0)
    assert [schedule.level(d) for d in range(5)] == pytest.approx([1, 0.9375, 5 / 6, 0.625, 0])


@settings(deadline=None)
@given(schedule=schedules)
def test_levels_fall_from_pure_noise_to_clean(schedule: FlowSchedule) -> None:
    levels = [schedule.level(d) for d in range(schedule.steps + 1)]
    assert levels[0] == pytest.approx(1.0)
    assert levels[-1] == 0.0
    assert all(a > b for a, b in pairwise(levels))


@settings(deadline=None)
@given(schedule=schedules, seed=st.integers(0, 1000))
def test_the_true_flow_leads_back_to_the_clean_sample(schedule: FlowSchedule, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    clean, noise = torch.randn(2, schedule.steps, 3, generator=random)
    steps = list(range(schedule.steps))
    level = schedule.levels(steps, clean)
    noisy = (1 - level) * clean + level * noise
    torch.testing.assert_close(schedule.clean_from_flow(noisy, noise - clean, steps), clean)
    following = schedule.next_input(clean, noise, steps)
    assert torch.equal(following[-1], clean[-1])


@settings(deadline=None)
@given(
    seed=st.integers(-(2**63), 2**63 - 1),
    epoch=st.integers(0, 2**40),
    chunk_id=st.integers(0, 2**40),
    step=st.integers(0, 8),
    part=st.integers(0, 3),
)
def test_a_draw_is_named_by_key_step_and_part(
    seed: int, epoch: int, chunk_id: int, step: int, part: int
) -> None:
    key = NoiseKey(seed=seed, epoch=epoch, chunk_id=chunk_id)
    here = draw_noise(key, step, (2, 3), part)
    draw_noise(NoiseKey(seed=1, epoch=0, chunk_id=0), 0, (5,))
    assert torch.equal(here, draw_noise(key, step, (2, 3), part))
    others = (
        draw_noise(NoiseKey(seed=seed, epoch=epoch + 1, chunk_id=chunk_id), step, (2, 3), part),
        draw_noise(NoiseKey(seed=seed, epoch=epoch, chunk_id=chunk_id + 1), step, (2, 3), part),
        draw_noise(key, step + 1, (2, 3), part),
        draw_noise(key, step, (2, 3), part + 1),
    )
    assert not any(torch.equal(here, other) for other in others)
    rows = draw_noise_rows([key, key], [step, step + 1], torch.zeros(2, 2, 3), part)
    assert torch.equal(rows[0], here)
    assert torch.equal(rows[1], others[2])


def test_bad_schedules_are_refused_by_name() -> None:
    with pytest.raises(UserError, match="steps"):
        FlowSchedule(steps=0)
    with pytest.raises(UserError, match="shift"):
        FlowSchedule(shift=0.0)
    with pytest.raises(IndexError):
        FlowSchedule(steps=2).level(3)


def test_a_clean_sample_is_put_back_to_the_level_of_each_step() -> None:
    schedule = FlowSchedule(steps=4, shift=5.0)
    clean, fresh = torch.full((5, 2), 3.0), torch.full((5, 2), 7.0)
    noised = schedule.renoise(clean, fresh, range(5))
    wanted = torch.tensor([schedule.level(d) for d in range(5)])[:, None] * 4.0 + 3.0
    torch.testing.assert_close(noised, wanted.expand(5, 2))
    assert torch.equal(noised[0], fresh[0])
    assert torch.equal(noised[4], clean[4])
