"""`physis bench fidelity`: what the simulator says against what the engine does on this machine.

Each round profiles the engine first (a run of its own, in one process and in two), hands the
profile to the simulator, and then runs and simulates the same deployments: partitions, one to four
streams, with and without a period. Nothing of a compared run goes into its simulation.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from physis_core.bench.streaming import EngineRun, pause_between_runs, run_streams
from physis_core.model.loading import ModelRef
from physis_core.observe.figures import Figure, print_figures, repeated, result
from physis_core.plan.topology import LinkSpec, Pool
from physis_core.runtime.deployment import Deployment, simple_deployment
from physis_core.runtime.stream import StreamConfig
from physis_core.sim.noise import NoiseSpec
from physis_core.sim.scenario import Scenario, SimStream
from physis_core.sim.simulator import Simulator
from physis_core.types import UserError

MODEL: Mapping[str, Any] = {
    "steps": 4,
    "blocks": 4,
    "tokens": 64,
    "dim": 512,
    "heads": 8,
    "window_chunks": 4,
    "ffn": [2048] * 4,
}
SETTLE = 32
"""Chunks of each stream that are left out: the pipeline's fill, and the pacer's first responses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`load` is the share of the devices' time that the streams ask for; None: free running."""

    partition: str
    workers: int
    streams: int
    load: float | None
    max_batch: int

    @property
    def name(self) -> str:
        pace = "free" if self.load is None else f"load {self.load:g}"
        batch = "" if self.max_batch == 1 else f", batch {self.max_batch}"
        return f"{self.partition} x{self.workers}, {self.streams} stream(s), {pace}{batch}"


