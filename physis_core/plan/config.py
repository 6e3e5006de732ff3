"""A plan file, as `physis plan` and `physis simulate` read it: pool, models, streams, policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from physis_core.decoding import Count, NotNegative, Part, Positive, decode
from physis_core.deployment.file import LinkFields, RunFields
from physis_core.deployment.profile import ModelProfile, load_profile
from physis_core.deployment.slo import Slo, SloFields, same_meaning
from physis_core.deployment.topology import INSTANT, Pool
from physis_core.files import read_file
from physis_core.model.backbones import BACKBONES
from physis_core.plan.analytic import DeviceModel, analytic_profile
from physis_core.plan.requests import AdmissionPolicy, StreamRequest
from physis_core.sim.noise import NoiseSpec
from physis_core.types import UserError

DeviceKind = Literal["emulated", "cpu", "cuda"]
Goal = Literal["fewest_devices", "shortest_interval", "shortest_response"]
Index = Annotated[int, Meta(ge=0)]


class PoolFields(Part, frozen=True, kw_only=True):
    """`kind`: what the devices are, where the plan is to be run."""

    devices: Annotated[int, Meta(ge=1, le=100_000)]
    kind: DeviceKind = "emulated"
    memory_gib: Positive | None = None
    devices_per_host: Count | None = None
    fast: LinkFields | None = None
    slow: LinkFields | None = None


class ModelFields(Part, frozen=True, kw_only=True):
    """A measured `profile` (a file), or a public `backbone` whose profile is computed.

    `model` says what runs, where the plan is to be run: a file or folder, or a family's name, whose
    fields are in `config`.
    """

    profile: str | None = None
    backbone: str | None = None
    tokens_per_latent: Count | None = None
    steps: Annotated[int, Meta(ge=1, le=64)] | None = None
    latents_per_chunk: Count | None = None
    model: str | None = None
    config: dict[str, Any] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.profile is None) == (self.backbone is None):
            both = "" if self.profile is None else ", not both"
            raise UserError("profile", self.profile, f"give either backbone or profile{both}")
        if self.backbone is not None and self.backbone not in BACKBONES:
            raise UserError("backbone", self.backbone, f"must be one of {', '.join(BACKBONES)}")
        for name in ("tokens_per_latent", "steps", "latents_per_chunk"):
            if self.profile is not None and getattr(self, name) is not None:
                raise UserError(name, getattr(self, name), "a profile contains it already")


class StreamGroup(Part, frozen=True, kw_only=True):
    """`copies` equal streams."""

    name: str
    model: str
    level: SloFields = msgspec.field(name="slo")
    copies: Annotated[int, Meta(ge=1, le=10_000)] = 1
    priority: Annotated[int, Meta(ge=-1000, le=1000)] = 0

    @property
    def slo(self) -> Slo:
        return self.level.slo()

    def request(self, stream_id: str) -> StreamRequest:
        return StreamRequest(
            stream_id=stream_id, model=self.model, slo=self.slo, priority=self.priority
        )

    def requests(self) -> list[StreamRequest]:
        if self.copies == 1:
            return [self.request(self.name)]
        return [self.request(f"{self.name}-{i}") for i in range(self.copies)]


class PolicyFields(Part, frozen=True, kw_only=True):
    max_batch: Annotated[int, Meta(ge=1, le=64)] = 16
    margin: Annotated[float, Meta(ge=0, le=0.9)] = 0.15
    most_devices_per_stream: Count = 24
    shared_overhead: NotNegative = 0.0
    shared_memory_gib: NotNegative = 0.0
    fit: Literal["best", "spread"] = "best"
    eager_batching: bool = False
    verify: bool = True

    def policy(self) -> AdmissionPolicy:
        return AdmissionPolicy(
            max_batch=self.max_batch,
            margin=self.margin,
            most_devices=self.most_devices_per_stream,
            shared_overhead=self.shared_overhead,
            shared_bytes=self.shared_memory_gib * 2**30,
            fit=self.fit,
            eager_batching=self.eager_batching,
            verify=self.verify,
        )


class StallFields(Part, frozen=True, kw_only=True):
    device: Index
    at_s: NotNegative
    seconds: Positive


class PoissonFields(Part, frozen=True, kw_only=True):
    """Streams of the named groups arrive at random and stay for an exponential time."""

    streams: Annotated[tuple[str, ...], Meta(min_length=1)]
    rate_per_s: Positive
    mean_stay_s: Positive


class ArrivalFields(Part, frozen=True, kw_only=True):
    stream: str
    at_s: NotNegative
    stay_s: Positive | None = None


class ArrivalsFields(Part, frozen=True, kw_only=True):
    poisson: PoissonFields | None = None
    trace: tuple[ArrivalFields, ...] = ()


class SimulationFields(Part, frozen=True, kw_only=True):
    """What `physis simulate` needs beside the plan. `arrivals` come beside the plan's streams,
    which ask to enter at the start.
    """

    seconds: Positive = 60.0
    warmup_s: NotNegative = 0.0
    seed: Index = 0
    noise: NoiseSpec = msgspec.field(default_factory=NoiseSpec)
    stalls: tuple[StallFields, ...] = ()
    arrivals: ArrivalsFields = ArrivalsFields()
    sensor_hz: Positive | None = None
    sensor_delay_ms: NotNegative = 0.0
    boundary_credits: Count = 2
    per_batch_us: NotNegative = 0.0
    overload_check_s: Positive = 0.25


class PlanFields(Part, frozen=True, kw_only=True):
    """A whole plan file."""

    pool: PoolFields
    models: dict[str, ModelFields]
    device: DeviceModel | None = None
    streams: tuple[StreamGroup, ...] = ()
    policy: PolicyFields = PolicyFields()
    goal: Goal = "fewest_devices"
    simulate: SimulationFields | None = None

    def __post_init__(self) -> None:
        if not self.models:
            raise UserError("models", {}, "needs at least one")
        if self.device is None and self.pool.memory_gib is None:
            raise UserError("pool.memory_gib", None, "is needed where no device is described")
        names = [stream.name for stream in self.streams]
        levels: dict[str, Slo] = {}
        for i, stream in enumerate(self.streams):
            if stream.model not in self.models:
                known = ", ".join(self.models)
                raise UserError(f"streams[{i}].model", stream.model, f"must be one of {known}")
            if stream.name in names[:i]:
                raise UserError(f"streams[{i}].name", stream.name, "is the name of another stream")
            # Streams of one model share a table, so they must count the same thing.
            same_meaning(levels.setdefault(stream.model, stream.slo), stream.slo)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanConfig:
    """A plan file with its profiles loaded. `simulate` is None if the file has no such part.

    `runs`: by model, what runs where the plan is run, as far as the file says so. `folder`: that of
    the file.
    """

    pool: Pool
    models: Mapping[str, ModelProfile]
    streams: tuple[StreamGroup, ...]
    policy: AdmissionPolicy
    goal: Goal
    simulate: SimulationFields | None
    device: DeviceKind
    runs: Mapping[str, RunFields]
    folder: Path


def load_plan(path: Path) -> PlanConfig:
    """Profiles named by relative paths are looked for beside the file."""
    return read_plan(read_file(path), path.parent)


def read_plan(values: Any, folder: Path) -> PlanConfig:
    """`values` is the file's content; relative paths of profiles are below `folder`."""
    plan = decode(values, PlanFields)
    pool, memory_gib = plan.pool, plan.pool.memory_gib
    if memory_gib is None:
        assert plan.device is not None
        memory_gib = plan.device.memory_gib
    return PlanConfig(
        pool=Pool(
            devices=pool.devices,
            memory_bytes=memory_gib * 2**30,
            devices_per_host=pool.devices_per_host or pool.devices,
            fast=INSTANT if pool.fast is None else pool.fast.spec(),
            slow=INSTANT if pool.slow is None else pool.slow.spec(),
        ),
        models={
            name: _profile(f"models.{name}", model, plan.device, folder)
            for name, model in plan.models.items()
        },
        streams=plan.streams,
        policy=plan.policy.policy(),
        goal=plan.goal,
        simulate=plan.simulate,
        device=pool.kind,
        runs={
            name: RunFields(model=model.model, config=model.config)
            for name, model in plan.models.items()
            if model.model is not None
        },
        folder=folder,
    )


def _profile(
    field: str, model: ModelFields, device: DeviceModel | None, folder: Path
) -> ModelProfile:
    if model.profile is not None:
        path = folder / model.profile
        if not path.is_file():
            raise UserError(f"{field}.profile", str(path), "there is no such file")
        return load_profile(path)
    assert model.backbone is not None
    if device is None:
        raise UserError("device", None, f"is needed to compute {field}.backbone")
    backbone = BACKBONES[model.backbone].with_tokens(model.tokens_per_latent)
    latents = model.latents_per_chunk or 1
    try:
        return analytic_profile(backbone, device, steps=model.steps or 4, latents_per_chunk=latents)
    except UserError as error:
        raise UserError(f"{field}.{error.field}", error.value, error.reason) from None
