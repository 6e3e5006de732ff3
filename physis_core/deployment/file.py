"""A deployment file: models, devices, routes and classes of streams, with their costs.

`physis plan POOL.yaml --out FILE` writes one, a person may write one by hand, and the engine, the
simulator and admission read the same. docs/how-to/deployment.md shows each field.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from msgspec import Meta, field, structs

from physis_core.decoding import Count, NotNegative, Part, Positive, decode
from physis_core.deployment.deployment import (
    Deployment,
    DeviceSpec,
    LinkKind,
    RecoveryKind,
    Route,
    WorkersFrom,
)
from physis_core.deployment.profile import ModelProfile, load_profile, read_profile
from physis_core.deployment.slo import Slo, SloFields
from physis_core.deployment.topology import INSTANT, LinkSpec
from physis_core.files import read_file
from physis_core.model.registry import ModelRef, describe, find_model, registrations
from physis_core.pipeline.partition import Partition, PartitionKind, make_partition
from physis_core.types import StageGraph, UserError

Index = Annotated[int, Meta(ge=0)]
T = TypeVar("T")


class LinkFields(Part, frozen=True, kw_only=True):
    latency_us: NotNegative
    bandwidth_gb_s: Positive

    def spec(self) -> LinkSpec:
        return LinkSpec(
            latency_s=self.latency_us / 1e6, bandwidth_bytes_s=self.bandwidth_gb_s * 1e9
        )


class LinksFields(Part, frozen=True, kw_only=True):
    """Links between devices of one host, and of two. Absent: they cost nothing."""

    fast: LinkFields | None = None
    slow: LinkFields | None = None


class RunFields(Part, frozen=True, kw_only=True):
    """What runs under a model's name: a file or folder, or a registered family by its name."""

    model: str
    config: dict[str, Any] = field(default_factory=dict)

    def ref(self, folder: Path) -> ModelRef:
        """Relative paths are below `folder`."""
        if self.model in registrations():
            return ModelRef(family=self.model, config=self.config)
        ref = find_model(folder / self.model)
        return ModelRef(
            family=ref.family, config={**ref.config, **self.config}, checkpoint=ref.checkpoint
        )


class ModelEntry(RunFields, frozen=True, kw_only=True):
    """`profile`: its costs, a file of `physis profile` or the fields of one."""

    profile: str | dict[str, Any] | None = None

    def loaded_profile(self, where: str, folder: Path) -> ModelProfile | None:
        if self.profile is None:
            return None
        if isinstance(self.profile, str):
            path = folder / self.profile
            if not path.is_file():
                raise UserError(where, str(path), "there is no such file")
            return load_profile(path)
        try:
            return read_profile(self.profile)
        except UserError as error:
            raise UserError(f"{where}.{error.field}", error.value, error.reason) from None


class DeviceEntry(Part, frozen=True, kw_only=True):
    kind: str = "cpu"
    worker: Index = 0
    host: str = ""


class RouteEntry(Part, frozen=True, kw_only=True):
    """`devices[r]` runs rank r. Either `ranks`, the rank of each stage in order, or a `partition`
    that cuts the stages into as many ranks as there are devices.
    """

    model: str
    devices: Annotated[tuple[Index, ...], Meta(min_length=1)]
    partition: PartitionKind | None = None
    ranks: tuple[Index, ...] | None = None

    def cut(self, graph: StageGraph) -> Partition:
        if self.ranks is not None:
            if self.partition is not None:
                raise UserError("partition", self.partition, "give either partition or ranks")
            return Partition(kind="grouped", graph=graph, rank_of=self.ranks)
        if self.partition is None:
            raise UserError("partition", None, "give either partition or ranks")
        made = make_partition(self.partition, graph, len(self.devices))
        if made.ranks != len(self.devices):
            raise UserError(
                "devices",
                list(self.devices),
                f"this model has no {self.partition} partition of more than {made.ranks} ranks",
            )
        return made


