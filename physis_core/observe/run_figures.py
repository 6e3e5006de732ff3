"""The five groups of figures of a run, from its trace: stages, edges, devices, batches, streams."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from physis_core.observe.percentiles import percentiles_of
from physis_core.observe.trace import RunTrace

Figures = dict[str, Any]
_MS = 1e3


def run_figures(trace: RunTrace, *, blocks: int) -> Figures:
    """JSON-ready. Times in milliseconds; each distribution is {p50, p99, p999, max, n} and its
    mean.

    Args:
        blocks: L, to name a stage by (step, block).
    """
    return {
        "stages": _stages(trace, blocks),
        "edges": _edges(trace),
        "devices": _devices(trace),
        "batches": _batches(trace, blocks),
        "streams": _streams(trace),
        "records_lost": trace.records_lost,
    }


def _spread(seconds: npt.ArrayLike) -> Figures:
    values = np.asarray(seconds, np.float64) * _MS
    return {**asdict(percentiles_of(values)), "mean": float(values.mean()) if values.size else None}


def _stages(trace: RunTrace, blocks: int) -> list[Figures]:
    out = []
    tasks = trace.tasks
    for stage in np.unique(tasks["stage"]):
        mine = tasks[tasks["stage"] == stage]
        out.append(
            {
                "stage": int(stage),
                "step": int(stage) // blocks,
                "block": int(stage) % blocks,
                "devices": sorted({int(d) for d in mine["device"]}),
                "compute_ms": _spread(mine["end_s"] - mine["start_s"]),
                "queue_ms": _spread(mine["start_s"] - mine["ready_s"]),
            }
        )
    return out


def _edges(trace: RunTrace) -> list[Figures]:
    tasks = trace.tasks
    counted = {(e["source"], e["target"]): e for e in trace.edges}
    crossed = tasks[(tasks["source"] != tasks["device"]) & (tasks["source"] >= 0)]
    pairs = {(int(a), int(b)) for a, b in zip(crossed["source"], crossed["device"])}
    out = []
    for source, target in sorted(pairs | set(counted)):
        mine = crossed[(crossed["source"] == source) & (crossed["device"] == target)]
        hop_s = np.maximum(0.0, mine["ready_s"] - mine["sent_s"])
        counters: Mapping[str, Any] = counted.get((source, target), {})
        size = counters.get("bytes", 0) / counters["messages"] if counters.get("messages") else 0.0
        busy_s = float(hop_s.sum())
        out.append(
            {
                "source": source,
                "target": target,
                "remote": (source, target) in counted,
                "messages": int(counters.get("messages", len(mine))),
                "bytes": int(counters.get("bytes", 0)),
                "errors": int(counters.get("errors", 0)),
                # While a message is in transit, not averaged over idle time.
                "bandwidth_bytes_per_s": size * len(mine) / busy_s if busy_s > 0 else None,
                "hop_ms": _spread(hop_s),
                "credit_wait_ms": counters.get("credit_wait_s", 0.0) * _MS,
            }
        )
    return out


def _devices(trace: RunTrace) -> list[Figures]:
    out = []
    tasks = trace.tasks
    for counters in trace.devices:
        mine = tasks[tasks["device"] == counters["device"]]
        _, first = np.unique(mine["batch"], return_index=True)
        busy_s = float((mine["end_s"] - mine["start_s"])[first].sum())
        span_s = float(mine["end_s"].max() - mine["start_s"].min()) if len(mine) else 0.0
        out.append({**counters, "busy_fraction": busy_s / span_s if span_s > 0 else 0.0})
    return out


def _batches(trace: RunTrace, blocks: int) -> Figures:
    sizes, forming_s, gains = [], [], []
    origins = {"chunks": 0, "steps": 0, "streams": 0}
    alone_s = _single_costs(trace, blocks)
    for batch in trace.batches():
        size = len(batch)
        sizes.append(size)
        if size == 1:
            continue
        # A batch of several started later than its first task was ready, partly to wait for others.
        forming_s.append(float(batch["start_s"][0] - np.sort(batch["ready_s"])[0]))
        origins["streams"] += len(set(batch["stream"].tolist())) > 1
        origins["steps"] += len(set((batch["stage"] // blocks).tolist())) > 1
        origins["chunks"] += len(set(batch["chunk"].tolist())) > 1
        single_s = alone_s.get((int(batch["device"][0]), int(batch["stage"][0]) % blocks))
        took_s = float(batch["end_s"][0] - batch["start_s"][0])
        if single_s is not None and took_s > 0.0:
            gains.append(single_s * size / took_s)
    return {
        "count": len(sizes),
        "size": {size: sizes.count(size) for size in sorted(set(sizes))},
        "mean_size": float(np.mean(sizes)) if sizes else None,
        "mixed": origins,
        "forming_ms": _spread(forming_s),
        "gain": {**asdict(percentiles_of(gains)), "of": "time one by one over time of the batch"},
    }


def _single_costs(trace: RunTrace, blocks: int) -> dict[tuple[int, int], float]:
    """(device, block) -> median seconds of its batches of one."""
    tasks = trace.tasks
    alone = tasks[tasks["size"] == 1]
    out = {}
    keys = {(int(d), int(s) % blocks) for d, s in zip(alone["device"], alone["stage"])}
    for device, block in keys:
        mine = alone[(alone["device"] == device) & (alone["stage"] % blocks == block)]
        out[(device, block)] = float(np.median(mine["end_s"] - mine["start_s"]))
    return out


def _streams(trace: RunTrace) -> list[Figures]:
    out = []
    chunks = trace.chunks
    for stream, epoch in sorted(set(zip(chunks["stream"].tolist(), chunks["epoch"].tolist()))):
        mine = chunks[(chunks["stream"] == stream) & (chunks["epoch"] == epoch)]
        mine = np.sort(mine, order="chunk")
        out.append(
            {
                "stream": stream,
                "epoch": epoch,
                "chunks": len(mine),
                "gaps": int(mine["chunk"][-1] - mine["chunk"][0] + 1 - len(mine)),
                "interval_ms": _spread(np.diff(mine["exit_s"])),
                "response_ms": _spread(mine["exit_s"] - mine["entry_s"]),
                "buffer_ms": _spread(mine["delivered_s"] - mine["exit_s"]),
                # Within one host's steady clock: from the observation's entry into the engine.
                "age_at_delivery_ms": _spread(mine["delivered_s"] - mine["entry_s"]),
                "misses": int((mine["exit_s"] > mine["deadline_s"]).sum()),
            }
        )
    return out
