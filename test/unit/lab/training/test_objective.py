"""The errors that training puts into a window: some sequences' inputs, never more than asked."""

from __future__ import annotations

import numpy as np
import torch

from physis_lab.training.objective import (
    HISTORY_ERROR_KEEP,
    HISTORY_ERROR_MAX,
    HISTORY_ERROR_SHARE,
    history_errors,
)


def test_about_the_stated_share_of_sequences_is_off_and_the_rest_is_exact() -> None:
    error = history_errors(4000, 3, 2, np.random.default_rng(0))
    assert error.shape == (4000, 3, 1, 2)
    off = error.abs().amax(dim=(1, 2, 3)) > 0
    assert abs(off.float().mean().item() - HISTORY_ERROR_SHARE) < 0.04
    # Mean square of a spread that is uniform up to the largest.
    assert abs(error[off].square().mean().item() - HISTORY_ERROR_MAX**2 / 3) < 0.03


def test_the_error_wanders_with_its_memory() -> None:
    error = history_errors(20000, 2, 1, np.random.default_rng(1)).flatten(1)
    off = error[error.abs().amax(dim=1) > 0]
    found = torch.corrcoef(off.T)[0, 1].item()
    assert abs(found - HISTORY_ERROR_KEEP) < 0.02
