"""`physis bench placement`: search against the exact optimum, and decision times."""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress

from physis_core.deployment.profile import BlockCost, ModelProfile
from physis_core.deployment.slo import Slo
from physis_core.deployment.topology import LinkSpec, Pool
from physis_core.model.backbones import BACKBONES
from physis_core.observe.figures import Figure, print_figures, result
from physis_core.plan.admission import Admission
from physis_core.plan.analytic import DeviceModel, analytic_profile
from physis_core.plan.arrivals import stream_of
from physis_core.plan.packing import pack
from physis_core.plan.requests import AdmissionPolicy, StreamRequest
from physis_core.sim.scenario import Scenario
from physis_core.sim.simulator import Simulator
from physis_core.types import Refused, UserError
from physis_lab.bench.arguments import require_at_least
from physis_lab.bench.plan.exact_placement import optimum

DEVICE = DeviceModel(
    name="80 GB class accelerator",
    peak_tflops=989,
    bandwidth_gb_s=3350,
    memory_gib=72,
    achieved_compute=0.25,
    achieved_bandwidth=0.7,
    overhead_ms=0.9,
)
# (devices, streams) -> three models with the periods [s] that their streams request. With these,
# that many streams do fit at a time, and some requests are refused.
DECISIONS: Mapping[tuple[int, int], Mapping[str, tuple[float, float]]] = {
    (24, 40): {
        "wan2.2-5b": (1.0, 1.6),
        "wan2.1-1.3b": (0.8, 1.6),
        "ltx-2.5-22b": (1.6, 3.2),
    },
    (200, 200): {
        "wan2.2-5b": (1.0, 1.6),
        "wan2.1-1.3b": (0.8, 1.6),
        "minimax-h3-33b": (1.6, 3.2),
    },
}
FAST = LinkSpec(latency_s=20e-6, bandwidth_bytes_s=200e9)
SLOW = LinkSpec(latency_s=50e-6, bandwidth_bytes_s=40e9)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--instances", type=int, default=60, help="random instances (default 60)")
    parser.add_argument("--limit-s", type=float, default=20.0, help="of the solver per instance")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--skip-optimum", action="store_true", help="time decisions only")


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    require_at_least(args, instances=1)
    if not args.limit_s > 0.0:
        raise UserError("limit_s", args.limit_s, "must be positive")
    figures: dict[str, Figure] = {}
    with Progress(console=console) as progress:
        total = (0 if args.skip_optimum else args.instances) + 3
        task = progress.add_task("placement", total=total)
        if not args.skip_optimum:
            figures.update(_against_optimum(args, lambda: progress.advance(task)))
        for (devices, streams), aim_ms in zip(DECISIONS, (50.0, 1000.0), strict=True):
            decisions, refusals, most = decision_times_s(devices, streams, args.seed)
            progress.advance(task)
            every = np.array(decisions + refusals)
            figures[f"placement.decision_ms_p99_{devices}"] = Figure(
                value=float(np.percentile(every, 99)) * 1e3, unit="ms", aim=aim_ms
            )
            figures[f"placement.decision_ms_p50_{devices}"] = Figure(
                value=float(np.median(every)) * 1e3, unit="ms"
            )
            figures[f"placement.most_admitted_{devices}"] = Figure(value=most, unit="streams")
            figures[f"placement.refused_{devices}"] = Figure(
                value=len(refusals) / len(every), unit="share"
            )
        rate, seconds = simulation_rate()
        progress.advance(task)
    figures["simulate.tasks_per_s"] = Figure(
        value=rate, unit="tasks/s", aim=50_000.0, better="higher"
    )
    figures["simulate.ten_minutes_s"] = Figure(value=seconds, unit="s of one core", aim=120.0)
    print_figures("placement, admission and simulation", figures, console)
    return result(
        figures,
        {
            "instances": 0 if args.skip_optimum else args.instances,
            "solver_limit_s": args.limit_s,
            "seed": args.seed,
            "note": "times are CPU seconds of one core; decisions include placement, the quick"
            " simulation, and on refusal the nearest SLO and device count",
        },
    )


def random_instance(seed: int) -> tuple[Admission, list[StreamRequest]]:
    """A few devices, one or two models, and more streams than fit. Either resource may be short."""
    random = np.random.default_rng([seed, 11])
    models: dict[str, ModelProfile] = {}
    for m in range(int(random.integers(1, 3))):
        blocks, steps = int(random.integers(2, 5)), int(random.integers(1, 4))
        single_s = float(random.uniform(0.01, 0.03))
        gain = float(random.uniform(0.1, 0.7))
        row = {n: single_s * (gain + (1.0 - gain) * n) for n in (1, 2, 4, 8, 16)}
        cost = BlockCost(weight_bytes=float(random.integers(1, 6)) * 2**30, p50_s=row, p99_s=row)
        models[f"m{m}"] = ModelProfile(
            name=f"m{m}",
            source="analytic",
            device="random",
            steps=steps,
            blocks=blocks,
            kv="noisy",
            window_chunks=4,
            sink_chunks=0,
            kv_bytes=float(random.integers(1, 5)) * 2**29,
            hidden_bytes=1e6,
            activation_bytes=0.0,
            shared_weight_bytes=0.0,
            block_costs=(cost,) * blocks,
        )
    devices = int(random.integers(2, 5))
    pool = Pool(
        devices=devices,
        memory_bytes=float(random.integers(16, 48)) * 2**30,
        devices_per_host=2,
        fast=FAST,
        slow=SLOW,
    )
    policy = AdmissionPolicy(verify=False, advise=False, groupings=4, most_devices=devices)
    slo = Slo.of_period("latents", 1.0, float(random.uniform(0.3, 0.8)))
    names = sorted(models)
    requests = [
        StreamRequest(stream_id=f"s{i}", model=names[int(random.integers(len(names)))], slo=slo)
        for i in range(int(random.integers(5, 13)))
    ]
    return Admission(pool, models, policy), requests


