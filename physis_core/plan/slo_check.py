"""A quick check of a schedule: one task per run of blocks instead of one per block.

Neighbouring blocks of one step on one device are one task. Only equal runs batch, and a run is not
interrupted between its blocks. So this is a little stricter than the full simulation, and about
twenty times as fast.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from physis_core.deployment.profile import BATCHES, ModelProfile
from physis_core.deployment.topology import Pool
from physis_core.pipeline.costs import CostTable, cost_row
from physis_core.plan.placement.cost import with_tail_s
from physis_core.sim.scenario import Scenario, SimStream
from physis_core.sim.simulator import Simulator
from physis_core.sim.trace import ChunkTrace, StreamTrace
from physis_core.types import StageGraph

_GOLDEN = 0.6180339887498949
_BEATS = 3
"""Where periods differ, the simulated time is this many times as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedStream:
    """A stream and its devices: `device_of[s]` for every stage, with `blocks` stages per step.

    `runs`: (device, first block, block after the last) of each run; a run stays within one step.
    """

    stream_id: str
    model: str
    blocks: int
    device_of: tuple[int, ...]
    period_s: float
    priority: int = 0
    max_response_s: float = math.inf
    runs: tuple[tuple[int, int, int], ...] = field(init=False)
    devices: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "runs", _runs(self.device_of, self.blocks))
        object.__setattr__(self, "devices", frozenset(self.device_of))


@dataclass(frozen=True, slots=True, kw_only=True)
class SloCheck:
    """`kept` is False where a stream missed its SLO; `stream_id` and `reason` name the first."""

    kept: bool
    stream_id: str = ""
    reason: str = ""
    chunks: int = 0


class RunCosts:
    """p99 seconds of runs of blocks by batch size, cached between checks.

    Each kind of run has a number; `table` has all of them.
    """

    def __init__(self, models: Mapping[str, ModelProfile], max_batch: int) -> None:
        self.models = models
        self.max_batch = max_batch
        self._profiles = {
            name: (profile.table(), profile.table(p99=True)) for name, profile in models.items()
        }
        self._numbers: dict[tuple[str, int, int, float], int] = {}
        self._rows: dict[int, list[float]] = {}
        self.table = CostTable.of_rows(self._rows)

    def number(self, model: str, first: int, last: int, factor: float) -> int:
        """Of the run over blocks `first` to `last` - 1, with every task `factor` times as long."""
        key = (model, first, last, factor)
        known = self._numbers.get(key)
        if known is None:
            known = self._numbers[key] = len(self._numbers)
            self._rows[known] = cost_row(known, self._compute(model, first, last, factor))
        return known

    def _compute(self, model: str, first: int, last: int, factor: float) -> dict[int, float]:
        low, high = self._profiles[model]
        out = {}
        for batch in BATCHES:
            if batch > self.max_batch:
                break
            blocks = range(first, last)
            out[batch] = factor * with_tail_s(
                (low.predict_s(block, batch), high.predict_s(block, batch)) for block in blocks
            )
        return out


def phase(number: int) -> float:
    """Where in its period the stream with this number starts, in [0, 1): evenly spread."""
    return number * _GOLDEN % 1.0


def component(streams: Sequence[PlacedStream], of: str) -> list[PlacedStream]:
    """The streams that share a device with `of`, or with one that does, and so on."""
    left = {s.stream_id: s for s in streams}
    found = [left.pop(of)]
    devices = set(found[0].devices)
    grown = True
    while grown:
        grown = False
        for stream in list(left.values()):
            if not devices.isdisjoint(stream.devices):
                found.append(left.pop(stream.stream_id))
                devices |= stream.devices
                grown = True
    return found


def keeps_slo(
    streams: Sequence[PlacedStream],
    run_costs: RunCosts,
    pool: Pool,
    *,
    shared_stretch: float = 1.0,
    periods: int = 2,
    eager_batching: bool = False,
) -> SloCheck:
    """Simulate these streams at p99 costs and see whether each keeps its period and response bound.

    `shared_stretch` lengthens the tasks of devices with more than one stream.
    """
    scenario, after_s = check_scenario(
        streams,
        run_costs,
        pool,
        shared_stretch=shared_stretch,
        periods=periods,
        eager_batching=eager_batching,
    )
    return _judge(scenario, {s.stream_id: s.max_response_s for s in streams}, after_s)


