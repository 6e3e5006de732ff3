"""What the simulator must know of an engine, from the task records of a run: block costs by batch
size, how they vary, and what surrounds a batch. And where a chunk's time goes, for both.
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
"""The first chunks find empty windows and cold caches."""
ENOUGH = 8
"""Fewer batches of one size say too little of it."""
FACTORS = 512
SPEED_STEP_S = 0.5
"""Enough batches for a median, and short beside the minutes over which a machine's speed moves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a simulation needs of an engine, in seconds.

    `costs`: medians by block and batch size. `factors`: quantiles of durations over those, at the
    speed that the machine had then (see `speed_of`).
    `per_batch_s`: mean time between a batch and the next one, where that was ready and the first
    one sent nothing. `per_send_s`: how much longer that is for each chunk that was sent to another
    worker. `per_hop_s`, `per_entry_s`: medians from one worker, and from the front, to a worker
    that idles. `per_message_s`: by how much the chunks of one batch leave one after the other; the
    first may find the next worker idle, and runs alone then.
    """

    costs: dict[int, dict[int, float]]
    factors: tuple[float, ...]
    per_batch_s: float
    per_send_s: float
    per_hop_s: float
    per_entry_s: float
    per_message_s: float


def profile_of(runs: Sequence[EngineRun], lone: Sequence[EngineRun], blocks: int) -> Measured:
    """Costs are taken from `runs`, with the workers as busy as they get; the ways between them from
    `lone`, with one chunk under way at a time. A worker that computes looks at its mail afterwards,
    and the model has that wait already. All of them are runs of one session.

    Raises:
        ValueError: the runs were too short to say anything.
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
        raise ValueError(f"no chunk after the first {COLD} went its way alone")
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
    """By how much longer than `costs` the batches of a run took, device by device and half second
    by half second (medians), from `from_s` of its clock on.
    """
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
                # Nothing ran; what ran next is nearest.
                factors.append(factors[-1] if factors else float(slow[0]))
        found[device] = tuple(factors)
    return SpeedTrace(step_s=SPEED_STEP_S, factors=found)


def _slowness(
    tasks: Any, costs: Mapping[int, Mapping[int, float]], blocks: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Of one device's batches: when each began, and its seconds over those of `costs`."""
    _, first = np.unique(tasks["batch"], return_index=True)
    batches = tasks[first]
    table = CostTable(costs)
    predicted_s = [
        table.predict_s(stage % blocks, size)
        for stage, size in zip(batches["stage"].tolist(), batches["size"].tolist(), strict=True)
    ]
    return batches["start_s"], (batches["end_s"] - batches["start_s"]) / np.array(predicted_s)


def _factors(tasks: Any, costs: Mapping[int, Mapping[int, float]], blocks: int) -> list[float]:
    """Of all batches after the first chunks, at the speed that the machine had just then."""
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
    """Which of them came from another worker."""
    return (tasks["source"] >= 0) & (tasks["source"] != tasks["device"])


def _message_s(tasks: Any, hopped: Any) -> float:
    """Median distance in time of the messages of one batch; 0 where no batch sent two."""
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
    """The row with the sizes that did not occur: as the workers measured them at their start, in
    proportion to the nearest size that did.
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
    """Mean seconds of a chunk between its release and its exit, by what it spent them on.

    `link`: on the way between workers, and from the front; `queue`: ready and not yet running;
    `compute`: in a batch, whatever its size.
    """

    compute_s: float
    queue_s: float
    link_s: float


def parts_of(tasks: Any, stages: int, settle: int) -> Parts:
    """From task records of `TASK_DTYPE`, chunks from `settle` on that walked all stages."""
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
    """Seconds before any batch, and for each chunk that the one before it sent.

    `gaps`: how many were sent, and the seconds between the two. Where every batch sends, or none
    does, the two are not told apart, and all counts as the first.
    """
    quiet = [seconds for sent, seconds in gaps if not sent]
    sending = [(sent, seconds) for sent, seconds in gaps if sent]
    if not quiet or not sending:
        return _trimmed_mean([seconds for _, seconds in gaps]), 0.0
    base_s = _trimmed_mean(quiet)
    chunks = float(np.mean([sent for sent, _ in sending]))
    return base_s, max(0.0, _trimmed_mean([s for _, s in sending]) - base_s) / chunks


def _trimmed_mean(values: list[float]) -> float:
    """A batch that waits for the front's or a peer's message is no dispatch: beyond p99 there are
    only stalls, which the durations have as well."""
    if not values:
        return 0.0
    kept = np.array(values)
    return float(kept[kept <= np.percentile(kept, 99.0)].mean())


def _median(seconds: Any) -> float:
    """0 where nothing went that way: one worker alone has no hops."""
    return float(np.median(seconds)) if len(seconds) else 0.0
