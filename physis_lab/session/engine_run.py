"""Run streams through an engine without ROS and record when every chunk was completed.

Shared by the benchmarks and by the studies.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from physis_core.deployment.deployment import Deployment
from physis_core.engine.engine import Engine
from physis_core.engine.stream import StreamConfig
from physis_core.observe.trace import RunTrace
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
"""A synthetic model whose blocks are equal and take a few milliseconds each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRun:
    """One stream's chunks in order of completion; [chunks] seconds of the engine's steady clock."""

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
    """`costs_s`: what the workers measured at their start, by block and batch size."""

    streams: tuple[StreamRun, ...]
    trace: RunTrace
    costs_s: Mapping[int, Mapping[int, float]]


def zero_observation(engine: Engine, number: int = 0, route: int = 0) -> Observation:
    """A valid observation of zeros for a route's model, which is enough to time the engine."""
    stamp = ObservationStamp(
        observation_id=number, capture_oldest_ns=0, capture_newest_ns=0, receipt_ns=0
    )
    return Observation(
        stamp=stamp,
        tensors={
            name: np.zeros(spec.shape, dtype=str(spec.dtype).removeprefix("torch."))
            for name, spec in engine.spec_of(route).observation.items()
        },
    )


class EngineSession:
    """One engine for several runs in sequence; its workers stay warm between them."""

    def __init__(self, deployment: Deployment, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._done: dict[str, list[FinishedChunk]] = {}
        self._wanted = 0
        self._enough = threading.Event()
        self._failures: list[str] = []
        self._engine = Engine(deployment, on_chunk=self._on_chunk, on_event=self._on_event)

    def __enter__(self) -> EngineSession:
        self._engine.start(timeout_s=self._timeout_s)
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.close()
        pause_between_runs()

    def _on_chunk(self, chunk: FinishedChunk) -> None:
        own = self._done.get(chunk.stream_id)
        if own is not None and len(own) < self._wanted:
            own.append(chunk)
            if all(len(other) == self._wanted for other in self._done.values()):
                self._enough.set()

    def _on_event(self, event: object) -> None:
        if getattr(event, "kind", "") in ("stream_failed", "worker_lost"):
            self._failures.append(str(event))
            self._enough.set()

    def run(
        self, configs: Sequence[StreamConfig], *, chunks: int, begin_s: Sequence[float] = ()
    ) -> EngineRun:
        """Run until every stream has finished `chunks` chunks, then close the streams.

        `begin_s`: delay of each stream's first observation; default: all at once.

        Raises:
            RuntimeError: a stream was refused, failed, or did not get there in time.
        """
        engine = self._engine
        done: dict[str, list[FinishedChunk]] = {config.stream_id: [] for config in configs}
        self._enough.clear()
        self._done, self._wanted = done, chunks
        until_s = time.monotonic() + self._timeout_s
        while not engine.status().overload.admit and time.monotonic() < until_s:
            # The overload detector clears a little after the queues of the run before are empty.
            time.sleep(0.05)
        for config in configs:
            opened = engine.open_stream(config)
            if isinstance(opened, Refused):
                raise RuntimeError(f"stream {config.stream_id!r} was refused: {opened.reason}")
        start_s = time.monotonic()
        order = sorted(zip(begin_s or [0.0] * len(configs), configs, strict=True), key=_first)
        for at_s, config in order:
            time.sleep(max(0.0, start_s + at_s - time.monotonic()))
            observation = zero_observation(engine, route=config.route)
            refused = engine.observe(config.stream_id, observation)
            if refused is not None:
                raise RuntimeError(refused.reason)
        if not self._enough.wait(self._timeout_s):
            counts = {name: len(own) for name, own in done.items()}
            raise RuntimeError(f"only {counts} of {chunks} chunks in {self._timeout_s:.0f} s")
        if self._failures:
            raise RuntimeError(self._failures[0])
        trace = engine.trace()
        for config in configs:
            engine.close_stream(config.stream_id)
        # Drop what the streams recorded while closing.
        engine.trace()
        return EngineRun(
            streams=tuple(_stream_run(own) for own in done.values()),
            trace=trace,
            costs_s=dict(engine.measured_costs),
        )


def _first(entry: tuple[float, StreamConfig]) -> float:
    return entry[0]


def run_streams(
    deployment: Deployment,
    configs: Sequence[StreamConfig],
    *,
    chunks: int,
    timeout_s: float,
) -> EngineRun:
    """One run on an engine of its own (`EngineSession.run`)."""
    with EngineSession(deployment, timeout_s=timeout_s) as session:
        return session.run(configs, chunks=chunks)


def free_stream(stream_id: str = "bench", **changes: object) -> StreamConfig:
    """A stream that injects a chunk as soon as a slot is free, and delivers without pacing."""
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
    """Let the worker processes of one run end before the next one is timed."""
    time.sleep(0.2)
