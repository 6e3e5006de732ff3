"""Observations on their way in: checked at entry, then one place per stream, newest wins."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from physis_core.engine.chunk_flow import Seen
from physis_core.types import Array, Observation, ObservationStamp, Refused

if TYPE_CHECKING:
    from physis_core.model.protocol import ModelSpec


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


class Mailbox:
    """Any thread puts, the engine's thread takes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._mail: dict[str, Seen] = {}
        self._next_number = 1

    def put(
        self,
        stream_id: str,
        stamp: ObservationStamp,
        entry_s: float,
        tensors: Mapping[str, Array],
    ) -> None:
        with self._lock:
            number = self._next_number
            self._next_number += 1
            self._mail[stream_id] = Seen(
                number=number, stamp=stamp, entry_s=entry_s, tensors=tensors
            )

    def take(self) -> dict[str, Seen]:
        with self._lock:
            mail, self._mail = self._mail, {}
        return mail

    def drop(self, stream_id: str) -> None:
        with self._lock:
            self._mail.pop(stream_id, None)
