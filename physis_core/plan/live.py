"""The planner's admission for a running engine: the same code, with the devices given.

A running engine already has its routes (which stage is on which device). So a new stream is not
placed: it uses the devices of its route, and is admitted if memory, time and the simulation allow.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from physis_core.deployment.deployment import Deployment
from physis_core.deployment.profile import ModelProfile
from physis_core.deployment.slo import Meaning, Slo
from physis_core.deployment.topology import INSTANT, LinkSpec, Pool
from physis_core.pipeline.partition import Partition
from physis_core.plan.admission import Admission
from physis_core.plan.advice import nearest_at
from physis_core.plan.requests import AdmissionPolicy, StreamRequest
from physis_core.types import Refused, UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRoute:
    """A route of the deployment: its model, its partition and the device of each rank."""

    model: str
    partition: Partition
    devices: tuple[int, ...]


class StreamToAdmit(Protocol):
    """What admission needs to know of a stream; the engine's `StreamConfig` has it."""

    @property
    def stream_id(self) -> str: ...
    @property
    def period_s(self) -> float | None: ...
    @property
    def route(self) -> int: ...
    @property
    def priority(self) -> int: ...


@dataclass(slots=True)
class LiveAdmission:
    """Admission of an engine's streams. `admit` takes as long as a decision does and may be called
    from any thread; `leave` only records what the next decision will see.

    `profiles`: by model. `count` and `per_chunk` say what a chunk holds, for the text of a refusal.
    `max_response_s`: upper bound of a stream's response.
    Free-running streams have no period to keep: they are admitted, and no time is reserved for
    them.
    """

    pool: Pool
    profiles: Mapping[str, ModelProfile]
    routes: tuple[LiveRoute, ...]
    count: Meaning = "action_chunks"
    per_chunk: float = 1.0
    max_response_s: float = math.inf
    policy: AdmissionPolicy = field(default_factory=AdmissionPolicy)
    _admission: Admission = field(init=False)
    _open: dict[str, StreamToAdmit] = field(init=False, default_factory=dict)
    _left: deque[StreamToAdmit] = field(init=False, default_factory=deque)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)

    def __post_init__(self) -> None:
        # The advice is this class's own: a longer period on the same route, never other devices.
        policy = replace(self.policy, advise=False)
        self._admission = Admission(self.pool, self.profiles, policy)

    def admit(self, config: StreamToAdmit) -> Refused | None:
        if config.period_s is None or not 0 <= config.route < len(self.routes):
            # Without a period nothing is guaranteed; the engine refuses an unknown route.
            return None
        with self._lock:
            self._remove_left()
            if config.stream_id in self._open:
                return Refused(reason=f"stream_id: {config.stream_id!r}: is open already")
            route = self.routes[config.route]
            request = self._request(config)
            outcome = self._admission.request_at(request, route.partition, route.devices)
            if not isinstance(outcome, Refused):
                self._open[config.stream_id] = config
                return None
            return replace(outcome, nearest=self._nearest(request, config.route))

    def leave(self, config: StreamToAdmit) -> None:
        """The stream that was admitted with this `config` object has ended. May be called twice."""
        self._left.append(config)

    def _remove_left(self) -> None:
        while self._left:
            config = self._left.popleft()
            # Identity: a new stream may have the same name.
            if self._open.get(config.stream_id) is config:
                del self._open[config.stream_id]
                self._admission.leave(config.stream_id)

    def _request(self, config: StreamToAdmit) -> StreamRequest:
        assert config.period_s is not None
        slo = Slo.of_period(self.count, self.per_chunk, config.period_s)
        return StreamRequest(
            stream_id=config.stream_id,
            model=self.routes[config.route].model,
            slo=replace(slo, max_response_s=self.max_response_s),
            priority=config.priority,
        )

    def _nearest(self, request: StreamRequest, number: int) -> str:
        """What this route could admit instead, and how many streams it carries now."""
        route = self.routes[number]
        here = sum(config.route == number for config in self._open.values())
        fewer = f"no more than the {here} stream{'' if here == 1 else 's'} that it carries now"
        offer = nearest_at(self._admission, request, route.partition, route.devices)
        if not offer or not here:
            return offer or fewer
        return f"{offer}, or {fewer}"


def live_admission(
    deployment: Deployment,
    profiles: Mapping[str, ModelProfile],
    *,
    fast: LinkSpec = INSTANT,
    slow: LinkSpec = INSTANT,
    memory_bytes: float = math.inf,
    max_response_s: float = math.inf,
    margin: float = 0.15,
) -> LiveAdmission:
    """The admission of an engine with this deployment.

    One device here is what has time of its own (`Deployment.places`), with `memory_bytes` of
    memory. `profiles`: by model. `fast`, `slow`: links within a host and between hosts.

    Raises:
        UserError: the profile is of another model, or a value is out of range.
    """
    for name, graph in deployment.graphs().items():
        profile = profiles.get(name)
        if profile is None:
            raise UserError("profile", None, f"the model {name} needs one")
        if profile.graph != graph:
            raise UserError(
                "profile",
                profile.name,
                f"has {profile.steps} steps x {profile.blocks} blocks with {profile.kv} KV; the"
                f" model has {graph.steps} x {graph.blocks} with {graph.kv}",
            )
    if not max_response_s > 0.0:
        raise UserError("max_response_s", max_response_s, "must be positive")
    _, place_of = deployment.places()
    return LiveAdmission(
        pool=deployment.pool(memory_bytes, fast, slow),
        profiles=profiles,
        routes=tuple(
            LiveRoute(
                model=route.model,
                partition=route.partition,
                devices=tuple(place_of[device] for device in route.device_of_rank),
            )
            for route in deployment.routes
        ),
        max_response_s=max_response_s,
        policy=AdmissionPolicy(max_batch=deployment.max_batch, margin=margin),
    )
