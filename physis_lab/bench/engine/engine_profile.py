"""Profile of an engine for the simulator, from the task records of its runs.

Block costs by batch size, their variation, and the overheads around a batch. Also the parts of a
chunk's response, for engine and simulator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from physis_core.pipeline.costs import CostTable
from physis_core.sim.noise import SpeedTrace
from physis_lab.session.engine_run import EngineRun

COLD = 6
"""The first chunks have empty windows and cold caches, and are left out."""
ENOUGH = 8
"""Minimum number of batches of a size for a cost of that size."""
FACTORS = 512
SPEED_STEP_S = 0.5
"""Long enough for a median, and short against the minutes in which a machine's speed changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a simulation needs from an engine, in seconds.

    `costs`: medians by block and batch size. `factors`: quantiles of duration / cost, at the
    machine's speed at that time (`speed_of`). `per_batch_s`: mean time between a batch and the
    next, when that was ready and the first sent nothing. `per_send_s`: additional time per chunk
    sent to another worker. `per_hop_s`, `per_entry_s`: medians from a worker, and from the front,
    to an idle worker. `per_message_s`: time between the messages of one batch; the first may find
    the next worker idle and run alone.
    """

    costs: dict[int, dict[int, float]]
    factors: tuple[float, ...]
    per_batch_s: float
    per_send_s: float
    per_hop_s: float
    per_entry_s: float
    per_message_s: float


def profile_of(runs: Sequence[EngineRun], lone: Sequence[EngineRun], blocks: int) -> Measured:
    """Costs come from `runs` with busy workers, transfers from `lone` with one chunk in flight.

    A computing worker reads its messages after the batch; the simulator models that wait itself.
    All runs belong to one session.

    Raises:
        ValueError: the runs are too short.
    """
    durations: dict[tuple[int, int], list[float]] = {}
    gaps: list[tuple[int, float]] = []
    tasks = np.concatenate([run.trace.tasks for run in runs])
    device_of = dict(zip(tasks["stage"].tolist(), tasks["device"].tolist(), strict=True))
    for device in np.unique(tasks["device"]):
        mine = tasks[tasks["device"] == device]
        _, first = np.unique(mine["batch"], return_index=True)
        batches = mine[first]
        steady = batches[batches["chunk"] >= COLD]
        for record in steady:
            key = (int(record["stage"]) % blocks, int(record["size"]))
            durations.setdefault(key, []).append(float(record["end_s"] - record["start_s"]))
        idle = steady["start_s"][1:] - steady["end_s"][:-1]
        busy = (steady["ready_s"][1:] <= steady["end_s"][:-1]) & (idle >= 0.0)
        sent = [
            int(record["size"])
            * (device_of.get(int(record["stage"]) + 1, record["device"]) != record["device"])
            for record in steady[:-1][busy]
        ]
        gaps.extend(zip(sent, idle[busy].tolist(), strict=True))
    costs: dict[int, dict[int, float]] = {}
    for (block, size), seconds in durations.items():
        if len(seconds) >= ENOUGH:
            costs.setdefault(block, {})[size] = float(np.median(seconds))
    if len(costs) < blocks:
        raise ValueError(f"only blocks {sorted(costs)} of {blocks} ran often enough")
    costs = {b: with_sizes(row, runs[0].costs_s.get(b, {})) for b, row in costs.items()}
    factors: list[float] = []
    for run in runs:
        factors.extend(_factors(run.trace.tasks, costs, blocks))
    hopped = _hopped(tasks)
    per_batch_s, per_send_s = _between(gaps)
    ways = np.concatenate([run.trace.tasks for run in lone])
    ways = ways[ways["chunk"] >= COLD]
    if not len(ways):
        raise ValueError(f"the single-chunk runs hold no chunk after the first {COLD}")
    came = ways["ready_s"] - ways["sent_s"]
    return Measured(
        costs=costs,
        factors=tuple(np.quantile(factors, (np.arange(FACTORS) + 0.5) / FACTORS).tolist()),
        per_batch_s=per_batch_s,
        per_send_s=per_send_s,
        per_hop_s=_median(came[_hopped(ways)]),
        per_entry_s=_median(came[ways["source"] < 0]),
        per_message_s=_message_s(tasks, tasks[hopped]),
    )


def speed_of(
    tasks: Any, costs: Mapping[int, Mapping[int, float]], blocks: int, *, from_s: float
) -> SpeedTrace:
    """Median duration / cost of a run's batches, per device and SPEED_STEP_S, from `from_s` on."""
    found: dict[int, tuple[float, ...]] = {}
    for device in np.unique(tasks["device"]).tolist():
        at_s, slow = _slowness(tasks[tasks["device"] == device], costs, blocks)
        step = np.maximum(0, np.floor((at_s - from_s) / SPEED_STEP_S)).astype(int)
        factors: list[float] = []
        for number in range(int(step.max()) + 1):
            here = slow[step == number]
            if here.size:
                factors.append(float(np.median(here)))
            else:
                # No batch here: use the nearest value.
                factors.append(factors[-1] if factors else float(slow[0]))
        found[device] = tuple(factors)
    return SpeedTrace(step_s=SPEED_STEP_S, factors=found)


