"""The five groups of figures of a simulated run: stages, edges, devices, batches, streams.

Every percentile is over all samples after the warm-up. The warm-up is reported apart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from physis_core.observe.percentiles import percentiles_of
from physis_core.sim.simulator import Simulator
from physis_core.sim.trace import ChunkTrace, StreamTrace

Memory = Mapping[int, Mapping[str, float]]
"""Bytes by device: weights, kv, activations, workspace."""


def _ms(seconds: npt.ArrayLike) -> dict[str, float]:
    return asdict(percentiles_of(np.asarray(seconds, dtype=np.float64) * 1e3))


def figures(simulator: Simulator, memory: Memory | None = None) -> dict[str, Any]:
    """All figures of a run. Times in milliseconds, as in reports."""
    scenario = simulator.scenario
    tasks, lost = simulator.log.take()
    tasks = tasks[tasks["start_s"] >= scenario.warmup_s]
    kinds = {trace.handle: trace.spec.kind or "stream" for trace in simulator.traces}
    return {
        "simulated_s": scenario.end_s,
        "warmup_s": scenario.warmup_s,
        "tasks": simulator.tasks,
        "task_records_lost": lost,
        "stages": _stages(tasks, kinds),
        "edges": _edges(simulator),
        "devices": _devices(simulator, memory or {}),
        "batches": _batches(tasks, simulator),
        "streams": [_stream(trace, scenario.warmup_s) for trace in simulator.traces],
        "all_streams": _all_streams(simulator),
        "overload": [
            {"at_s": at_s, "level": state.level, "device": state.where}
            for at_s, state in simulator.overload
        ],
    }


def _stages(tasks: Any, kinds: Mapping[int, str]) -> list[dict[str, Any]]:
    """Compute and queue time by (kind of stream, stage)."""
    rows: list[dict[str, Any]] = []
    names = sorted(set(kinds.values()))
    number = np.array([names.index(kinds[h]) for h in sorted(kinds)], dtype=np.int64)
    if not len(tasks):
        return rows
    group = number[tasks["stream"]] * (1 << 16) + tasks["stage"]
    order = np.argsort(group, kind="stable")
    borders = np.flatnonzero(np.diff(group[order])) + 1
    for part in np.split(order, borders):
        sample = tasks[part]
        compute = (sample["end_s"] - sample["start_s"]) * 1e3
        queue = (sample["start_s"] - sample["ready_s"]) * 1e3
        rows.append(
            {
                "kind": names[int(group[part[0]]) >> 16],
                "stage": int(sample["stage"][0]),
                "tasks": len(part),
                "compute_ms": {"mean": float(compute.mean()), "p99": _p99(compute)},
                "queue_ms": {"mean": float(queue.mean()), "p99": _p99(queue)},
            }
        )
    return rows


def _edges(simulator: Simulator) -> list[dict[str, Any]]:
    rows = []
    for (source, target), edge in sorted(simulator.edges.items()):
        rows.append(
            {
                "source": source,
                "target": target,
                "messages": edge.messages,
                "bytes": edge.bytes,
                "bytes_s": edge.bytes / simulator.scenario.end_s,
                "wait_ms": {
                    "mean": 1e3 * edge.wait_s / edge.messages if edge.messages else 0.0,
                    "max": 1e3 * edge.worst_wait_s,
                },
                "errors": 0,
            }
        )
    return rows


def _devices(simulator: Simulator, memory: Memory) -> list[dict[str, Any]]:
    return [
        {
            "device": device.index,
            "busy_share": device.busy_s / simulator.scenario.end_s,
            "batches": device.batches,
            "bytes": dict(memory.get(device.index, {})),
        }
        for device in simulator.devices
    ]


def _batches(tasks: Any, simulator: Simulator) -> dict[str, Any]:
    """Origin, size, forming time and gain. A batch is named by its device and number there."""
    if not len(tasks):
        return {"count": 0}
    name = tasks["device"].astype(np.int64) * (1 << 40) + tasks["batch"]
    order = np.argsort(name, kind="stable")
    borders = np.flatnonzero(np.diff(name[order])) + 1
    first = np.concatenate(([0], borders))
    sorted_ = tasks[order]
    size = sorted_["size"][first]
    start = sorted_["start_s"][first]
    forming = start - np.minimum.reduceat(sorted_["ready_s"], first)
    several = size > 1

    def mixed(column: str) -> int:
        low = np.minimum.reduceat(sorted_[column], first)
        high = np.maximum.reduceat(sorted_[column], first)
        return int(((low != high) & several).sum())

    keys = {trace.handle: trace.spec for trace in simulator.traces}
    gain_s = 0.0
    for position in first[several]:
        record = sorted_[position]
        spec = keys[int(record["stream"])]
        block = spec.block_keys[int(record["stage"]) % spec.graph.blocks]
        alone = simulator.costs.predict_s(block, 1) * int(record["size"])
        gain_s += alone - simulator.costs.predict_s(block, int(record["size"]))
    sizes, counts = np.unique(size, return_counts=True)
    return {
        "count": len(first),
        "size": {str(int(s)): int(c) for s, c in zip(sizes, counts)},
        "mean_size": float(size.mean()),
        "forming_ms": _ms(forming),
        "across_streams": mixed("stream"),
        "across_steps_or_chunks": mixed("stage") + mixed("chunk"),
        "gain_s": gain_s,
    }


def _stream(trace: StreamTrace, warmup_s: float) -> dict[str, Any]:
    chunks = [c for c in trace.chunks if c.release_s >= warmup_s]
    done = [c for c in chunks if not math.isnan(c.exit_s)]
    spec = trace.spec
    exits = np.array([c.exit_s for c in done])
    pacer = trace.pacer.state()
    first = next((c for c in trace.chunks if not math.isnan(c.exit_s)), None)
    return {
        "stream": spec.stream_id,
        "kind": spec.kind,
        "period_ms": None if spec.period_s is None else spec.period_s * 1e3,
        "chunks": len(done),
        "dropped": dict(trace.dropped),
        "output_interval_ms": _ms(np.diff(exits)),
        "response_latency_ms": _ms([c.exit_s - c.entry_s for c in done]),
        "action_age_handoff_ms": _ms([c.deliver_s - c.capture_s for c in done]),
        "deadline_misses": sum(_missed(c) for c in chunks),
        "buffer_depth_ms": pacer.depth_s * 1e3,
        "reanchors": pacer.reanchors,
        "fill_ms": None if first is None else (first.exit_s - first.entry_s) * 1e3,
    }


def _missed(chunk: ChunkTrace) -> bool:
    return chunk.exit_s > chunk.deadline_s


def _all_streams(simulator: Simulator) -> dict[str, Any]:
    """Over all chunks of all streams, each interval as a share of its stream's period."""
    warmup_s = simulator.scenario.warmup_s
    intervals: list[float] = []
    responses: list[float] = []
    misses = chunks = dropped = 0
    for trace in simulator.traces:
        done = [c for c in trace.chunks if c.release_s >= warmup_s and not math.isnan(c.exit_s)]
        chunks += len(done)
        dropped += sum(trace.dropped.values())
        misses += sum(_missed(c) for c in done)
        responses.extend(c.exit_s - c.entry_s for c in done)
        if trace.spec.period_s is not None:
            exits = np.array([c.exit_s for c in done])
            intervals.extend((np.diff(exits) / trace.spec.period_s).tolist())
    return {
        "chunks": chunks,
        "dropped": dropped,
        "deadline_misses": misses,
        "interval_over_period": asdict(percentiles_of(intervals)),
        "response_latency_ms": _ms(responses),
    }


def _p99(values: Any) -> float:
    return float(np.percentile(values, 99.0))
