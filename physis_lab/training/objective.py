"""The training loss: error of the clean prediction at the noise levels of inference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from physis_core.model.tiny.network import TinyNetwork
from physis_core.types import Array
from physis_lab.training.dataset import SequenceBatch

LOCATE_WEIGHT = 0.2
HISTORY_ERROR_SHARE = 0.5
HISTORY_ERROR_MAX = 1.0
HISTORY_ERROR_KEEP = 0.9
"""Of `history_errors`: share of sequences, largest spread, memory per chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    action: Tensor
    """Mean square, in units of the joints' standard deviations."""
    locate: Tensor
    """Mean square of the ball's place read from one image, in units of its standard deviation."""
    frame: Tensor | None = None
    """Mean square of the latents of predicted pictures, whose variance is about 1."""

    def total(self, frame_weight: float) -> Tensor:
        """The loss to minimise."""
        total = self.action + LOCATE_WEIGHT * self.locate
        return total if self.frame is None else total + frame_weight * self.frame


class Locator(nn.Module):
    """A linear probe that reads the ball's place (or those of goal and object) from one chunk's
    image tokens.

    It is used in training only: its gradient trains the image encoder to locate the ball before the
    transformer has learned to use it. It is not part of the checkpoint.
    """

    def __init__(self, network: TinyNetwork, mean: Array, std: Array) -> None:
        super().__init__()
        config = network.config
        self.read = nn.Linear((config.condition_tokens - 1) * config.dim, len(mean))
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32), persistent=False)
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32), persistent=False)

    def forward(self, condition: Tensor, targets: Tensor) -> Tensor:
        """condition [M, C, dim], targets [M, 3] m -> mean square error, normalised."""
        image_tokens = condition[:, :-1].flatten(1)
        error: Tensor = self.read(image_tokens) - (targets - self.mean) / self.std
        return error.square().mean()


def history_errors(rows: int, chunks: int, joints: int, random: np.random.Generator) -> Tensor:
    """Errors that a window's actions have at inference, where the policy made them: [B, T, 1, J].

    Recorded actions are the expert's and reveal where the ball is. A policy that relies on them
    repeats its own mistakes once the history is its own: noisy KV holds the chunk before. So the
    inputs of some sequences, not their targets, carry a slowly varying error, and only the
    observation is reliable. In units of the joints' standard deviations.
    """
    spread = HISTORY_ERROR_MAX * random.random((rows, 1, 1, 1))
    spread *= random.random((rows, 1, 1, 1)) < HISTORY_ERROR_SHARE
    step = random.standard_normal((rows, chunks, 1, joints))
    error = np.empty_like(step)
    error[:, 0] = step[:, 0]
    for chunk in range(1, chunks):
        fresh = np.sqrt(1.0 - HISTORY_ERROR_KEEP**2) * step[:, chunk]
        error[:, chunk] = HISTORY_ERROR_KEEP * error[:, chunk - 1] + fresh
    return torch.tensor(spread * error, dtype=torch.float32)


def clean_parts(network: TinyNetwork, batch: SequenceBatch) -> list[Tensor]:
    """Prediction targets, in the order of the configuration's parts: [B, T, tokens, ch]."""
    actions = (batch.actions - network.position_mean) / network.position_std
    return [actions] if batch.frames is None else [actions, batch.frames]


def sequence_losses(
    network: TinyNetwork,
    locator: Locator,
    batch: SequenceBatch,
    level: Tensor,
    noise: Sequence[Tensor],
    wrong: Sequence[Tensor] | None = None,
) -> Losses:
    """Losses of all chunks of a sequence at one noise level, block-causal as at inference.

    With noisy KV a chunk attends to earlier chunks at its own level, with clean KV to the result of
    a pass at level 0.

    Args:
        level: of each sequence, [B].
        noise: standard normal, one per part, shaped as `clean_parts`.
        wrong: errors added to the inputs of each part (`history_errors`), broadcast to it.
    """
    rows, chunks = batch.actions.shape[:2]
    joints, condition = network.encode(
        {
            "image": batch.image.flatten(0, 1),
            "joint_positions": batch.joint_positions.flatten(0, 1),
            "lookahead_s": batch.lookahead_s.flatten(0, 1),
        }
    )
    clean = clean_parts(network, batch)
    share = level[:, None, None, None]
    shown = clean if wrong is None else [x + off for x, off in zip(clean, wrong, strict=True)]
    predicted = network.sequence(
        [(1.0 - share) * x + share * drawn for x, drawn in zip(shown, noise, strict=True)],
        joints.unflatten(0, (rows, chunks)),  # type: ignore[no-untyped-call]
        condition.unflatten(0, (rows, chunks)),  # type: ignore[no-untyped-call]
        level,
        shown if network.config.kv == "clean" else None,
    )
    errors = [(made - x).square().mean() for made, x in zip(predicted, clean, strict=True)]
    return Losses(
        action=errors[0],
        locate=locator(condition, batch.targets.flatten(0, 1)),
        frame=errors[1] if len(errors) > 1 else None,
    )
