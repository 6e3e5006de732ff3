"""The noise schedule of flow matching, and the draws of noise that pipeline and reference share.

A noisy sample at level s is x = (1 - s) * x0 + s * noise, s = 1 pure noise, s = 0 clean. A model
that predicts the flow v = noise - x0 gives x0 = x - s * v. Step d of D runs at level s_d; after it
the chunk goes on at level s_{d+1} with fresh noise; s_D = 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from physis_core.model.config import check_schedule
from physis_core.model.protocol import NoiseKey


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSchedule:
    """D even levels 1, 1 - 1/D, ..., 1/D, warped by s' = shift * s / (1 + (shift - 1) * s).

    `shift` above 1 spends more of the steps at high noise (as for Wan at shift 5).
    """

    steps: int = 4
    shift: float = 5.0
    given: tuple[float, ...] = ()
    """Levels at the entries of steps 0 .. D-1 in place of these, for a model trained at others."""

    def __post_init__(self) -> None:
        check_schedule(self.steps, self.shift)
        assert len(self.given) in (0, self.steps), (self.given, self.steps)

    def level(self, step: int) -> float:
        """Noise level at the entry of step 0 .. D; that of step D is 0 (clean).

        Raises:
            IndexError: step outside 0 .. D.
        """
        if not 0 <= step <= self.steps:
            raise IndexError(f"step {step} outside 0..{self.steps}")
        if self.given and step < self.steps:
            return self.given[step]
        return self.warped((self.steps - step) / self.steps)

    def warped(self, even: float) -> float:
        """s' of an even level s from 0 to 1."""
        return self.shift * even / (1.0 + (self.shift - 1.0) * even)

    def levels(self, step: Sequence[int], like: Tensor) -> Tensor:
        """Levels at the entry of each row's step, [B, 1, ...] to broadcast over `like` [B, ...]."""
        values = torch.tensor(
            [self.level(d) for d in step], dtype=torch.float32, device=like.device
        )
        return values.view(-1, *(1,) * (like.dim() - 1))

    def clean_from_flow(self, noisy: Tensor, flow: Tensor, step: Sequence[int]) -> Tensor:
        """x0 = x - s * v, row by row. noisy, flow [B, ...]."""
        return noisy - self.levels(step, noisy) * flow

    def next_input(self, clean: Tensor, fresh: Tensor, step: Sequence[int]) -> Tensor:
        """Input of step[i] + 1 from step[i]'s clean prediction and fresh noise, both [B, ...].

        After the last step (s_D = 0) it is `clean` itself, bit for bit.
        """
        level = self.levels([d + 1 for d in step], clean)
        return torch.where(level > 0, (1.0 - level) * clean + level * fresh, clean)

    def renoise(self, clean: Tensor, fresh: Tensor, step: Sequence[int]) -> Tensor:
        """(1 - s) * x0 + s * noise at the entry level s of step[i] in 0 .. D, both [B, ...]."""
        return self.next_input(clean, fresh, [d - 1 for d in step])


class Scheduled(Protocol):
    """A configuration that fixes a schedule."""

    @property
    def steps(self) -> int: ...
    @property
    def shift(self) -> float: ...


def schedule_of(config: Scheduled) -> FlowSchedule:
    return FlowSchedule(steps=config.steps, shift=config.shift)


def draw_noise(
    key: NoiseKey,
    step: int,
    shape: Sequence[int],
    part: int = 0,
    device: torch.device | None = None,
) -> Tensor:
    """Standard normal float32 of `shape`, a function of (key, step, part) alone.

    `step` is the step whose input the noise goes into; `part` tells the tensors of one latent
    apart. Drawn on the CPU by a counter-based generator whose counter names the draw, so that the
    numbers are the same on every rank and device, whatever was drawn before.
    """
    word = (1 << 64) - 1
    # The lowest 64 bits of the counter count within one draw; the others name it.
    counter = ((part & word) << 192) | ((step & word) << 128) | ((key.chunk_id & word) << 64)
    bits = np.random.Philox(
        key=((key.epoch & word) << 64) | (key.seed & word),
        counter=counter,
    )
    drawn = np.random.Generator(bits).standard_normal(tuple(shape), dtype=np.float32)
    noise = torch.from_numpy(drawn)
    return noise if device is None else noise.to(device)


def draw_noise_rows(
    keys: Sequence[NoiseKey], steps: Sequence[int], like: Tensor, part: int = 0
) -> Tensor:
    """One draw per row of `like` [B, ...], stacked; same device and dtype as `like`."""
    rows = [
        draw_noise(key, step, like.shape[1:], part) for key, step in zip(keys, steps, strict=True)
    ]
    return torch.stack(rows).to(device=like.device, dtype=like.dtype)
