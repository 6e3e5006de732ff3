"""What runs where: plain data that the engine writes once and every worker process reads.

A deployment names its models, the devices with the worker process that hosts each, and one or more
routes. A route is a model, a partition of it and the device of each virtual rank; a stream keeps
its route for its whole life. Streams of different models share devices, and each batch runs one
block of one model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import msgspec

from physis_core.decoding import decode
from physis_core.deployment.topology import LinkSpec, Pool
from physis_core.model.registry import ModelRef, describe
from physis_core.pipeline.costs import CostTable
from physis_core.pipeline.partition import Partition, make_partition
from physis_core.types import StageGraph, UserError

LinkKind = Literal["gloo", "nccl"]
WorkersFrom = Literal["spawn", "elsewhere"]
RecoveryKind = Literal["none", "snapshot", "rebuild"]
ONLY_MODEL = "model"
"""The name of a model where there is one and nobody named it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """`kind` is `cpu`, `cuda:N` or `emulated`; `worker` is the process that hosts the device;
    `host` names its host where there are several.
    """

    kind: str
    worker: int = 0
    host: str = ""

    def __post_init__(self) -> None:
        index = self.kind.removeprefix("cuda:")
        if self.kind not in ("cpu", "emulated") and (index == self.kind or not index.isdigit()):
            raise UserError("device", self.kind, "must be one of cpu, cuda:N, emulated")
        if self.worker < 0:
            raise UserError("worker", self.worker, "must not be below 0")

    @property
    def emulated(self) -> bool:
        return self.kind == "emulated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """`device_of_rank[r]` is the index of the device that runs virtual rank r of `model`."""

    partition: Partition
    device_of_rank: tuple[int, ...]
    model: str = ONLY_MODEL

    def __post_init__(self) -> None:
        if len(self.device_of_rank) != self.partition.ranks:
            raise UserError(
                "device_of_rank", self.device_of_rank, f"needs {self.partition.ranks} devices"
            )

    def device_of(self, stage: int) -> int:
        return self.device_of_rank[self.partition.rank_of[stage]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Models by name, devices and routes, and how the workers run.

    Each block of each model has a number of its own, its key: those of the first model are 0 ..
    L-1, those of the next one follow.

    workers: processes; 0 runs every device in one thread of the engine's own process.
    workers_from: `spawn` starts them here as child processes; `elsewhere` waits for workers that
        torchrun starts, on this host or others, with the shared key in PHYSIS_KEY on both sides.
    front_host, front_port: where the engine listens for its workers; every worker must reach the
        host. Port 0 takes a free one.
    link: transport between workers.
    credits: chunks of one stream that may wait between two neighbouring stages on different
        devices.
    max_batch: most tasks in one batch; 1 keeps outputs equal to the reference bit for bit.
    costs: seconds by key and batch size, for predictions and for emulated devices; None: measured
        at start.
    noise: relative standard deviation of a task's duration on emulated devices, drawn from
        `noise_seed` for each chunk and stage.
    recovery: for the streams of a lost worker. `none`: they end. Otherwise the worker is started
        again and they continue in a new epoch, with the KV of the last `snapshot`, or with KV that
        they `rebuild` from their last outputs.
    snapshot_every: chunks from one snapshot to the next.
    respawns: consecutive starts of one worker before the engine gives it up.
    silence_s: a worker that is not heard of for so long counts as lost. One whose process runs, as
        this host shows, has at least 5 s.
    bind_cores: each worker computes on `threads` cores of its own. For hosts that run nothing else:
        other processes are not kept off these cores.
    """

    models: Mapping[str, ModelRef]
    devices: tuple[DeviceSpec, ...]
    routes: tuple[Route, ...]
    workers: int = 0
    workers_from: WorkersFrom = "spawn"
    front_host: str = "127.0.0.1"
    front_port: int = 0
    link: LinkKind = "gloo"
    credits: int = 2
    max_batch: int = 1
    costs: Mapping[int, Mapping[int, float]] | None = None
    noise: float = 0.0
    noise_seed: int = 0
    threads: int = 1
    recovery: RecoveryKind = "none"
    snapshot_every: int = 8
    respawns: int = 3
    bind_cores: bool = False
    silence_s: float = 1.0

    def __post_init__(self) -> None:
        if not self.devices:
            raise UserError("devices", self.devices, "needs at least one")
        if not self.routes:
            raise UserError("routes", self.routes, "needs at least one")
        graphs: dict[str, StageGraph] = {}
        for number, route in enumerate(self.routes):
            if route.model not in self.models:
                known = ", ".join(self.models) or "there is none"
                raise UserError(f"routes[{number}].model", route.model, f"must be one of {known}")
            if graphs.setdefault(route.model, route.partition.graph) != route.partition.graph:
                raise UserError(
                    f"routes[{number}]",
                    route.partition.graph,
                    "its model has another graph",
                )
        for name in self.models:
            if name not in graphs:
                raise UserError(f"models.{name}", name, "no route runs it")
        for name, kinds in (
            ("link", LinkKind),
            ("workers_from", WorkersFrom),
            ("recovery", RecoveryKind),
        ):
            if getattr(self, name) not in get_args(kinds):
                known = ", ".join(get_args(kinds))
                raise UserError(name, getattr(self, name), f"must be one of {known}")
        if self.workers_from == "elsewhere" and self.workers < 1:
            raise UserError("workers", self.workers, "workers from elsewhere are at least 1")
        if not 0 <= self.front_port < 65536:
            raise UserError("front_port", self.front_port, "must be in 0..65535")
        if self.recovery != "none" and (self.workers < 1 or self.workers_from != "spawn"):
            raise UserError(
                "recovery",
                self.recovery,
                "only workers that the engine starts as processes can be restarted",
            )
        if self.bind_cores and (self.workers < 1 or self.workers_from != "spawn"):
            raise UserError(
                "bind_cores", True, "only workers that the engine starts as processes are bound"
            )
        for name in ("credits", "max_batch", "threads", "snapshot_every", "respawns"):
            if getattr(self, name) < 1:
                raise UserError(name, getattr(self, name), "must be at least 1")
        if not self.silence_s >= 0.5:
            raise UserError("silence_s", self.silence_s, "must be at least 0.5 s")
        if not 0.0 <= self.noise < 0.3:
            raise UserError("noise", self.noise, "must be in [0, 0.3): durations stay positive")
        for spec in self.devices:
            if spec.worker >= max(self.workers, 1):
                raise UserError("worker", spec.worker, f"there are {self.workers} workers")
        if any(d.emulated for d in self.devices) and self.costs is None:
            raise UserError("costs", None, "emulated devices need them")
        for route in self.routes:
            for device in route.device_of_rank:
                if not 0 <= device < len(self.devices):
                    raise UserError(
                        "device_of_rank", device, f"there are {len(self.devices)} devices"
                    )

    def graph_of(self, route: int) -> StageGraph:
        return self.routes[route].partition.graph

    def graphs(self) -> dict[str, StageGraph]:
        """By model."""
        found = {route.model: route.partition.graph for route in self.routes}
        return {name: found[name] for name in self.models}

    def first_keys(self) -> dict[str, int]:
        """By model, the key of its block 0."""
        keys, first = 0, {}
        for name, graph in self.graphs().items():
            first[name] = keys
            keys += graph.blocks
        return first

    def keys_of(self, route: int) -> range:
        """The keys of the blocks of a route's model, in order."""
        first = self.first_keys()[self.routes[route].model]
        return range(first, first + self.graph_of(route).blocks)

    def model_number(self, name: str) -> int:
        """Its place among `models`: short, for what travels with each chunk."""
        return list(self.models).index(name)

    def places(self) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """What has time of its own: a GPU, an emulated device, or a worker's thread with all its
        CPU devices, which take turns. Their names, and by device the number of its own.
        """
        names: dict[str, int] = {}
        number_of = []
        for index, spec in enumerate(self.devices):
            if spec.emulated:
                name = f"device {index}"
            elif spec.kind == "cpu":
                name = f"worker {spec.worker}"
            elif spec.host or self.workers_from == "spawn":
                name = f"{spec.host} {spec.kind}".strip()
            else:
                # Workers that are started elsewhere may be on other hosts, with a cuda:0 each.
                name = f"worker {spec.worker} {spec.kind}"
            number_of.append(names.setdefault(name, len(names)))
        return tuple(names), tuple(number_of)

    def pool(self, memory_bytes: float, fast: LinkSpec, slow: LinkSpec) -> Pool:
        """The devices of `places` as planner and simulator see them."""
        names, place_of = self.places()
        hosts: dict[str, int] = {}
        host_of: dict[int, int] = {}
        for spec, place in zip(self.devices, place_of, strict=True):
            host_of[place] = hosts.setdefault(spec.host, len(hosts))
        return Pool(
            devices=len(names),
            memory_bytes=memory_bytes,
            devices_per_host=len(names),
            fast=fast,
            slow=slow,
            names=names,
            host_numbers=tuple(host_of[place] for place in range(len(names))),
        )

    def cost_table(self) -> CostTable | None:
        return None if self.costs is None else CostTable(self.costs)

    def devices_of(self, worker: int) -> tuple[int, ...]:
        return tuple(i for i, d in enumerate(self.devices) if d.worker == worker)

    def blocks_of(self, device: int) -> dict[str, tuple[int, ...]]:
        """By model, the blocks whose weights the device holds, once each."""
        found: dict[str, set[int]] = {}
        for route in self.routes:
            for rank, d in enumerate(route.device_of_rank):
                if d == device:
                    found.setdefault(route.model, set()).update(route.partition.blocks_of(rank))
        return {name: tuple(sorted(found[name])) for name in self.models if name in found}

    def remote_edges(self) -> tuple[tuple[int, int], ...]:
        """(source device, destination device) pairs of different workers that chunks cross."""
        edges: dict[tuple[int, int], None] = {}
        for route in self.routes:
            for a, b in route.partition.edges():
                source, target = route.device_of_rank[a], route.device_of_rank[b]
                if self.devices[source].worker != self.devices[target].worker:
                    edges[(source, target)] = None
        return tuple(edges)

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Deployment:
        """Raises UserError naming the field that does not fit."""
        try:
            values = msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            raise UserError("deployment", text[:60], f"is not JSON ({error})") from None
        return decode(values, cls, "deployment")


def simple_deployment(
    model: ModelRef,
    *,
    partition: str = "sequential",
    devices: int = 1,
    workers: int = 0,
    device_kind: str = "cpu",
    block_costs: Sequence[float] | None = None,
    **options: Any,
) -> Deployment:
    """One route, one virtual rank per device; each worker hosts a contiguous run of ranks.

    `device_kind` `cuda` gives each worker a GPU of its own: `cuda:0` to the first, `cuda:1` to the
    second. `options` are further fields of `Deployment`. There are fewer ranks, and fewer workers,
    than requested where the partition has no more.
    """
    graph = describe(model).graph
    cut = make_partition(partition, graph, devices, block_costs)
    if workers < 0:
        raise UserError("workers", workers, "must not be below 0")
    used = min(workers, cut.ranks)
    worker_of = [rank * used // cut.ranks for rank in range(cut.ranks)]
    specs = tuple(
        DeviceSpec(kind=f"cuda:{worker}" if device_kind == "cuda" else device_kind, worker=worker)
        for worker in worker_of
    )
    route = Route(partition=cut, device_of_rank=tuple(range(cut.ranks)))
    return Deployment(
        models={ONLY_MODEL: model}, devices=specs, routes=(route,), workers=used, **options
    )