def _slowness(
    tasks: Any, costs: Mapping[int, Mapping[int, float]], blocks: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Of one device's batches: start times, and durations relative to `costs`."""
    _, first = np.unique(tasks["batch"], return_index=True)
    batches = tasks[first]
    table = CostTable(costs)
    predicted_s = [
        table.predict_s(stage % blocks, size)
        for stage, size in zip(batches["stage"].tolist(), batches["size"].tolist(), strict=True)
    ]
    return batches["start_s"], (batches["end_s"] - batches["start_s"]) / np.array(predicted_s)


def _factors(tasks: Any, costs: Mapping[int, Mapping[int, float]], blocks: int) -> list[float]:
    """Duration / (cost x speed at that time) of all batches after the first chunks."""
    steady = tasks[tasks["chunk"] >= COLD]
    if not len(steady):
        return []
    from_s = float(steady["start_s"].min())
    speed = speed_of(steady, costs, blocks, from_s=from_s)
    out: list[float] = []
    for device in speed.factors:
        at_s, slow = _slowness(steady[steady["device"] == device], costs, blocks)
        then = [speed.factor(device, at - from_s) for at in at_s.tolist()]
        out.extend((slow / np.array(then)).tolist())
    return out


def _hopped(tasks: Any) -> Any:
    """Mask of the tasks whose input came from another worker."""
    return (tasks["source"] >= 0) & (tasks["source"] != tasks["device"])


def _message_s(tasks: Any, hopped: Any) -> float:
    """Median time between the messages of one batch; 0 if no batch sent two."""
    who = ["stream", "epoch", "chunk", "stage"]
    batch_of = {
        tuple(record): (int(device), int(batch))
        for record, device, batch in zip(
            tasks[who].tolist(), tasks["device"], tasks["batch"], strict=True
        )
    }
    left_s: dict[tuple[int, int], list[float]] = {}
    for (stream, epoch, chunk, stage), sent_s in zip(
        hopped[who].tolist(), hopped["sent_s"].tolist(), strict=True
    ):
        batch = batch_of.get((stream, epoch, chunk, stage - 1))
        if batch is not None:
            left_s.setdefault(batch, []).append(sent_s)
    apart = [gap for times in left_s.values() for gap in np.diff(sorted(times)).tolist()]
    return float(np.median(apart)) if apart else 0.0


def with_sizes(seen: Mapping[int, float], at_start: Mapping[int, float]) -> dict[int, float]:
    """Complete a row with the sizes that did not occur: the worker's start-up measurement, scaled
    by the nearest size that occurred.
    """
    row = dict(seen)
    if not at_start:
        return row
    table = CostTable({0: at_start})
    for size in {1, *at_start}:
        if size not in seen:
            nearest = min(seen, key=lambda known: abs(known - size))
            row[size] = seen[nearest] * table.predict_s(0, size) / table.predict_s(0, nearest)
    return row


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Mean parts of a chunk's response in seconds.

    `link`: in transfer between workers and from the front; `queue`: ready, not yet running;
    `compute`: in a batch of any size.
    """

    compute_s: float
    queue_s: float
    link_s: float


def parts_of(tasks: Any, stages: int, settle: int) -> Parts:
    """From task records of `TASK_DTYPE`, over chunks from `settle` on that ran all stages."""
    steady = tasks[tasks["chunk"] >= settle]
    key = steady["stream"].astype(np.int64) * (1 << 40) + steady["chunk"].astype(np.int64)
    names, counts = np.unique(key, return_counts=True)
    steady = steady[np.isin(key, names[counts == stages])]
    chunks = max(1, len(steady) // stages)

    def mean(from_: str, to: str) -> float:
        return float((steady[to] - steady[from_]).sum()) / chunks

    return Parts(
        compute_s=mean("start_s", "end_s"),
        queue_s=mean("ready_s", "start_s"),
        link_s=mean("sent_s", "ready_s"),
    )


def _between(gaps: list[tuple[int, float]]) -> tuple[float, float]:
    """Seconds between two batches, and additional seconds per chunk that the first one sent.

    `gaps`: (chunks sent, seconds between the batches). If all batches send, or none does, the two
    cannot be separated and everything counts as the first.
    """
    quiet = [seconds for sent, seconds in gaps if not sent]
    sending = [(sent, seconds) for sent, seconds in gaps if sent]
    if not quiet or not sending:
        return _trimmed_mean([seconds for _, seconds in gaps]), 0.0
    base_s = _trimmed_mean(quiet)
    chunks = float(np.mean([sent for sent, _ in sending]))
    return base_s, max(0.0, _trimmed_mean([s for _, s in sending]) - base_s) / chunks


def _trimmed_mean(values: list[float]) -> float:
    """Mean up to p99: beyond it are stalls of the machine, which the durations contain as well."""
    if not values:
        return 0.0
    kept = np.array(values)
    return float(kept[kept <= np.percentile(kept, 99.0)].mean())


def _median(seconds: Any) -> float:
    """0 without samples: a single worker has no hops."""
    return float(np.median(seconds)) if len(seconds) else 0.0