class StreamEntry(Part, frozen=True, kw_only=True):
    """A class of equal streams: one for each entry of `routes`."""

    name: str
    slo: SloFields
    routes: Annotated[tuple[str, ...], Meta(min_length=1)]
    priority: Annotated[int, Meta(ge=-1000, le=1000)] = 0


class EngineEntry(Part, frozen=True, kw_only=True):
    """Fields of `Deployment` of the same name. `workers`: processes; absent: as many as the devices
    name; 0: all devices run in the engine's own process.
    """

    workers: Index | None = None
    workers_from: WorkersFrom = "spawn"
    front_host: str = "127.0.0.1"
    front_port: Index = 0
    link: LinkKind = "gloo"
    credits: Count = 2
    max_batch: Count = 8
    threads: Count = 1
    recovery: RecoveryKind = "none"
    snapshot_every: Count = 8
    respawns: Count = 3
    bind_cores: bool = False
    silence_s: Positive = 1.0


class DeploymentFields(Part, frozen=True, kw_only=True):
    """A whole deployment file."""

    models: dict[str, ModelEntry]
    devices: Annotated[tuple[DeviceEntry, ...], Meta(min_length=1)]
    routes: dict[str, RouteEntry]
    streams: tuple[StreamEntry, ...] = ()
    engine: EngineEntry = EngineEntry()
    links: LinksFields = LinksFields()
    memory_gib: Positive | None = None
    margin: Annotated[float, Meta(ge=0, le=0.9)] = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStream:
    """One stream of a class, with the number of its route."""

    stream_id: str
    group: str
    model: str
    route: int
    slo: Slo
    priority: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedDeployment:
    """A deployment file, checked. `profiles` by model, for those that have one. `fast`, `slow`:
    links within a host and between hosts. `memory_bytes`: of each device. `margin`: the share of
    each device's time that admission keeps free.
    """

    deployment: Deployment
    profiles: Mapping[str, ModelProfile]
    streams: tuple[PlannedStream, ...]
    fast: LinkSpec
    slow: LinkSpec
    memory_bytes: float
    margin: float


def is_deployment(path: Path) -> bool:
    """Whether a file is meant as a deployment: it has devices, which a plan does not."""
    values = read_file(path)
    return isinstance(values, Mapping) and "devices" in values


def load_deployment(path: Path) -> PlannedDeployment:
    """Raises UserError with the file, the field and the value that does not fit."""
    values = read_file(path)
    try:
        return read_deployment(values, path.parent)
    except UserError as error:
        raise UserError(f"{path}: {error.field}", error.value, error.reason) from None


def read_deployment(values: Any, folder: Path) -> PlannedDeployment:
    """`values` is the file's content; relative paths are below `folder`."""
    fields = decode(values, DeploymentFields)
    refs: dict[str, ModelRef] = {}
    profiles: dict[str, ModelProfile] = {}
    graphs: dict[str, StageGraph] = {}
    for name, entry in fields.models.items():
        refs[name] = _at(f"models.{name}", partial(entry.ref, folder))
        profile = entry.loaded_profile(f"models.{name}.profile", folder)
        graphs[name] = _at(f"models.{name}", partial(_graph, refs[name]))
        if profile is not None:
            if profile.graph != graphs[name]:
                raise UserError(f"models.{name}.profile", profile.name, "is of another model")
            profiles[name] = profile
    routes = {
        name: _at(f"routes.{name}", partial(_route, entry, graphs))
        for name, entry in fields.routes.items()
    }
    numbers = {name: number for number, name in enumerate(routes)}
    devices = tuple(DeviceSpec(kind=d.kind, worker=d.worker, host=d.host) for d in fields.devices)
    options = fields.engine
    workers = options.workers
    if workers is None:
        workers = max(d.worker for d in devices) + 1
    deployment = Deployment(
        models=refs,
        devices=devices,
        routes=tuple(routes.values()),
        workers=workers,
        costs=_costs(refs, profiles) if any(d.emulated for d in devices) else None,
        **{
            name: getattr(options, name)
            for name in EngineEntry.__struct_fields__
            if name != "workers"
        },
    )
    streams: list[PlannedStream] = []
    for number, group in enumerate(fields.streams):
        where = f"streams[{number}]"
        if group.name in {stream.group for stream in streams}:
            raise UserError(f"{where}.name", group.name, "is the name of another stream")
        streams += _streams(where, group, numbers, deployment)
    fast, slow = fields.links.fast, fields.links.slow
    return PlannedDeployment(
        deployment=deployment,
        profiles=profiles,
        streams=tuple(streams),
        fast=INSTANT if fast is None else fast.spec(),
        slow=INSTANT if slow is None else slow.spec(),
        memory_bytes=math.inf if fields.memory_gib is None else fields.memory_gib * 2**30,
        margin=fields.margin,
    )