def check_scenario(
    streams: Sequence[PlacedStream],
    run_costs: RunCosts,
    pool: Pool,
    *,
    shared_stretch: float = 1.0,
    periods: int = 2,
    eager_batching: bool = False,
) -> tuple[Scenario, float]:
    """The scenario to simulate, and the time from which chunks count (every pipeline is full)."""
    models = run_costs.models
    sharing: dict[int, int] = {}
    for stream in streams:
        for device in stream.devices:
            sharing[device] = sharing.get(device, 0) + 1
    costs = run_costs.table
    specs: list[SimStream] = []
    totals_s: list[float] = []
    longest_s = max(stream.period_s for stream in streams)
    for i, stream in enumerate(streams):
        profile = models[stream.model]
        runs = [
            run_costs.number(
                stream.model,
                first,
                last,
                shared_stretch if sharing[device] > 1 else 1.0,
            )
            for device, first, last in stream.runs
        ]
        graph = StageGraph(steps=1, blocks=len(runs))
        if profile.kv == "clean":
            # All steps of a block are on one device, so every pass has the same runs, and a chunk
            # waits at each run for the clean pass of the chunk before it.
            passes = profile.graph.passes
            graph = StageGraph(steps=profile.steps, blocks=len(runs) // passes, kv="clean")
        total_s = sum(costs.predict_s(run, 1) for run in runs)
        totals_s.append(total_s)
        in_flight = math.ceil(4.0 * total_s / stream.period_s) + 4
        specs.append(
            SimStream(
                stream_id=stream.stream_id,
                graph=graph,
                device_of=tuple(device for device, _, _ in stream.runs),
                block_keys=tuple(runs[: graph.blocks]),
                period_s=stream.period_s,
                credits=in_flight,
                priority=stream.priority,
                open_s=phase(i) * stream.period_s,
                hidden_bytes=profile.hidden_bytes,
                expected_response_s=1.5 * total_s + 0.5 * stream.period_s,
                margin_s=0.5 * stream.period_s,
                first_responses=4,
            )
        )
    if len({stream.period_s for stream in streams}) > 1:
        # Streams of different periods coincide differently in each period.
        periods *= _BEATS
    fill_s = max(totals_s) * 1.2 + longest_s
    scenario = Scenario(
        pool=pool,
        costs=costs,
        streams=tuple(specs),
        end_s=fill_s + periods * longest_s,
        max_batch=run_costs.max_batch,
        eager_batching=eager_batching,
        record_tasks=0,
    )
    return scenario, fill_s


def _judge(scenario: Scenario, bounds: Mapping[str, float], after_s: float) -> SloCheck:
    """Simulate until a stream fails, or to the end and until every stream has a judged chunk.

    A chunk is judged if it was released after `after_s` minus a period and is finished or due. If
    the simulation had to be extended, responses are longer than expected, and the pacer's first
    delivery times are guesses. Then a chunk may be one period late if it does not take much longer
    than the chunks before it.
    """
    failed: list[SloCheck] = []
    end_s = scenario.end_s

    def fail(trace: StreamTrace, reason: str) -> None:
        failed.append(SloCheck(kept=False, stream_id=trace.spec.stream_id, reason=reason))

    def missed(trace: StreamTrace, chunk: ChunkTrace | None) -> None:
        if chunk is None:
            fail(trace, f"{sum(trace.dropped.values())} chunks found the pipeline full")
        elif late(trace, chunk) and chunk in _judged(trace, after_s, end_s):
            fail(trace, "a chunk missed its delivery")
        if failed:
            simulator.stop()

    def late(trace: StreamTrace, chunk: ChunkTrace) -> bool:
        if chunk.deadline_s <= scenario.end_s:
            return not chunk.exit_s <= chunk.deadline_s
        period_s = _period_s(trace)
        before = [c.exit_s - c.release_s for c in trace.chunks if c.chunk_id < chunk.chunk_id]
        steady = chunk.exit_s - chunk.release_s <= max(before, default=math.inf) + 0.5 * period_s
        return not (steady and chunk.exit_s <= chunk.deadline_s + period_s)

    simulator = Simulator(scenario, missed=missed)
    simulator.run(end_s)
    while not failed and not all(_judged(trace, after_s, end_s) for trace in simulator.traces):
        # A long pipeline at a short period: chunks of the window are still in flight. Go on until
        # they finish, are dropped, or are overdue.
        end_s += max(_period_s(trace) for trace in simulator.traces)
        simulator.run(end_s)
    if failed:
        return failed[0]
    chunks = 0
    for trace in simulator.traces:
        judged = _judged(trace, after_s, end_s)
        chunks += len(judged)
        if any(late(trace, chunk) for chunk in judged):
            # It never finished: `missed` is called only for chunks that finish late.
            fail(trace, "a chunk missed its delivery")
        # Sums of many durations are not exact.
        bound_s = bounds[trace.spec.stream_id] * (1.0 + 1e-9)
        if any(c.exit_s - c.entry_s > bound_s for c in judged):
            fail(trace, "the response passed its bound")
        done = [c.exit_s - c.release_s for c in trace.chunks if c.exit_s == c.exit_s]
        half = len(done) // 2
        if len(done) >= 8 and max(done[half:]) > max(done[:half]) + _period_s(trace):
            fail(trace, "its response grows from chunk to chunk")
    return failed[0] if failed else SloCheck(kept=True, chunks=chunks)


def _judged(trace: StreamTrace, after_s: float, end_s: float) -> list[ChunkTrace]:
    least_s = after_s - _period_s(trace)
    return [
        chunk
        for chunk in trace.chunks
        if chunk.release_s >= least_s and (chunk.deadline_s <= end_s or chunk.exit_s <= end_s)
    ]


def _period_s(trace: StreamTrace) -> float:
    assert trace.spec.period_s is not None
    return trace.spec.period_s


def _runs(device_of: Sequence[int], blocks: int) -> tuple[tuple[int, int, int], ...]:
    runs: list[tuple[int, int, int]] = []
    first, before = 0, -1
    for stage, device in enumerate(device_of):
        block = stage % blocks
        if stage and (block == 0 or device != before):
            runs.append((before, first, (stage - 1) % blocks + 1))
            first = block
        before = device
    runs.append((before, first, (len(device_of) - 1) % blocks + 1))
    return tuple(runs)
