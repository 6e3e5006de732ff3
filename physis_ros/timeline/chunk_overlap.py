"""Merges chunks that overlap in time into one reference, with the age of each point.

`replace`   the newest chunk counts from its first point on.
`blend`     the newest chunk fades in over the previous one, so that the reference does not jump.
`ensemble`  all chunks that cover an instant count, the n-th newest with weight exp(-decay n).

After the end of the newest chunk nothing is valid, even if an older chunk goes further: its points
come from older observations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from physis_core.types import UserError
from physis_ros.robot.joint_motion import Floats
from physis_ros.timeline.timed_chunk import Nanoseconds, TimedChunk

OverlapPolicy = Literal["replace", "blend", "ensemble"]
POLICIES: tuple[OverlapPolicy, ...] = ("replace", "blend", "ensemble")


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """The policy and its parameter: seconds of fading for `blend`, decay per chunk for
    `ensemble`."""

    policy: OverlapPolicy = "replace"
    fade_s: float = 0.1
    decay: float = 0.5

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise UserError("overlap.policy", self.policy, f"must be one of {', '.join(POLICIES)}")
        if not 0.0 < self.fade_s <= 60.0:
            raise UserError("overlap.fade_s", self.fade_s, "must be above 0 and at most 60")
        if not 0.0 <= self.decay <= 100.0:
            raise UserError("overlap.decay", self.decay, "must be at least 0 and at most 100")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reference:
    """The motion to follow at T instants: positions, velocities [T, joints]; the others [T].

    `capture_oldest_ns`: the oldest observation of all chunks that contribute to the instant;
    `chunk_id` and `epoch`: those of the newest. Where not `valid`, the values are meaningless.
    """

    positions: Floats
    velocities: Floats
    valid: npt.NDArray[np.bool_]
    capture_oldest_ns: Nanoseconds
    epoch: Nanoseconds
    chunk_id: Nanoseconds


def reference(
    chunks: Sequence[TimedChunk], times_ns: Nanoseconds, overlap: Overlap, joints: int
) -> Reference:
    """Merge `chunks` (oldest first) at `times_ns` [T], increasing."""
    chunks = _relevant(chunks, int(times_ns[0]), overlap)
    count = times_ns.size
    merged = Reference(
        positions=np.zeros((count, joints)),
        velocities=np.zeros((count, joints)),
        valid=np.zeros(count, dtype=np.bool_),
        capture_oldest_ns=np.zeros(count, dtype=np.int64),
        epoch=np.zeros(count, dtype=np.int64),
        chunk_id=np.full(count, -1, dtype=np.int64),
    )
    weights = np.zeros(count)
    for chunk in chunks:
        last_ns = min(chunk.end_ns, chunk.valid_until_ns)
        inside = (times_ns >= chunk.start_ns) & (times_ns <= last_ns)
        # An older chunk does not continue after the end of a newer one.
        merged.valid[times_ns > last_ns] = False
        if not inside.any():
            continue
        positions, velocities = chunk.sample(times_ns)
        share, share_rate = _share(overlap, chunk, times_ns, merged.valid, weights)
        share = np.where(inside, share, 0.0)
        share_rate = np.where(inside, share_rate, 0.0)
        apart = positions - merged.positions
        merged.velocities[:] += (
            share[:, None] * (velocities - merged.velocities) + share_rate[:, None] * apart
        )
        merged.positions[:] += share[:, None] * apart
        alone = inside & (~merged.valid | (share >= 1.0))
        merged.capture_oldest_ns[:] = np.where(
            alone,
            chunk.capture_oldest_ns,
            np.where(
                share > 0.0,
                np.minimum(merged.capture_oldest_ns, chunk.capture_oldest_ns),
                merged.capture_oldest_ns,
            ),
        )
        taking = inside & (share > 0.0)
        merged.epoch[taking] = chunk.epoch
        merged.chunk_id[taking] = chunk.chunk_id
        merged.valid[inside] = True
        weights[:] = np.where(alone, 0.0, math.exp(-overlap.decay) * weights) + inside
    return merged


def _relevant(
    chunks: Sequence[TimedChunk], first_ns: int, overlap: Overlap
) -> Sequence[TimedChunk]:
    """Drop chunks that a newer one replaces at every instant from `first_ns` on."""
    if overlap.policy == "ensemble":
        return chunks
    for index in reversed(range(len(chunks))):
        newer = chunks[index]
        begun_ns = newer.start_ns
        if overlap.policy == "blend":
            begun_ns = max(begun_ns, newer.fade_begin_ns + newer.fade_ns)
        if begun_ns <= first_ns:
            return list(chunks)[index:]
    return chunks


def _share(
    overlap: Overlap,
    chunk: TimedChunk,
    times_ns: Nanoseconds,
    covered: npt.NDArray[np.bool_],
    weights: Floats,
) -> tuple[Floats, Floats]:
    """The chunk's share against all earlier ones, and the rate of change of the share [1/s]."""
    count = times_ns.size
    whole, still = np.ones(count), np.zeros(count)
    if overlap.policy == "replace" or not covered.any():
        return whole, still
    if overlap.policy == "blend":
        if chunk.fade_ns <= 0:
            return whole, still
        s = np.clip((times_ns - chunk.fade_begin_ns) / chunk.fade_ns, 0.0, 1.0)
        share = s * s * (3.0 - 2.0 * s)
        rate = 6.0 * s * (1.0 - s) / (chunk.fade_ns * 1e-9)
        return np.where(covered, share, 1.0), np.where(covered, rate, 0.0)
    before = math.exp(-overlap.decay) * weights
    return np.where(covered, 1.0 / (1.0 + before), 1.0), still
