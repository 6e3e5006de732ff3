"""`physis bench pool`: plan, simulation and run of one deployment file, side by side.

Two models are profiled on this machine's workers, and streams of both are planned for them. The
plan becomes a deployment file. The simulator runs it on a virtual clock, and the engine with real
workers and synthetic observations. The simulator gets the profile and nothing of the run: how far
the machine's speed moved meanwhile stands beside the errors (`pool.machine_drift`).
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from msgspec import structs
from rich.console import Console

from physis_core.deployment.deployment import simple_deployment
from physis_core.deployment.file import (
    PlannedDeployment,
    RunFields,
    load_deployment,
    write_deployment,
)
from physis_core.deployment.profile import BlockCost, ModelProfile
from physis_core.deployment.slo import SloFields
from physis_core.deployment.topology import LinkSpec, Pool
from physis_core.engine.stream import StreamConfig
from physis_core.model.loading import load_spec
from physis_core.model.protocol import ModelSpec
from physis_core.model.registry import ModelRef
from physis_core.observe.figures import Figure, print_figures, result
from physis_core.observe.tables import print_table
from physis_core.plan.config import PlanConfig, StreamGroup
from physis_core.plan.deployed import deployment_fields, simulate_deployed
from physis_core.plan.report import decide
from physis_core.plan.requests import AdmissionPolicy, Admitted
from physis_core.plan.slo_check import phase
from physis_core.types import UserError
from physis_lab.bench.arguments import require_at_least
from physis_lab.bench.engine.engine_profile import Measured, profile_of
from physis_lab.session.engine_run import MODEL, EngineRun, EngineSession, free_stream

MODELS: Mapping[str, Mapping[str, Any]] = {
    "wide": MODEL,
    "deep": {**MODEL, "steps": 2, "blocks": 8, "dim": 384, "ffn": [1536] * 8},
}
WORKERS = 2
MAX_BATCH = 4
SETTLE = 24
"""Chunks of each stream that are left out, while the pipeline fills and the pacer settles."""
PROFILE_CHUNKS = 60
LONE_CHUNKS = 20
TIMEOUT_S = 600.0
MEMORY_GIB = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassTimes:
    """Of the streams of one class after settling. Seconds; `missed` is a share of the chunks."""

    interval_p50_s: float
    response_p50_s: float
    response_p99_s: float
    missed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One round. `memory`: bytes of weights and KV by device. `drift`: the largest change of a
    block's cost from before the run to after it.
    """

    planned: Mapping[str, ClassTimes]
    simulated: Mapping[str, ClassTimes]
    run: Mapping[str, ClassTimes]
    memory_planned: Mapping[int, float]
    memory_run: Mapping[int, float]
    drift: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--chunks", type=int, default=200, help="of each stream, after settling")
    parser.add_argument("--copies", type=int, default=2, help="streams of each model")
    parser.add_argument("--load", type=float, default=0.6, help="share of the workers' time")
    parser.add_argument("--repeat", type=int, default=1, help="rounds behind each spread")
    parser.add_argument("--out", type=Path, metavar="FILE", help="keep the deployment file")


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    require_at_least(args, chunks=20, copies=1, repeat=1)
    if not 0.0 < args.load <= 0.8:
        raise UserError("load", args.load, "must be above 0 and at most 0.8")
    torch.set_num_threads(1)
    rounds = []
    with tempfile.TemporaryDirectory() as folder:
        path = args.out or Path(folder) / "deployment.yaml"
        for number in range(args.repeat):
            console.print(f"round {number + 1} of {args.repeat}", highlight=False)
            rounds.append(compare(path, args.copies, args.load, args.chunks, console))
    _print(rounds[-1], console)
    figures = figures_of(rounds)
    print_figures("run against simulation (worst class, worst device)", figures, console)
    config = {
        "models": {name: dict(fields) for name, fields in MODELS.items()},
        "workers": WORKERS,
        "copies": args.copies,
        "load": args.load,
        "chunks": args.chunks,
        "settle": SETTLE,
        "repeat": args.repeat,
        "note": "memory: weights and KV; a CPU device does not tell its workspace",
    }
    return {**result(figures, config), "rounds": [asdict(one) for one in rounds]}


def figures_of(rounds: Sequence[Compared]) -> dict[str, Figure]:
    """The median over the rounds of each round's worst class or device."""

    def over(pick: Any, unit: str, aim: float | None = None) -> Figure:
        values = sorted(pick(one) for one in rounds)
        spread = (values[-1] - values[0]) / 2 if len(values) > 1 else float("nan")
        return Figure(value=float(np.median(values)), unit=unit, spread=spread, aim=aim)

    def worst(name: str) -> Any:
        def of(one: Compared) -> float:
            pairs = ((asdict(one.run[c]), asdict(one.simulated[c])) for c in one.run)
            return max(abs(float(ran[name]) / float(sim[name]) - 1.0) for ran, sim in pairs)

        return of

    def missed(one: Compared) -> float:
        return max(100.0 * abs(one.run[c].missed - one.simulated[c].missed) for c in one.run)

    def memory(one: Compared) -> float:
        return max(abs(one.memory_run[d] / b - 1.0) for d, b in one.memory_planned.items())

    return {
        "pool.interval_error": over(worst("interval_p50_s"), "share", 0.05),
        "pool.response_error": over(worst("response_p50_s"), "share", 0.10),
        "pool.response_p99_error": over(worst("response_p99_s"), "share"),
        "pool.miss_difference_pp": over(missed, "pp", 2.0),
        "pool.memory_error": over(memory, "share", 0.05),
        "pool.machine_drift": over(lambda one: one.drift, "share"),
    }


