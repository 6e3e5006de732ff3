"""The nouns of the system: what a stage, a chunk, a task, an observation and a finished chunk are.

Every duration and instant of the engine is in seconds of a steady clock (`_s`); every stamp that
came from, or leaves for, the outside world is in nanoseconds of ROS time (`_ns`). The two never
mix.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

import numpy.typing as npt

Array = npt.NDArray[Any]
KVMode = Literal["noisy", "clean"]
Refresh = Literal["entry", "every_step"]


_LONGEST_SHOWN = 200


def _shown(value: object) -> str:
    text = repr(value)
    if len(text) <= _LONGEST_SHOWN:
        return text
    return f"{text[: _LONGEST_SHOWN // 2]}... ({len(text)} characters)"


class UserError(ValueError):
    """Bad input from a person: the message names the field and the value, on one line. A long value
    is cut in the message; `value` is the whole.

    Command line verbs print it and exit with 2; nodes publish it and go on running.
    """

    def __init__(self, field: str, value: object, reason: str) -> None:
        self.field = field
        self.value = value
        self.reason = reason
        super().__init__(f"{field}: {_shown(value)}: {reason}")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Stage:
    """One denoising step of one transformer block, run for one chunk at a time."""

    step: int
    block: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StageGraph:
    """D passes x L blocks, walked in the order s = d * L + l.

    `passes` is D for noisy KV, and D + 1 for clean KV (the last pass reruns the clean chunk at
    t = 0 to rewrite the KV; the chunk is already finished when that pass begins).
    """

    steps: int
    blocks: int
    kv: KVMode = "noisy"

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise UserError("steps", self.steps, "must be at least 1")
        if self.blocks < 1:
            raise UserError("blocks", self.blocks, "must be at least 1")

    @property
    def passes(self) -> int:
        return self.steps + (1 if self.kv == "clean" else 0)

    @property
    def stages(self) -> int:
        """Number of stages that a chunk walks, the clean pass included."""
        return self.passes * self.blocks

    @property
    def exit_index(self) -> int:
        """Index of the stage after which the chunk is finished: (D - 1, L - 1)."""
        return self.steps * self.blocks - 1

    def index(self, stage: Stage) -> int:
        return stage.step * self.blocks + stage.block

    def stage(self, index: int) -> Stage:
        if not 0 <= index < self.stages:
            raise IndexError(f"stage index {index} outside 0..{self.stages - 1}")
        return Stage(step=index // self.blocks, block=index % self.blocks)

    def writes_kv(self, stage: Stage) -> bool:
        """True where a task of this stage leaves KV behind for the next chunk."""
        return self.kv == "noisy" or stage.step == self.steps


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservationStamp:
    """Where an observation comes from in time. All stamps in nanoseconds of ROS time.

    `capture_oldest_ns` and `capture_newest_ns` are sensor stamps of the oldest and newest part
    (cameras, joints); `receipt_ns` is when the last part reached the observation node.
    """

    observation_id: int
    capture_oldest_ns: int
    capture_newest_ns: int
    receipt_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What the model is conditioned on: named arrays without a batch dimension, and their stamp."""

    stamp: ObservationStamp
    tensors: Mapping[str, Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedChunk:
    """A chunk at the engine's exit.

    `outputs` are named arrays without a batch dimension (for a WAM: `action` [steps, joints]).
    `observations` holds the stamp of every observation that touched the chunk, in the order of use
    (one for `refresh: entry`; up to D for `every_step`); action age counts from the oldest.
    Times are seconds of the engine's steady clock: `entry_s` when the chunk's first observation
    entered, `exit_s` when the last block of the last step was done, `deadline_s` = D_i,
    `delivered_s` when the pacer let it go.
    """

    stream_id: str
    epoch: int
    chunk_id: int
    outputs: Mapping[str, Array]
    observations: tuple[ObservationStamp, ...]
    release_s: float
    entry_s: float
    exit_s: float
    deadline_s: float
    delivered_s: float

    @property
    def response_s(self) -> float:
        """Response latency: from the observation's entry to the chunk's completion."""
        return self.exit_s - self.entry_s

    @property
    def missed(self) -> bool:
        return self.exit_s > self.deadline_s


class StreamState(Enum):
    """SUSPENDED after a loss, RESUMING once its workers are back. FAILED comes with a reason."""

    OPENING = "opening"
    OPEN = "open"
    SUSPENDED = "suspended"
    RESUMING = "resuming"
    DRAINING = "draining"
    CLOSED = "closed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """An admission refusal: a value with a reason, not an exception."""

    reason: str
    short_resource: str = ""
    device: str = ""
    nearest: str = ""

    @property
    def sentence(self) -> str:
        """The reason, and in brackets what is short, where, and what would fit."""
        short = f"short of {self.short_resource}" if self.short_resource else ""
        if short and self.device:
            short += f" on {self.device}"
        nearest = f"would fit: {self.nearest}" if self.nearest else ""
        details = "; ".join(filter(None, (short, nearest)))
        return f"{self.reason} ({details})" if details else self.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """Over all samples of a window, never over averages. `n` = 0 has NaN everywhere else."""

    p50: float
    p99: float
    p999: float
    max: float
    n: int
