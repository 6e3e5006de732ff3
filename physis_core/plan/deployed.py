"""From a plan to a deployment file, and from a deployment file to a simulation of it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from msgspec import structs

from physis_core.deployment.file import (
    DeploymentFields,
    DeviceEntry,
    EngineEntry,
    LinkFields,
    LinksFields,
    ModelEntry,
    PlannedDeployment,
    RouteEntry,
    StreamEntry,
)
from physis_core.deployment.profile import ModelProfile
from physis_core.deployment.topology import INSTANT, LinkSpec
from physis_core.plan.admission import Admission
from physis_core.plan.arrivals import device_memory, stream_of
from physis_core.plan.config import PlanConfig, SimulationFields, StreamGroup
from physis_core.plan.requests import AdmissionPolicy, Admitted, StreamRequest
from physis_core.plan.simulation import scenario_of
from physis_core.plan.slo_check import phase
from physis_core.sim.figures import figures
from physis_core.sim.simulator import Simulator
from physis_core.types import Refused, UserError

_WARMUP_SHARE = 1 / 6
"""Of the simulated time: left out of the figures, as the pipelines fill and the pacers learn."""


def deployment_fields(
    config: PlanConfig, admitted: Mapping[str, Sequence[Admitted]], folder: Path
) -> DeploymentFields:
    """What a plan decided, as the file that runs it. Paths in it are relative to `folder`.

    Args:
        admitted: the streams that have a place, by the name of their group.

    Raises:
        UserError: none has a place, or nothing says what runs as one of the models.
    """
    groups = [group for group in config.streams if admitted.get(group.name)]
    if not groups:
        raise UserError("streams", [g.name for g in config.streams], "none of them has a place")
    used = {group.model for group in groups}
    routes: dict[str, RouteEntry] = {}
    name_of: dict[tuple[str, tuple[int, ...], tuple[int, ...]], str] = {}
    streams = []
    for group in groups:
        names = []
        for one in admitted[group.name]:
            key = (group.model, one.plan.partition.rank_of, one.devices)
            if key not in name_of:
                name = name_of[key] = f"{group.model}-{len(name_of)}"
                routes[name] = RouteEntry(model=key[0], ranks=key[1], devices=key[2])
            names.append(name_of[key])
        streams.append(_stream(group, names))
    pool, device = config.pool, config.device
    return DeploymentFields(
        models={
            name: _model(f"models.{name}", config, name, profile, folder)
            for name, profile in config.models.items()
            if name in used
        },
        devices=tuple(
            DeviceEntry(
                kind=f"cuda:{number % pool.devices_per_host}" if device == "cuda" else device,
                worker=0 if device == "emulated" else number,
                host=f"host{pool.host_of(number)}" if pool.devices > pool.devices_per_host else "",
            )
            for number in range(pool.devices)
        ),
        routes=routes,
        streams=tuple(streams),
        engine=EngineEntry(
            workers=0 if device == "emulated" else None, max_batch=config.policy.max_batch
        ),
        links=LinksFields(fast=_link(pool.fast), slow=_link(pool.slow)),
        memory_gib=pool.memory_bytes / 2**30,
        margin=config.policy.margin,
    )


def _stream(group: StreamGroup, routes: Sequence[str]) -> StreamEntry:
    return StreamEntry(
        name=group.name, slo=group.level, routes=tuple(routes), priority=group.priority
    )


def _model(
    where: str, config: PlanConfig, name: str, profile: ModelProfile, folder: Path
) -> ModelEntry:
    plain = profile.as_plain()
    run = config.runs.get(name)
    if run is not None:
        # A family's name stays as it is; a path is written as seen from the file.
        ref = run.ref(config.folder)
        model = ref.family
        if ref.checkpoint is not None:
            model = os.path.relpath(Path(ref.checkpoint).resolve(), folder.resolve())
        return ModelEntry(model=model, config=run.config, profile=plain)
    if config.device != "emulated":
        raise UserError(f"{where}.model", None, f"is needed: what runs on {config.device} devices")
    # Nothing is computed on emulated devices: only steps, blocks and KV mode matter.
    shape = {"steps": profile.steps, "blocks": profile.blocks, "kv": profile.kv}
    return ModelEntry(model="synthetic", config=shape, profile=plain)


def _link(link: LinkSpec) -> LinkFields | None:
    if link == INSTANT:
        return None
    return LinkFields(latency_us=link.latency_s * 1e6, bandwidth_gb_s=link.bandwidth_bytes_s / 1e9)


def simulate_deployed(
    planned: PlannedDeployment, *, seconds: float | None = None, seed: int | None = None
) -> dict[str, Any]:
    """Run all streams of a deployment on a virtual clock. `refused`: those that admission would not
    have let in, beside the ones before them; they run all the same.

    Raises:
        UserError: there is no stream, or a model has no profile.
    """
    deployment = planned.deployment
    if not planned.streams:
        raise UserError("streams", [], "needs at least one")
    for name in deployment.models:
        if name not in planned.profiles:
            raise UserError(f"models.{name}.profile", None, "a simulation needs one")
    fields = SimulationFields()
    fields = structs.replace(
        fields,
        seconds=fields.seconds if seconds is None else seconds,
        seed=fields.seed if seed is None else seed,
    )
    fields = structs.replace(fields, warmup_s=fields.seconds * _WARMUP_SHARE)
    admission = Admission(
        deployment.pool(planned.memory_bytes, planned.fast, planned.slow),
        {name: planned.profiles[name] for name in deployment.models},
        AdmissionPolicy(max_batch=deployment.max_batch, margin=planned.margin, advise=False),
    )
    simulator = Simulator(
        scenario_of(
            admission,
            fields,
            max_batch=deployment.max_batch,
            boundary_credits=deployment.credits,
        )
    )
    _, place_of = deployment.places()
    refused = []
    for number, stream in enumerate(planned.streams):
        route = deployment.routes[stream.route]
        request = StreamRequest(
            stream_id=stream.stream_id, model=stream.model, slo=stream.slo, priority=stream.priority
        )
        devices = tuple(place_of[device] for device in route.device_of_rank)
        outcome = admission.request_at(request, route.partition, devices)
        if isinstance(outcome, Refused):
            refused.append(
                {
                    "at_s": 0.0,
                    "stream": stream.stream_id,
                    "model": stream.model,
                    **asdict(outcome),
                }
            )
            plan = admission.planners[stream.model].evaluate(route.partition, "given")
            outcome = Admitted(request=request, plan=plan, devices=devices)
        opens_s = phase(number) * 0.5 * stream.slo.period_s
        opened = stream_of(outcome, admission, open_s=opens_s)
        simulator.at(opens_s, lambda spec=opened: simulator.open(spec))  # type: ignore[misc]
    # Process time is only reported; nothing in the simulation depends on it.
    start_s = time.process_time()
    simulator.run()
    cpu_s = time.process_time() - start_s
    memory, free_s = admission.fragmentation()
    return {
        **figures(simulator, device_memory(admission)),
        "admitted": len(planned.streams) - len(refused),
        "most_open": len(planned.streams),
        "refused": refused,
        "refusal_rate": len(refused) / len(planned.streams),
        "fragmentation": [{"at_s": 0.0, "stranded_memory": memory, "stranded_time": free_s}],
        "cpu_s": cpu_s,
        "tasks_per_s": simulator.tasks / cpu_s if cpu_s > 0.0 else 0.0,
    }