def _graph(ref: ModelRef) -> StageGraph:
    return describe(ref).graph


def _route(entry: RouteEntry, graphs: Mapping[str, StageGraph]) -> Route:
    if entry.model not in graphs:
        raise UserError("model", entry.model, f"must be one of {', '.join(graphs)}")
    cut = entry.cut(graphs[entry.model])
    return Route(partition=cut, device_of_rank=entry.devices, model=entry.model)


def _streams(
    where: str, group: StreamEntry, numbers: Mapping[str, int], deployment: Deployment
) -> list[PlannedStream]:
    """One for each entry of `routes`; all of one model."""
    streams: list[PlannedStream] = []
    for i, name in enumerate(group.routes):
        if name not in numbers:
            raise UserError(f"{where}.routes[{i}]", name, f"must be one of {', '.join(numbers)}")
        model = deployment.routes[numbers[name]].model
        if streams and model != streams[0].model:
            raise UserError(
                f"{where}.routes[{i}]", name, f"is of {model}; the others are of {streams[0].model}"
            )
        streams.append(
            PlannedStream(
                stream_id=group.name if len(group.routes) == 1 else f"{group.name}-{i}",
                group=group.name,
                model=model,
                route=numbers[name],
                slo=group.slo.slo(),
                priority=group.priority,
            )
        )
    return streams


def _costs(
    refs: Mapping[str, ModelRef], profiles: Mapping[str, ModelProfile]
) -> dict[int, Mapping[int, float]]:
    """Seconds by key and batch size, for emulated devices."""
    costs: dict[int, Mapping[int, float]] = {}
    for name in refs:
        if name not in profiles:
            raise UserError(f"models.{name}.profile", None, "emulated devices need one")
        for cost in profiles[name].block_costs:
            costs[len(costs)] = cost.p50_s
    return costs


def _at(path: str, read: Callable[[], T]) -> T:
    """What `read` gives; its UserError below `path`."""
    try:
        return read()
    except UserError as error:
        raise UserError(f"{path}.{error.field}", error.value, error.reason) from None


def write_deployment(fields: DeploymentFields, path: Path, comment: str) -> None:
    """Write a file that `load_deployment` reads. `comment` becomes its first line."""
    plain = _plain(fields)
    body = yaml.dump(plain, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    path.write_text(f"# {comment}\n{body}", encoding="utf-8")


class _Dumper(yaml.SafeDumper):
    """Rows of numbers and names on one line, mappings over several."""


def _row(dumper: yaml.SafeDumper, values: list[Any]) -> yaml.Node:
    flat = all(isinstance(value, (int, float, str)) for value in values)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=flat)


_Dumper.add_representer(list, _row)


def _plain(value: Any) -> Any:
    """Structs as mappings of what differs from the defaults."""
    if isinstance(value, Part):
        shown = ((info, getattr(value, info.name)) for info in structs.fields(value))
        return {
            info.encode_name: _plain(entry)
            for info, entry in shown
            if entry is not None and entry not in (info.default, {})
        }
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    return value
