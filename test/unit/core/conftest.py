"""An engine under test: what it delivered and told, and what the reference says to it."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable

import numpy as np
import pytest
import torch

from physis_core.deployment.deployment import Deployment
from physis_core.engine.engine import Engine, EngineEvent
from physis_core.model.loading import load
from physis_core.model.reference import ReferenceStream
from physis_core.model.registry import ModelRef
from physis_core.observe.recorder import TASK_DTYPE
from physis_core.pipeline.stages import InFlight
from physis_core.types import FinishedChunk, Observation, ObservationStamp

torch.set_num_threads(1)
MOST_COMPARED = 24
PATIENCE_S = 60.0
"""No figure: only how long a broken engine may hang a test on a busy machine."""


class Watched:
    """Collects chunks by (stream, epoch) and events; `until` waits for what they should come to."""

    def __init__(self, deployment: Deployment, **options: object) -> None:
        self.deployment = deployment
        self.chunks: dict[tuple[str, int], list[FinishedChunk]] = defaultdict(list)
        self.events: list[EngineEvent] = []
        self.observations: dict[int, dict[str, np.ndarray]] = {}
        self._news = threading.Condition()
        self._numbers = 0
        self.engine = Engine(deployment, on_chunk=self._chunk, on_event=self._event, **options)

    def __enter__(self) -> Watched:
        self.engine.start(PATIENCE_S)
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.close()

    def _chunk(self, chunk: FinishedChunk) -> None:
        with self._news:
            self.chunks[(chunk.stream_id, chunk.epoch)].append(chunk)
            self._news.notify_all()

    def _event(self, event: EngineEvent) -> None:
        with self._news:
            self.events.append(event)
            self._news.notify_all()

    def until(self, holds: Callable[[], bool]) -> None:
        with self._news:
            assert self._news.wait_for(holds, PATIENCE_S), (self.events[-5:], self.counts())

    def counts(self) -> dict[tuple[str, int], int]:
        return {key: len(chunks) for key, chunks in self.chunks.items()}

    def until_chunks(self, stream_id: str, count: int, epoch: int = 0) -> list[FinishedChunk]:
        self.until(lambda: len(self.chunks[(stream_id, epoch)]) >= count)
        return self.chunks[(stream_id, epoch)][:count]

    def observe(self, stream_id: str, seed: int = 0, route: int = 0) -> int:
        """A random observation for the route's model; returns its id, by which `observations` keeps
        it.
        """
        self._numbers += 1
        rng = np.random.default_rng((seed, self._numbers))
        tensors = {
            name: rng.standard_normal(spec.shape).astype(np.float32)
            for name, spec in self.engine.spec_of(route).observation.items()
        }
        self.observations[self._numbers] = tensors
        stamp = ObservationStamp(
            observation_id=self._numbers,
            capture_oldest_ns=self._numbers,
            capture_newest_ns=self._numbers,
            receipt_ns=self._numbers,
        )
        refused = self.engine.observe(stream_id, Observation(stamp=stamp, tensors=tensors))
        assert refused is None, refused
        return self._numbers

    def tasks(self) -> np.ndarray:
        """Task records of all workers since the last call."""
        answers = self.engine.worker_stats(PATIENCE_S)
        return np.concatenate(
            [np.frombuffer(m.records["tasks"].tobytes(), TASK_DTYPE) for m in answers.values()]
        )

    def assert_equal_to_reference(
        self,
        stream_id: str,
        *,
        seed: int,
        epoch: int = 0,
        condition: dict[str, float] | None = None,
        exact: bool = True,
        model: str = "model",
    ) -> None:
        """`refresh: entry`: each chunk used exactly the observation that its stamp names."""
        reference = ReferenceStream(
            load(self.deployment.models[model]), seed=seed, epoch=epoch, condition=condition
        )
        # A stream that is still open goes on adding; a model's whole memory shows in this many.
        for chunk in self.chunks[(stream_id, epoch)][:MOST_COMPARED]:
            (stamp,) = chunk.observations
            wanted = reference.run_chunk(
                {0: self.observations[stamp.observation_id]}, chunk.chunk_id
            )
            assert_same(chunk, wanted, exact)


def assert_same(chunk: FinishedChunk, wanted: dict[str, torch.Tensor], exact: bool = True) -> None:
    assert set(chunk.outputs) == set(wanted)
    for name, value in wanted.items():
        given = chunk.outputs[name]
        where = f"{chunk.stream_id} chunk {chunk.chunk_id} {name}"
        if exact:
            np.testing.assert_array_equal(given, value.numpy(), err_msg=where)
        else:
            np.testing.assert_allclose(given, value.numpy(), rtol=1e-7, atol=1e-9, err_msg=where)


@pytest.fixture
def in_flight() -> Callable[..., InFlight]:
    """A chunk on its way: number, and what is not as usual."""

    def make(number: int, **changes: object) -> InFlight:
        places = dict.fromkeys(("epoch", "stage", "block", "step", "seed", "version"), 0)
        times = dict.fromkeys(("deadline_s", "ready_s", "release_s", "entry_s"), 0.0)
        names = {"stream": 1, "seq": number, "chunk_id": number, "touches": (1,)}
        return InFlight(**(places | times | names | changes))  # type: ignore[arg-type]

    return make


@pytest.fixture
def watch() -> Callable[..., Watched]:
    return Watched


@pytest.fixture
def same() -> Callable[..., None]:
    return assert_same


@pytest.fixture
def synthetic() -> Callable[..., ModelRef]:
    return lambda **config: ModelRef(family="synthetic", config=config)


@pytest.fixture
def emulated_costs() -> Callable[[int, float], dict[int, dict[int, float]]]:
    return lambda blocks, seconds: {block: {1: seconds} for block in range(blocks)}


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], None]:
    def wait(holds: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < end
            time.sleep(0.005)

    return wait