def _against_optimum(args: argparse.Namespace, step: Any) -> dict[str, Figure]:
    ours = online = best = missed = online_missed = unproven = used = worst = 0
    for i in range(args.instances):
        empty, requests = random_instance(args.seed * 10_000 + i)
        most, proven = optimum(empty, requests, limit_s=args.limit_s)
        step()
        if not proven:
            unproven += 1
            continue
        packed = len(pack(empty.pool, empty.models, empty.policy, requests).admitted)
        for request in requests:
            empty.request(request)
        one_by_one = len(empty.admitted)
        used += 1
        best += most
        ours += packed
        online += one_by_one
        missed += packed < most
        online_missed += one_by_one < most
        worst = max(worst, most - packed)
    if not best:
        raise UserError("limit_s", args.limit_s, "no instance was solved to the optimum within it")
    return {
        "placement.vs_optimum": Figure(
            value=ours / best, unit="admitted", aim=0.98, better="higher"
        ),
        "placement.one_by_one_vs_optimum": Figure(value=online / best, unit="admitted"),
        "placement.instances_missed": Figure(value=missed / used, unit="share"),
        "placement.one_by_one_missed": Figure(value=online_missed / used, unit="share"),
        "placement.worst_miss": Figure(value=float(worst), unit="streams"),
        "placement.instances_not_proven": Figure(value=float(unproven), unit="instances"),
    }


def pool_of(devices: int) -> Pool:
    return Pool(
        devices=devices,
        memory_bytes=DEVICE.memory_gib * 2**30,
        devices_per_host=8,
        fast=FAST,
        slow=SLOW,
    )


def decision_times_s(devices: int, streams: int, seed: int) -> tuple[list[float], list[float], int]:
    """CPU seconds of each admission and of each refusal, and the most streams admitted at a time.

    Streams come and go. Once `streams` are admitted, each new one replaces another.
    """
    random = np.random.default_rng([seed, 13])
    kinds = DECISIONS[devices, streams]
    models = {name: analytic_profile(BACKBONES[name], DEVICE) for name in kinds}
    admission = Admission(pool_of(devices), models)
    names = sorted(models)
    # As engine_node does before serving: a collection over all imports would take longer than some
    # decisions.
    gc.collect()
    gc.freeze()
    admitted_s: list[float] = []
    refused_s: list[float] = []
    most = 0

    def leave() -> None:
        admitted = list(admission.admitted)
        admission.leave(admitted[int(random.integers(len(admitted)))])

    for i in range(3 * streams):
        name = names[int(random.integers(len(names)))]
        slo = Slo.of_period("latents", 1.0, float(random.choice(kinds[name])))
        request = StreamRequest(stream_id=f"s{i}", model=name, slo=slo)
        if len(admission.admitted) >= streams:
            leave()
        start_s = time.process_time()
        outcome = admission.request(request)
        own = refused_s if isinstance(outcome, Refused) else admitted_s
        own.append(time.process_time() - start_s)
        most = max(most, len(admission.admitted))
        if isinstance(outcome, Refused) and len(admission.admitted) > 4:
            leave()
    return admitted_s, refused_s, most


def simulation_rate() -> tuple[float, float]:
    """(tasks per CPU second, CPU seconds of ten simulated minutes): 24 devices, 40 streams."""
    name = "wan2.2-5b"
    profile = analytic_profile(BACKBONES[name], DEVICE)
    admission = Admission(pool_of(24), {name: profile}, AdmissionPolicy(verify=False))
    slo = Slo.of_period("latents", 1.0, 1.6)
    for i in range(40):
        admission.request(StreamRequest(stream_id=f"s{i}", model=name, slo=slo))
    simulator = Simulator(
        Scenario(
            pool=admission.pool,
            costs={block: dict(c.p50_s) for block, c in enumerate(profile.block_costs)},
            streams=tuple(
                stream_of(one, admission, open_s=0.037 * i)
                for i, one in enumerate(admission.admitted.values())
            ),
            end_s=600.0,
        )
    )
    start_s = time.process_time()
    simulator.run()
    seconds = time.process_time() - start_s
    return simulator.tasks / seconds, seconds
