"""What an engine's node gives to its OpenMetrics endpoint.

Threads: `chunk` on the engine's; `samples` on the executor's; the workers are asked on a thread of
its own, because an answer may take as long as a batch. Reading takes the workers' task records, so
nothing else in the process may call `Engine.trace`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from physis_core.cluster.messages import Stats
from physis_core.engine.engine import Engine
from physis_core.engine.events import EngineFailedError
from physis_core.observe.histogram import BATCH_BUCKETS, TIME_BUCKETS_S, Histogram
from physis_core.observe.recorder import TASK_DTYPE, Tasks
from physis_core.types import FinishedChunk
from physis_ros.node.metric_names import Sample
from physis_ros.node.threads import OnDemandThread

_ANSWER_S = 2.0
_MEMORY = {
    "weights": "weight_bytes",
    "kv": "kv_bytes",
    "activations": "activation_bytes",
    "workspace": "workspace_bytes",
}


class StreamTimes:
    """Histograms of one stream's chunks."""

    def __init__(self) -> None:
        self.interval = Histogram(TIME_BUCKETS_S)
        self.response = Histogram(TIME_BUCKETS_S)
        self._last: FinishedChunk | None = None

    def chunk(self, chunk: FinishedChunk) -> None:
        last, self._last = self._last, chunk
        if last is not None and last.epoch == chunk.epoch and last.chunk_id < chunk.chunk_id:
            self.interval.add(chunk.exit_s - last.exit_s)
        self.response.add(chunk.response_s)


class EngineMetrics:
    """From construction to `close`, which comes before the engine's own."""

    def __init__(self, engine: Engine, failed: Callable[[Exception], None]) -> None:
        self._engine = engine
        self._times: dict[str, StreamTimes] = {}
        self._batches: dict[int, Histogram] = {}
        self._newest_batch: dict[int, int] = {}
        self._of_workers: tuple[Sample, ...] = ()
        self._asking = OnDemandThread("metrics", self._ask_workers, failed)
        self._asking.start()

    def close(self) -> None:
        self._asking.stop()

    def chunk(self, chunk: FinishedChunk) -> None:
        times = self._times.get(chunk.stream_id)
        if times is None:
            times = self._times[chunk.stream_id] = StreamTimes()
        times.chunk(chunk)

    def samples(self) -> Iterator[Sample]:
        self._asking.request()
        status = self._engine.status()
        for family, value in (
            ("physis_engine_workers", status.workers),
            ("physis_engine_workers_alive", len(status.workers_alive)),
            ("physis_engine_overloaded", status.overload.level != "ok"),
        ):
            yield Sample(family=family, value=value)
        for stream in status.streams:
            labels = {"stream": stream.stream_id}
            for family, value in (
                ("physis_engine_chunks", stream.delivered),
                ("physis_engine_chunks_dropped", stream.dropped),
                ("physis_engine_deadline_misses", stream.misses),
                ("physis_engine_chunks_in_flight", stream.in_flight),
            ):
                yield Sample(family=family, value=value, labels=labels)
            times = self._times.get(stream.stream_id)
            if times is not None:
                for what, histogram in (
                    ("output_interval", times.interval),
                    ("response_latency", times.response),
                ):
                    yield Sample(
                        family=f"physis_engine_{what}_seconds",
                        value=histogram.copy(),
                        labels=labels,
                    )
        yield from self._of_workers

    def _ask_workers(self) -> None:
        try:
            answers = self._engine.worker_stats(_ANSWER_S)
        except (TimeoutError, EngineFailedError):
            # The engine's status names both; the figures of devices go.
            self._of_workers = ()
            return
        for stats in answers.values():
            if "tasks" in stats.records:
                self._count_batches(np.asarray(stats.records["tasks"]).view(TASK_DTYPE))
        self._of_workers = (
            *(sample for stats in answers.values() for sample in device_samples(stats)),
            *(
                Sample(
                    family="physis_engine_batch_tasks",
                    value=histogram.copy(),
                    labels={"device": str(device)},
                )
                for device, histogram in self._batches.items()
            ),
        )

    def _count_batches(self, tasks: Tasks) -> None:
        """Each batch once, also where its tasks come in two answers."""
        for device in np.unique(tasks["device"]).tolist():
            own = tasks[tasks["device"] == device]
            numbers, first = np.unique(own["batch"], return_index=True)
            histogram = self._batches.setdefault(device, Histogram(BATCH_BUCKETS))
            for number, at in zip(numbers.tolist(), first.tolist()):
                if number != self._newest_batch.get(device):
                    histogram.add(float(own["size"][at]))
            self._newest_batch[device] = int(own["batch"][-1])


def device_samples(stats: Stats) -> Iterator[Sample]:
    """Queue, busy time and memory of the devices of one worker."""
    for device, waiting in stats.queues.items():
        yield Sample(
            family="physis_engine_queue_tasks", value=waiting, labels={"device": str(device)}
        )
    for counters in stats.devices:
        name = {"device": str(counters["device"])}
        yield Sample(
            family="physis_engine_device_busy_seconds",
            value=float(counters["busy_s"] or 0.0),
            labels=name,
        )
        for of, field in _MEMORY.items():
            size = counters[field]
            if size is not None:
                yield Sample(
                    family="physis_engine_device_memory_bytes",
                    value=size,
                    labels={**name, "of": of},
                )
