"""Does an observation fit the model? Looked at where it enters, before anybody waits for it."""

from __future__ import annotations

import numpy as np

from physis_core.model.protocol import ModelSpec
from physis_core.types import Array, Observation, Refused


def checked_observation(
    observation: Observation, spec: ModelSpec, check_finite: bool
) -> dict[str, Array] | Refused:
    """The arrays in the model's dtypes, or why they do not fit."""
    given = observation.tensors
    for name in given:
        if name not in spec.observation:
            known = ", ".join(sorted(spec.observation))
            return Refused(reason=f"observation.{name}: unknown; the model takes {known}")
    arrays: dict[str, Array] = {}
    for name, wanted in spec.observation.items():
        if name not in given:
            return Refused(reason=f"observation.{name}: missing")
        array = np.asarray(given[name])
        if array.shape != wanted.shape:
            return Refused(
                reason=f"observation.{name}: shape {array.shape}, the model takes {wanted.shape}"
            )
        dtype = np.dtype(str(wanted.dtype).removeprefix("torch."))
        if not np.can_cast(array.dtype, dtype, "same_kind"):
            return Refused(
                reason=f"observation.{name}: type {array.dtype}, the model takes {dtype}"
            )
        if check_finite and array.dtype.kind == "f" and not np.isfinite(array).all():
            return Refused(reason=f"observation.{name}: holds NaN or infinity")
        # A copy: the sender may write into its array again while the chunk waits.
        arrays[name] = np.array(array, dtype=dtype, order="C")
    return arrays
