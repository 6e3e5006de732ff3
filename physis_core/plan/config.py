"""The YAML of `physis plan` and `physis simulate`: pool, models, streams, policy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from physis_core.deployment.fields import Fields
from physis_core.deployment.topology import INSTANT, LinkSpec, Pool
from physis_core.plan.admission import Policy, StreamRequest
from physis_core.plan.analytic import BACKBONES, DeviceModel, analytic_profile, read_device
from physis_core.plan.profile import ModelProfile, load_profile
from physis_core.plan.slo import Slo, read_slo, same_meaning
from physis_core.types import UserError

GOALS = ("fewest_devices", "shortest_interval", "shortest_response")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamGroup:
    """`copies` equal streams."""

    name: str
    model: str
    slo: Slo
    copies: int
    priority: int

    def requests(self) -> list[StreamRequest]:
        return [
            StreamRequest(
                stream_id=self.name if self.copies == 1 else f"{self.name}-{i}",
                model=self.model,
                slo=self.slo,
                priority=self.priority,
            )
            for i in range(self.copies)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanConfig:
    """What is planned for."""

    pool: Pool
    models: dict[str, ModelProfile]
    streams: tuple[StreamGroup, ...]
    policy: Policy
    goal: str


def read_plan(fields: Fields, folder: Path) -> PlanConfig:
    """Profiles named by relative paths are looked for beside the file, in `folder`."""
    fields.only("device", "pool", "models", "streams", "policy", "goal", "simulate")
    device = read_device(fields.fields("device")) if "device" in fields else None
    pool = _read_pool(fields.fields("pool"), device)
    models = {
        name: _read_model(name, entry, device, folder)
        for name, entry in fields.named("models").items()
    }
    if not models:
        raise UserError(fields.name("models"), {}, "needs at least one")
    streams = tuple(_read_stream(entry, models) for entry in fields.each("streams", []))
    names = [stream.name for stream in streams]
    for name in names:
        if names.count(name) > 1:
            raise UserError(fields.name("streams"), name, "stands there twice")
    by_model: dict[str, Slo] = {}
    for stream in streams:
        # Streams of one model stand in one table, so they must count the same thing.
        same_meaning(by_model.setdefault(stream.model, stream.slo), stream.slo)
    return PlanConfig(
        pool=pool,
        models=models,
        streams=streams,
        policy=_read_policy(fields.fields("policy")),
        goal=fields.text("goal", "fewest_devices", choices=GOALS),
    )


def _read_pool(fields: Fields, device: DeviceModel | None) -> Pool:
    fields.only("devices", "memory_gib", "devices_per_host", "fast", "slow")
    devices = fields.integer("devices", least=1, most=100_000)
    memory = fields.number(
        "memory_gib", None if device is None else device.memory_bytes / 2**30, above=0.0
    )
    if memory is None:
        raise UserError(fields.name("memory_gib"), None, "is needed where no device is described")
    return Pool(
        devices=devices,
        memory_bytes=memory * 2**30,
        devices_per_host=fields.integer("devices_per_host", devices, least=1),
        fast=_read_link(fields, "fast"),
        slow=_read_link(fields, "slow"),
    )


def _read_link(fields: Fields, name: str) -> LinkSpec:
    if name not in fields:
        return INSTANT
    link = fields.fields(name).only("latency_us", "bandwidth_gb_s")
    return LinkSpec(
        latency_s=link.number("latency_us", least=0.0) / 1e6,
        bandwidth_bytes_s=link.number("bandwidth_gb_s", above=0.0) * 1e9,
    )


def _read_model(
    name: str, fields: Fields, device: DeviceModel | None, folder: Path
) -> ModelProfile:
    computed = ("backbone", "tokens_per_latent", "steps", "latents_per_chunk")
    fields.only("profile", *computed)
    if ("profile" in fields) == ("backbone" in fields):
        both = "profile" in fields
        raise UserError(
            fields.name("profile"),
            fields.raw("profile", None),
            "give either backbone or profile" + (", not both" if both else ""),
        )
    if "profile" in fields:
        # A profile says the rest itself.
        fields.only("profile")
        path = folder / fields.text("profile")
        if not path.is_file():
            raise UserError(fields.name("profile"), str(path), "there is no such file")
        return load_profile(path)
    if device is None:
        raise UserError("device", None, f"is needed to compute {fields.name('backbone')}")
    backbone = BACKBONES[fields.text("backbone", choices=tuple(BACKBONES))]
    tokens = fields.integer("tokens_per_latent", backbone.tokens_per_latent, least=1)
    if tokens != backbone.tokens_per_latent:
        backbone = replace(backbone, tokens_per_latent=tokens, note="tokens as given")
    steps = fields.integer("steps", 4, least=1, most=64)
    latents = fields.integer("latents_per_chunk", 1, least=1)
    with fields.naming():
        return analytic_profile(backbone, device, steps=steps, latents_per_chunk=latents)


def _read_stream(fields: Fields, models: dict[str, ModelProfile]) -> StreamGroup:
    fields.only("name", "model", "slo", "copies", "priority")
    return StreamGroup(
        name=fields.text("name"),
        model=fields.text("model", choices=tuple(models)),
        slo=read_slo(fields.fields("slo")),
        copies=fields.integer("copies", 1, least=1, most=10_000),
        priority=fields.integer("priority", 0, least=-1000, most=1000),
    )


def _read_policy(fields: Fields) -> Policy:
    fields.only(
        "max_batch",
        "margin",
        "most_devices_per_stream",
        "shared_overhead",
        "shared_memory_gib",
        "fit",
        "eager_batching",
        "verify",
    )
    return Policy(
        max_batch=fields.integer("max_batch", 16, least=1, most=64),
        margin=fields.number("margin", 0.15, least=0.0, most=0.9),
        most_devices=fields.integer("most_devices_per_stream", 24, least=1),
        shared_overhead=fields.number("shared_overhead", 0.0, least=0.0),
        shared_bytes=fields.number("shared_memory_gib", 0.0, least=0.0) * 2**30,
        fit=fields.text("fit", "best", choices=("best", "spread")),  # type: ignore[arg-type]
        eager_batching=fields.boolean("eager_batching", False),
        verify=fields.boolean("verify", True),
    )