def compare(path: Path, copies: int, load: float, chunks: int, console: Console) -> Compared:
    """Profile, plan, write the file, simulate it and run it."""
    before = {name: profile_alone(name, console) for name in MODELS}
    config = plan_of(before, copies, load)
    decision = decide(config)
    for one in decision.groups:
        if one.refused is not None:
            raise UserError(
                "load", load, f"the plan refuses {one.group.name}: {one.refused.reason}"
            )
    admitted = {one.group.name: one.admitted for one in decision.groups}
    fields = deployment_fields(config, admitted, path.parent)
    fields = structs.replace(fields, engine=structs.replace(fields.engine, bind_cores=True))
    write_deployment(fields, path, "Written by `physis bench pool`.")
    planned = load_deployment(path)
    longest_s = max(stream.slo.period_s for stream in planned.streams)
    simulation = simulate_deployed(planned, seconds=longest_s * (chunks + SETTLE) * 1.2)
    console.print(f"runs {len(planned.streams)} streams of 2 models", highlight=False)
    run, memory = _run(planned, chunks)
    after = {name: profile_alone(name, console) for name in MODELS}
    return Compared(
        planned={name: _planned(ones) for name, ones in admitted.items()},
        simulated={name: _simulated(simulation, name) for name in admitted},
        run={name: _ran(run, planned, name) for name in admitted},
        memory_planned={
            row["device"]: row["bytes"]["weights"] + row["bytes"]["kv"]
            for row in simulation["devices"]
        },
        memory_run=memory,
        drift=max(
            abs(row[1] / before[name].costs[block][1] - 1.0)
            for name, found in after.items()
            for block, row in found.costs.items()
        ),
    )


def profile_alone(name: str, console: Console) -> Measured:
    """A model alone on the workers: free streams for its costs, single chunks for its hops."""
    console.print(f"profiles {name}", highlight=False)
    deployment = simple_deployment(
        ModelRef(family="synthetic", config=MODELS[name]),
        partition="block",
        devices=WORKERS,
        workers=WORKERS,
        max_batch=MAX_BATCH,
        bind_cores=True,
    )
    with EngineSession(deployment, timeout_s=TIMEOUT_S) as session:
        streams = [free_stream(f"s{i}", max_in_flight=4) for i in range(2)]
        busy = session.run(streams, chunks=PROFILE_CHUNKS)
        lone = session.run([free_stream(max_in_flight=1)], chunks=LONE_CHUNKS)
    return profile_of([busy], [lone], deployment.graph_of(0).blocks)


def plan_of(measured: Mapping[str, Measured], copies: int, load: float) -> PlanConfig:
    """Equal numbers of streams of each model on this machine's workers; the slower model's period
    is half as long again as the other's.
    """
    refs = {name: ModelRef(family="synthetic", config=MODELS[name]) for name in measured}
    specs = {name: load_spec(ref) for name, ref in refs.items()}
    profiles = {name: profile_from(name, specs[name], found) for name, found in measured.items()}
    work_s = {
        name: specs[name].steps * sum(cost.p50_s[1] for cost in profile.block_costs)
        for name, profile in profiles.items()
    }
    order = sorted(work_s, key=lambda name: work_s[name])
    share = {name: 1.0 + 0.5 * number for number, name in enumerate(order)}
    unit_s = copies * sum(work_s[name] / share[name] for name in order) / (WORKERS * load)
    hop_s = max(found.per_hop_s for found in measured.values())
    message_s = max(found.per_message_s for found in measured.values())
    largest = max(profile.hidden_bytes for profile in profiles.values())
    link = LinkSpec(
        latency_s=max(0.0, hop_s - message_s),
        bandwidth_bytes_s=largest / message_s if message_s else float("inf"),
    )
    return PlanConfig(
        pool=Pool(
            devices=WORKERS,
            memory_bytes=MEMORY_GIB * 2**30,
            devices_per_host=WORKERS,
            fast=link,
            slow=link,
        ),
        models=profiles,
        streams=tuple(
            StreamGroup(
                name=name,
                model=name,
                copies=copies,
                level=SloFields(
                    count="action_chunks", per_chunk=1.0, period_ms=1e3 * unit_s * share[name]
                ),
            )
            for name in profiles
        ),
        policy=AdmissionPolicy(max_batch=MAX_BATCH, margin=0.1),
        goal="shortest_response",
        simulate=None,
        device="cpu",
        runs={
            name: RunFields(model=ref.family, config=dict(ref.config)) for name, ref in refs.items()
        },
        folder=Path(),
    )


