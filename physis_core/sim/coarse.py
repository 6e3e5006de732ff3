"""A quick check of a schedule: one task per run of blocks instead of one per block.

Neighbouring blocks of one step on one device are one task. Only equal runs batch, and a run is not
interrupted between its blocks; so this is a little stricter than the full simulation, and some
twenty times as fast.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from physis_core.plan.profile import ModelProfile
from physis_core.plan.topology import Pool
from physis_core.sim.scenario import Scenario, SimStream
from physis_core.sim.simulator import Simulator
from physis_core.types import StageGraph

_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_GOLDEN = 0.6180339887498949


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedStream:
    """A stream with its place: `device_of[s]` for every stage."""

    stream_id: str
    model: str
    device_of: tuple[int, ...]
    period_s: float
    priority: int = 0
    max_response_s: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """`kept` is False where some stream missed; then `stream_id` and `reason` name the first."""

    kept: bool
    stream_id: str = ""
    reason: str = ""
    chunks: int = 0


class RunCosts:
    """p99 seconds of runs of blocks by batch size, kept for the next check."""

    def __init__(self, models: Mapping[str, ModelProfile], max_batch: int) -> None:
        self.models = models
        self.max_batch = max_batch
        self._tables = {
            name: (profile.table(), profile.table(p99=True)) for name, profile in models.items()
        }
        self._known: dict[tuple[str, int, int, float], dict[int, float]] = {}

    def of(self, model: str, first: int, last: int, factor: float) -> dict[int, float]:
        """Medians add up, excesses add in squares; blocks `first` to `last` - 1."""
        key = (model, first, last, factor)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._compute(model, first, last, factor)
        return known

    def _compute(self, model: str, first: int, last: int, factor: float) -> dict[int, float]:
        low, high = self._tables[model]
        out = {}
        for batch in _BATCHES:
            if batch > self.max_batch:
                break
            mean, square = 0.0, 0.0
            for block in range(first, last):
                p50_s = low.predict_s(block, batch)
                mean += p50_s
                square += (high.predict_s(block, batch) - p50_s) ** 2
            out[batch] = factor * (mean + math.sqrt(square))
        return out


def component(streams: Sequence[PlacedStream], of: str) -> list[PlacedStream]:
    """The streams that share a device with `of`, or with one that does, and so on."""
    left = {s.stream_id: s for s in streams}
    found = [left.pop(of)]
    devices = set(found[0].device_of)
    grown = True
    while grown:
        grown = False
        for stream in list(left.values()):
            if not devices.isdisjoint(stream.device_of):
                found.append(left.pop(stream.stream_id))
                devices.update(stream.device_of)
                grown = True
    return found


def keeps_slo(
    streams: Sequence[PlacedStream],
    run_costs: RunCosts,
    pool: Pool,
    *,
    stretch: float = 1.0,
    shared_stretch: float = 1.0,
    periods: int = 2,
    eager_batching: bool = False,
) -> Verdict:
    """Simulate these streams at p99 costs and see whether each keeps its period and response bound.

    `stretch` lengthens every task, `shared_stretch` those of devices with more than one stream.
    """
    models = run_costs.models
    runs = {s.stream_id: _runs(s, models[s.model]) for s in streams}
    sharing: dict[int, set[str]] = {}
    for stream in streams:
        for device in set(stream.device_of):
            sharing.setdefault(device, set()).add(stream.stream_id)
    keys: dict[tuple[str, int, int, bool], int] = {}
    costs: dict[int, dict[int, float]] = {}
    specs: list[SimStream] = []
    longest_s = max(stream.period_s for stream in streams)
    for i, stream in enumerate(streams):
        profile = models[stream.model]
        devices, blocks = [], []
        for device, first, last in runs[stream.stream_id]:
            shared = len(sharing[device]) > 1
            name = (stream.model, first, last, shared)
            if name not in keys:
                keys[name] = len(keys)
                factor = stretch * (shared_stretch if shared else 1.0)
                costs[keys[name]] = run_costs.of(stream.model, first, last, factor)
            devices.append(device)
            blocks.append(keys[name])
        total_s = sum(costs[b][1] for b in blocks)
        in_flight = math.ceil(4.0 * total_s / stream.period_s) + 4
        specs.append(
            SimStream(
                stream_id=stream.stream_id,
                graph=StageGraph(steps=1, blocks=len(blocks)),
                device_of=tuple(devices),
                block_keys=tuple(blocks),
                period_s=stream.period_s,
                credits=in_flight,
                priority=stream.priority,
                open_s=(i * _GOLDEN % 1.0) * stream.period_s,
                hidden_bytes=profile.hidden_bytes,
                expected_response_s=1.5 * total_s + 0.5 * stream.period_s,
                margin_s=0.5 * stream.period_s,
                first_responses=4,
            )
        )
    fill_s = max(sum(costs[b][1] for b in s.block_keys) for s in specs) * 1.2 + longest_s
    simulator = Simulator(
        Scenario(
            pool=pool,
            costs=costs,
            streams=tuple(specs),
            end_s=fill_s + periods * longest_s,
            max_batch=run_costs.max_batch,
            eager_batching=eager_batching,
            record_tasks=0,
        )
    )
    simulator.run()
    return _judge(simulator, streams, fill_s, fill_s + periods * longest_s)


def _judge(
    simulator: Simulator, streams: Iterable[PlacedStream], after_s: float, end_s: float
) -> Verdict:
    chunks = 0
    bounds = {s.stream_id: s.max_response_s for s in streams}
    for trace in simulator.traces:
        spec = trace.spec
        assert spec.period_s is not None
        if trace.dropped:
            reason = f"{sum(trace.dropped.values())} chunks found the pipeline full"
            return Verdict(kept=False, stream_id=spec.stream_id, reason=reason)
        before = after_s - spec.period_s
        for chunk in trace.chunks:
            if chunk.release_s < before or chunk.deadline_s > end_s:
                continue
            chunks += 1
            if not chunk.exit_s <= chunk.deadline_s:
                return Verdict(
                    kept=False, stream_id=spec.stream_id, reason="a chunk missed its delivery"
                )
            if chunk.exit_s - chunk.entry_s > bounds[spec.stream_id]:
                return Verdict(
                    kept=False, stream_id=spec.stream_id, reason="the response passed its bound"
                )
        done = [c.exit_s - c.release_s for c in trace.chunks if c.exit_s == c.exit_s]
        late = done[len(done) // 2 :]
        if len(done) >= 8 and max(late) > max(done[: len(done) // 2]) + spec.period_s:
            return Verdict(
                kept=False,
                stream_id=spec.stream_id,
                reason="its response grows from chunk to chunk",
            )
    return Verdict(kept=True, chunks=chunks)


def _runs(stream: PlacedStream, profile: ModelProfile) -> list[tuple[int, int, int]]:
    """(device, first block, block after the last) of each run; a run never passes a step's end."""
    runs: list[tuple[int, int, int]] = []
    blocks = profile.blocks
    for stage, device in enumerate(stream.device_of):
        block = stage % blocks
        if runs and block and runs[-1][0] == device:
            runs[-1] = (device, runs[-1][1], block + 1)
        else:
            runs.append((device, block, block + 1))
    return runs
