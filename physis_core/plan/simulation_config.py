"""The `simulate` part of a plan's YAML."""

from __future__ import annotations

import math
from dataclasses import dataclass

from physis_core.deployment.fields import Fields
from physis_core.plan.admission import StreamRequest
from physis_core.plan.arrivals import Arrival, PoissonArrivals
from physis_core.plan.config import PlanConfig
from physis_core.sim.noise import NoiseSpec
from physis_core.sim.scenario import Stall
from physis_core.types import UserError

MOST_ARRIVALS = 1e6
"""Expected number in a simulation; more are a slip of the pen, and would fill the memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimConfig:
    """`arrivals` come beside the streams of the plan, which ask to enter at the start."""

    seconds: float
    warmup_s: float
    seed: int
    noise: NoiseSpec
    stalls: tuple[Stall, ...]
    arrivals: tuple[Arrival, ...]
    sensor_period_s: float
    sensor_delay_s: float
    boundary_credits: int
    per_batch_s: float
    overload_s: float


def read_simulation(
    fields: Fields, plan: PlanConfig, *, seconds: float | None = None, seed: int | None = None
) -> SimConfig:
    """`seconds` and `seed` from the command line go before those of the file."""
    fields.only(
        "seconds",
        "warmup_s",
        "seed",
        "noise",
        "stalls",
        "arrivals",
        "sensor_hz",
        "sensor_delay_ms",
        "boundary_credits",
        "per_batch_us",
        "overload_check_s",
    )
    length_s = fields.number("seconds", 60.0, above=0.0) if seconds is None else seconds
    chosen = fields.integer("seed", 0) if seed is None else seed
    warmup_s = fields.number("warmup_s", 0.0, least=0.0)
    if warmup_s >= length_s:
        raise UserError(fields.name("warmup_s"), warmup_s, f"must be below {length_s:g} seconds")
    stalls = tuple(_read_stall(entry, plan) for entry in fields.each("stalls", []))
    sensor_hz = fields.number("sensor_hz", None, above=0.0)
    config = SimConfig(
        seconds=length_s,
        warmup_s=warmup_s,
        seed=chosen,
        noise=_read_noise(fields.fields("noise")),
        stalls=stalls,
        arrivals=tuple(_read_arrivals(fields.fields("arrivals"), plan, length_s, chosen)),
        sensor_period_s=0.0 if sensor_hz is None else 1.0 / sensor_hz,
        sensor_delay_s=fields.number("sensor_delay_ms", 0.0, least=0.0) / 1e3,
        boundary_credits=fields.integer("boundary_credits", 2, least=1),
        per_batch_s=fields.number("per_batch_us", 0.0, least=0.0) / 1e6,
        overload_s=fields.number("overload_check_s", 0.25, above=0.0),
    )
    if not plan.streams and not config.arrivals:
        raise UserError("streams", [], "needs at least one, here or in simulate.arrivals")
    return config


def _read_noise(fields: Fields) -> NoiseSpec:
    fields.only("relative", "p99_ratio", "tail_probability", "tail_factor")
    relative = fields.number("relative", 0.0, least=0.0)
    p99_ratio = fields.number("p99_ratio", 1.0, least=1.0)
    tail_probability = fields.number("tail_probability", 0.0, least=0.0)
    tail_factor = fields.number("tail_factor", 1.0, least=1.0)
    with fields.naming():
        return NoiseSpec(
            relative=relative,
            p99_ratio=p99_ratio,
            tail_probability=tail_probability,
            tail_factor=tail_factor,
        )


def _read_stall(fields: Fields, plan: PlanConfig) -> Stall:
    fields.only("device", "at_s", "seconds")
    return Stall(
        device=fields.integer("device", most=plan.pool.devices - 1),
        at_s=fields.number("at_s", least=0.0),
        seconds=fields.number("seconds", above=0.0),
    )


def _read_arrivals(fields: Fields, plan: PlanConfig, end_s: float, seed: int) -> list[Arrival]:
    fields.only("poisson", "trace")
    kinds = {group.name: group for group in plan.streams}
    arrivals: list[Arrival] = []
    if "poisson" in fields:
        poisson = fields.fields("poisson").only("streams", "rate_per_s", "mean_stay_s")
        names = poisson.listed("streams")
        if not names:
            raise UserError(poisson.name("streams"), names, "needs at least one")
        for i, name in enumerate(names):
            if not isinstance(name, str) or name not in kinds:
                raise UserError(
                    f"{poisson.name('streams')}[{i}]", name, f"one of {', '.join(kinds)}"
                )
        process = PoissonArrivals(
            rate_hz=poisson.number("rate_per_s", above=0.0, most=MOST_ARRIVALS / end_s),
            mean_stay_s=poisson.number("mean_stay_s", above=0.0),
        )
        requests = [_request(plan, name, name) for name in names]
        arrivals.extend(process.draw(requests, end_s, seed))
    for i, entry in enumerate(fields.each("trace", [])):
        entry.only("stream", "at_s", "stay_s")
        name = entry.text("stream", choices=tuple(kinds))
        arrivals.append(
            Arrival(
                request=_request(plan, name, f"{name}@trace{i}"),
                at_s=entry.number("at_s", least=0.0),
                stay_s=entry.number("stay_s", math.inf, above=0.0),
            )
        )
    return arrivals


def _request(plan: PlanConfig, name: str, stream_id: str) -> StreamRequest:
    group = next(group for group in plan.streams if group.name == name)
    return StreamRequest(
        stream_id=stream_id, model=group.model, slo=group.slo, priority=group.priority
    )
