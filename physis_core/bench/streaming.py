"""Run one or more streams through an engine and keep when every chunk came out: what benchmarks
share."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from physis_core.observe.trace import RunTrace
from physis_core.runtime.deployment import Deployment
from physis_core.runtime.engine import Engine
from physis_core.runtime.stream import StreamConfig
from physis_core.types import Array, FinishedChunk, Observation, ObservationStamp, Refused

Seconds = npt.NDArray[np.float64]

MODEL: Mapping[str, Any] = {
    "steps": 4,
    "blocks": 4,
    "tokens": 64,
    "dim": 512,
    "heads": 8,
    "window_chunks": 4,
    "ffn": [2048] * 4,
}
"""A synthetic model of blocks that are alike and take some milliseconds: enough to measure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRun:
    """One stream's chunks in order of completion; seconds of the engine's steady clock,
    [chunks]."""

    release_s: Seconds
    exit_s: Seconds
    deadline_s: Seconds
    outputs: tuple[Mapping[str, Array], ...]

    def steady(self, skip: int) -> StreamRun:
        """Without the first `skip` chunks (pipeline fill)."""
        return StreamRun(
            release_s=self.release_s[skip:],
            exit_s=self.exit_s[skip:],
            deadline_s=self.deadline_s[skip:],
            outputs=self.outputs[skip:],
        )

    @property
    def intervals_s(self) -> Seconds:
        return np.diff(self.exit_s)

    @property
    def responses_s(self) -> Seconds:
        return self.exit_s - self.release_s

    @property
    def rate_hz(self) -> float:
        """Chunks per second between the first and the last completion."""
        return float((self.exit_s.size - 1) / (self.exit_s[-1] - self.exit_s[0]))


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRun:
    """`costs_s` is what the workers measured at their start, by block and batch size."""

    streams: tuple[StreamRun, ...]
    trace: RunTrace
    costs_s: Mapping[int, Mapping[int, float]]


def zero_observation(engine: Engine, number: int = 0) -> Observation:
    """A valid observation that says nothing; benchmarks of the engine need no more."""
    stamp = ObservationStamp(
        observation_id=number, capture_oldest_ns=0, capture_newest_ns=0, receipt_ns=0
    )
    return Observation(
        stamp=stamp,
        tensors={
            name: np.zeros(spec.shape, dtype=str(spec.dtype).removeprefix("torch."))
            for name, spec in engine.spec.observation.items()
        },
    )


def run_streams(
    deployment: Deployment,
    configs: Sequence[StreamConfig],
    *,
    chunks: int,
    timeout_s: float,
) -> EngineRun:
    """Run until every stream has finished `chunks` chunks.

    Raises:
        RuntimeError: a stream was refused, failed, or did not get there in time.
    """
    done: dict[str, list[FinishedChunk]] = {config.stream_id: [] for config in configs}
    enough = threading.Event()
    failures: list[str] = []

    def on_chunk(chunk: FinishedChunk) -> None:
        own = done[chunk.stream_id]
        if len(own) < chunks:
            own.append(chunk)
            if len(own) == chunks and all(len(c) == chunks for c in done.values()):
                enough.set()

    def on_event(event: object) -> None:
        if getattr(event, "kind", "") in ("stream_failed", "worker_lost"):
            failures.append(str(event))
            enough.set()

    with Engine(deployment, on_chunk=on_chunk, on_event=on_event) as engine:
        engine.start(timeout_s=timeout_s)
        observation = zero_observation(engine)
        for config in configs:
            opened = engine.open_stream(config)
            if isinstance(opened, Refused):
                raise RuntimeError(f"stream {config.stream_id!r} was refused: {opened.reason}")
        for config in configs:
            refused = engine.observe(config.stream_id, observation)
            if refused is not None:
                raise RuntimeError(refused.reason)
        if not enough.wait(timeout_s):
            counts = {name: len(own) for name, own in done.items()}
            raise RuntimeError(f"only {counts} of {chunks} chunks in {timeout_s:.0f} s")
        if failures:
            raise RuntimeError(failures[0])
        trace = engine.trace()
        costs_s = dict(engine.measured_costs)
    return EngineRun(
        streams=tuple(_stream_run(own) for own in done.values()), trace=trace, costs_s=costs_s
    )


def free_stream(stream_id: str = "bench", **changes: object) -> StreamConfig:
    """A stream that lets a chunk in as soon as there is a place, and delivers at once."""
    config = StreamConfig(stream_id=stream_id, release="free", hold=False)
    return replace(config, **changes)  # type: ignore[arg-type]


def _stream_run(own: Sequence[FinishedChunk]) -> StreamRun:
    return StreamRun(
        release_s=np.array([c.release_s for c in own]),
        exit_s=np.array([c.exit_s for c in own]),
        deadline_s=np.array([c.deadline_s for c in own]),
        outputs=tuple(c.outputs for c in own),
    )


def pause_between_runs() -> None:
    """Let the processes of the run before be gone before the next one is timed."""
    time.sleep(0.2)