CASES = (
    Case(partition="sequential", workers=1, streams=1, load=None, max_batch=1),
    Case(partition="sequential", workers=1, streams=2, load=0.7, max_batch=4),
    Case(partition="block", workers=2, streams=1, load=None, max_batch=1),
    Case(partition="block", workers=2, streams=2, load=0.7, max_batch=4),
    Case(partition="grouped", workers=2, streams=1, load=None, max_batch=1),
    Case(partition="grouped", workers=2, streams=4, load=0.8, max_batch=4),
    Case(partition="grouped", workers=2, streams=3, load=0.6, max_batch=1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A profile of the engine: seconds by block and batch, tails, and what surrounds a batch."""

    costs: dict[int, dict[int, float]]
    p99_ratio: float
    per_batch_s: float
    per_hop_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Of all streams together, after the settling."""

    interval_s: float
    response_s: float
    missed: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--chunks", type=int, default=60, help="of each stream, after settling")
    parser.add_argument("--repeat", type=int, default=3, help="rounds behind each spread")
    parser.add_argument("--tokens", type=int, default=MODEL["tokens"], help="tokens of a chunk")


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    for name, low in (("chunks", 20), ("repeat", 1), ("tokens", 1)):
        if getattr(args, name) < low:
            raise UserError(name, getattr(args, name), f"must be at least {low}")
    torch.set_num_threads(1)
    model = ModelRef(kind="synthetic", config={**MODEL, "tokens": args.tokens})
    pairs: dict[Case, list[tuple[Outcome, Outcome]]] = {case: [] for case in CASES}
    with Progress(console=console) as progress:
        task = progress.add_task("fidelity", total=args.repeat * (len(CASES) + 2))
        for _ in range(args.repeat):
            profiles = {}
            for workers in (1, 2):
                progress.update(task, description=f"profile, {workers} process(es)")
                profiles[workers] = measure(model, workers)
                progress.advance(task)
            for case in CASES:
                progress.update(task, description=case.name)
                pairs[case].append(compare(model, case, profiles[case.workers], args.chunks))
                progress.advance(task)
    rows = {case: _errors(outcomes) for case, outcomes in pairs.items()}
    _print_rows(rows, pairs, console)
    figures = {
        "fidelity.interval_error": _worst(rows, 0, "share", 0.05),
        "fidelity.response_error": _worst(rows, 1, "share", 0.10),
        "fidelity.miss_difference_pp": _worst(rows, 2, "pp", 2.0),
        "fidelity.interval_error_median": _median(rows, 0, "share"),
        "fidelity.response_error_median": _median(rows, 1, "share"),
    }
    print_figures("simulation against the engine (worst case of the table)", figures, console)
    config = {
        "model": dict(model.config),
        "chunks": args.chunks,
        "settle": SETTLE,
        "repeat": args.repeat,
        "cases": [case.name for case in CASES],
        "note": "real blocks in real processes; profile from runs of their own",
    }
    out = result(figures, config)
    out["cases"] = {
        case.name: {
            "interval_error": error[0].value,
            "response_error": error[1].value,
            "miss_difference_pp": error[2].value,
        }
        for case, error in rows.items()
    }
    return out


# -- profile --------------------------------------------------------------------------------------


def measure(model: ModelRef, workers: int) -> Measured:
    """Durations by (block, batch) from the task records of runs with one and with four streams."""
    durations: dict[tuple[int, int], list[float]] = {}
    gaps: list[float] = []
    hops: list[float] = []
    kind = "sequential" if workers == 1 else "block"
    for streams, batch in ((1, 1), (4, 4)):
        deployment = simple_deployment(
            model, partition=kind, devices=workers, workers=workers, max_batch=batch
        )
        configs = [_config(i, None, 6) for i in range(streams)]
        engine = run_streams(deployment, configs, chunks=24, timeout_s=300.0)
        _take_records(engine, deployment, durations, gaps, hops)
        pause_between_runs()
    costs: dict[int, dict[int, float]] = {}
    ratios = []
    for (block, size), seconds in durations.items():
        if len(seconds) >= 8:
            costs.setdefault(block, {})[size] = float(np.median(seconds))
            ratios.append(float(np.percentile(seconds, 99) / np.median(seconds)))
    return Measured(
        costs=costs,
        p99_ratio=max(1.0, float(np.median(ratios))),
        per_batch_s=float(np.median(gaps)),
        # A receiver that computes looks at its mail afterwards; the quick hops met an idle one.
        per_hop_s=float(np.percentile(hops, 10)) if hops else 0.0,
    )


def _take_records(
    run: EngineRun,
    deployment: Deployment,
    durations: dict[tuple[int, int], list[float]],
    gaps: list[float],
    hops: list[float],
) -> None:
    blocks = deployment.graph.blocks
    tasks = run.trace.tasks
    for device in np.unique(tasks["device"]):
        mine = tasks[tasks["device"] == device]
        _, first = np.unique(mine["batch"], return_index=True)
        batches = mine[first]
        # The first chunks find empty windows and cold caches.
        steady = batches[batches["chunk"] >= 6]
        for record in steady:
            key = (int(record["stage"]) % blocks, int(record["size"]))
            durations.setdefault(key, []).append(float(record["end_s"] - record["start_s"]))
        idle = steady["start_s"][1:] - steady["end_s"][:-1]
        busy = steady["ready_s"][1:] < steady["end_s"][:-1]
        gaps.extend(idle[busy & (idle >= 0.0)].tolist())
        came = mine[(mine["source"] >= 0) & (mine["source"] != device)]
        hops.extend((came["ready_s"] - came["sent_s"]).tolist())


# -- the two sides --------------------------------------------------------------------------------


def _config(index: int, period_s: float | None, places: int) -> StreamConfig:
    return StreamConfig(
        stream_id=f"s{index}",
        period_s=period_s,
        release="free" if period_s is None else "periodic",
        max_in_flight=places,
        hold=False,
    )


def compare(model: ModelRef, case: Case, profile: Measured, chunks: int) -> tuple[Outcome, Outcome]:
    """(engine, simulator) for one case."""
    deployment = simple_deployment(
        model,
        partition=case.partition,
        devices=case.workers,
        workers=case.workers,
        max_batch=case.max_batch,
    )
    work_s = sum(
        profile.costs[stage % deployment.graph.blocks][1] + profile.per_batch_s
        for stage in range(deployment.graph.stages)
    )
    period_s = None
    if case.load is not None:
        period_s = work_s * case.streams / (case.workers * case.load)
    route = deployment.routes[0]
    crossings = sum(
        route.device_of(s) != route.device_of(s + 1) for s in range(deployment.graph.stages - 1)
    )
    places = max(4 if case.max_batch > 1 else 2, crossings + 2)
    total = SETTLE + chunks
    configs = [_config(i, period_s, places) for i in range(case.streams)]
    run = run_streams(deployment, configs, chunks=total, timeout_s=300.0)
    pause_between_runs()
    real = _outcome(
        [(s.release_s, s.exit_s, s.deadline_s) for s in run.streams], case.load is not None
    )
    simulated = _outcome(
        _simulate(deployment, case, profile, period_s, places, total), case.load is not None
    )
    return real, simulated


def _simulate(
    deployment: Deployment,
    case: Case,
    profile: Measured,
    period_s: float | None,
    places: int,
    chunks: int,
) -> list[tuple[Any, Any, Any]]:
    graph, route = deployment.graph, deployment.routes[0]
    hop = LinkSpec(latency_s=profile.per_hop_s, bandwidth_bytes_s=float("inf"))
    scenario = Scenario(
        pool=Pool(
            devices=len(deployment.devices),
            memory_bytes=1.0,
            devices_per_host=len(deployment.devices),
            fast=hop,
            slow=hop,
        ),
        costs=profile.costs,
        streams=tuple(
            SimStream(
                stream_id=f"s{i}",
                graph=graph,
                device_of=tuple(route.device_of(s) for s in range(graph.stages)),
                block_keys=tuple(range(graph.blocks)),
                period_s=period_s,
                credits=places,
                open_s=1e-3 * i,
                max_chunks=chunks,
                expected_response_s=0.0,
            )
            for i in range(case.streams)
        ),
        end_s=3600.0,
        max_batch=case.max_batch,
        boundary_credits=deployment.credits,
        noise=NoiseSpec(p99_ratio=profile.p99_ratio),
        per_batch_s=profile.per_batch_s,
        credit_latency_s=profile.per_hop_s,
    )
    simulator = Simulator(scenario)
    simulator.run()
    return [
        (
            np.array([c.release_s for c in trace.chunks]),
            np.array([c.exit_s for c in trace.chunks]),
            np.array([c.deadline_s for c in trace.chunks]),
        )
        for trace in simulator.traces
    ]


def _outcome(streams: Sequence[tuple[Any, Any, Any]], periodic: bool) -> Outcome:
    intervals, responses, misses = [], [], []
    for release_s, exit_s, deadline_s in streams:
        intervals.append(float(np.mean(np.diff(exit_s[SETTLE:]))))
        responses.extend((exit_s - release_s)[SETTLE:].tolist())
        misses.extend((exit_s > deadline_s)[SETTLE:].tolist())
    return Outcome(
        interval_s=float(np.mean(intervals)),
        response_s=float(np.median(responses)),
        missed=float(np.mean(misses)) if periodic else 0.0,
    )


# -- errors ---------------------------------------------------------------------------------------

Errors = tuple[Figure, Figure, Figure]


def _errors(outcomes: Sequence[tuple[Outcome, Outcome]]) -> Errors:
    """Median over the rounds of |simulated - real|, relative but for the misses."""
    interval = [abs(s.interval_s / r.interval_s - 1.0) for r, s in outcomes]
    response = [abs(s.response_s / r.response_s - 1.0) for r, s in outcomes]
    missed = [100.0 * abs(s.missed - r.missed) for r, s in outcomes]
    return repeated(interval, "share"), repeated(response, "share"), repeated(missed, "pp")


def _worst(rows: Mapping[Case, Errors], index: int, unit: str, aim: float) -> Figure:
    worst = max((errors[index] for errors in rows.values()), key=lambda figure: figure.value)
    return Figure(value=worst.value, unit=unit, spread=worst.spread, aim=aim)


def _median(rows: Mapping[Case, Errors], index: int, unit: str) -> Figure:
    return Figure(
        value=float(np.median([errors[index].value for errors in rows.values()])), unit=unit
    )


def _print_rows(
    rows: Mapping[Case, Errors],
    pairs: Mapping[Case, Sequence[tuple[Outcome, Outcome]]],
    console: Console,
) -> None:
    table = Table(title="engine / simulator, median of the rounds", title_justify="left")
    for heading in ("case", "interval ms", "error", "response ms", "error", "missed %"):
        table.add_column(heading, justify="left" if heading == "case" else "right")
    for case, errors in rows.items():
        real = [r for r, _ in pairs[case]]
        simulated = [s for _, s in pairs[case]]

        def both(field: str, scale: float, a: Any = real, b: Any = simulated) -> str:
            first = float(np.median([getattr(o, field) for o in a])) * scale
            second = float(np.median([getattr(o, field) for o in b])) * scale
            return f"{first:.4g} / {second:.4g}"

        table.add_row(
            case.name,
            both("interval_s", 1e3),
            f"{100 * errors[0].value:.1f}%",
            both("response_s", 1e3),
            f"{100 * errors[1].value:.1f}%",
            both("missed", 100.0),
        )
    console.print(table)