def profile_from(name: str, spec: ModelSpec, found: Measured) -> ModelProfile:
    """Costs with the time between two batches in them; p99 by the spread of the durations."""
    tail = max(1.0, float(np.quantile(found.factors, 0.99)))
    costs = []
    for block in range(spec.blocks):
        p50 = {size: s + found.per_batch_s for size, s in sorted(found.costs[block].items())}
        costs.append(
            BlockCost(
                weight_bytes=spec.block_weight_bytes[block],
                p50_s=p50,
                p99_s={size: seconds * tail for size, seconds in p50.items()},
            )
        )
    hidden = sum(part.bytes for part in spec.hidden)
    return ModelProfile(
        name=name,
        source="measured",
        device="cpu",
        steps=spec.steps,
        blocks=spec.blocks,
        kv=spec.kv,
        window_chunks=spec.window_chunks,
        sink_chunks=spec.sink_chunks,
        kv_bytes=spec.kv_bytes,
        hidden_bytes=hidden,
        shared_weight_bytes=spec.shared_weight_bytes,
        block_costs=tuple(costs),
        assumptions=(f"{PROFILE_CHUNKS} chunks of two free streams on {WORKERS} workers",),
    )


def _run(planned: PlannedDeployment, chunks: int) -> tuple[EngineRun, dict[int, float]]:
    """The streams' chunks, and bytes of weights and KV by device at the end."""
    configs = [
        StreamConfig(
            stream_id=stream.stream_id,
            period_s=stream.slo.period_s,
            route=stream.route,
            priority=stream.priority,
            hold=False,
        )
        for stream in planned.streams
    ]
    begin_s = [phase(n) * 0.5 * s.slo.period_s for n, s in enumerate(planned.streams)]
    with EngineSession(planned.deployment, timeout_s=TIMEOUT_S) as session:
        run = session.run(configs, chunks=chunks + SETTLE, begin_s=begin_s)
    memory: dict[int, float] = {}
    for counters in run.trace.devices:
        memory[int(counters["device"])] = counters["weight_bytes"] + counters["kv_bytes"]
    return run, memory


def _planned(admitted: Sequence[Admitted]) -> ClassTimes:
    """What the plan says of a class: the period that it is to keep, and its response alone."""
    return ClassTimes(
        interval_p50_s=admitted[0].request.slo.period_s,
        response_p50_s=float(np.mean([one.plan.relaxed_response_s for one in admitted])),
        response_p99_s=float(np.mean([one.plan.response_s for one in admitted])),
        missed=0.0,
    )


def _simulated(simulation: Mapping[str, Any], group: str) -> ClassTimes:
    rows = [row for row in simulation["streams"] if row["stream"].rsplit("-", 1)[0] == group]

    def mean(figure: str, percentile: str) -> float:
        return float(np.mean([row[figure][percentile] for row in rows])) / 1e3

    return ClassTimes(
        interval_p50_s=mean("output_interval_ms", "p50"),
        response_p50_s=mean("response_latency_ms", "p50"),
        response_p99_s=mean("response_latency_ms", "p99"),
        missed=sum(row["deadline_misses"] for row in rows) / sum(row["chunks"] for row in rows),
    )


def _ran(run: EngineRun, planned: PlannedDeployment, group: str) -> ClassTimes:
    own = [
        found.steady(SETTLE)
        for stream, found in zip(planned.streams, run.streams, strict=True)
        if stream.group == group
    ]
    late = [float((one.exit_s > one.deadline_s).mean()) for one in own]
    return ClassTimes(
        interval_p50_s=float(np.mean([np.percentile(one.intervals_s, 50) for one in own])),
        response_p50_s=float(np.mean([np.percentile(one.responses_s, 50) for one in own])),
        response_p99_s=float(np.mean([np.percentile(one.responses_s, 99) for one in own])),
        missed=float(np.mean(late)),
    )


def _print(one: Compared, console: Console) -> None:
    rows = []
    for group in one.run:
        for source, times in (
            ("plan", one.planned[group]),
            ("simulation", one.simulated[group]),
            ("run", one.run[group]),
        ):
            rows.append(
                (
                    group if source == "plan" else "",
                    source,
                    f"{1e3 * times.interval_p50_s:.2f}",
                    f"{1e3 * times.response_p50_s:.2f}",
                    f"{1e3 * times.response_p99_s:.2f}",
                    f"{100 * times.missed:.1f}%",
                )
            )
    print_table(
        console,
        "ms; the plan's response is alone, and in full batches",
        ("class", "", "interval p50", "response p50", "response p99", "missed"),
        rows,
        left=("class", ""),
    )
    print_table(
        console,
        "MiB of weights and KV",
        ("device", "plan", "run"),
        (
            (device, f"{bytes_ / 2**20:.2f}", f"{one.memory_run[device] / 2**20:.2f}")
            for device, bytes_ in one.memory_planned.items()
        ),
    )
