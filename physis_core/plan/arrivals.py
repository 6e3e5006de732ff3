"""Streams that arrive at a running simulation and leave it, admitted by the engine's own
admission."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from physis_core.plan.admission import Admission
from physis_core.plan.requests import Admitted, StreamRequest
from physis_core.sim.scenario import SimStream
from physis_core.sim.simulator import Simulator
from physis_core.types import Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A stream asks to enter at `at_s` and leaves after `stay_s`."""

    request: StreamRequest
    at_s: float
    stay_s: float = math.inf


def poisson_arrivals(
    kinds: Sequence[StreamRequest], *, rate_hz: float, mean_stay_s: float, end_s: float, seed: int
) -> list[Arrival]:
    """Independent arrivals at `rate_hz` until `end_s`, with exponential stays; kinds are drawn
    evenly.
    """
    random = np.random.default_rng([seed, 3])
    out: list[Arrival] = []
    now_s = 0.0
    while True:
        now_s += float(random.exponential(1.0 / rate_hz))
        if now_s >= end_s:
            return out
        kind = kinds[int(random.integers(len(kinds)))]
        request = StreamRequest(
            stream_id=f"{kind.stream_id}@{len(out)}",
            model=kind.model,
            slo=kind.slo,
            priority=kind.priority,
        )
        stay_s = max(1e-3, float(random.exponential(mean_stay_s)))
        out.append(Arrival(request=request, at_s=now_s, stay_s=stay_s))


@dataclass(slots=True)
class Arrivals:
    """Opens arriving streams in a running simulation, and records which were refused."""

    admission: Admission
    simulator: Simulator
    sensor_period_s: float = 0.0
    sensor_delay_s: float = 0.0
    refused: list[dict[str, Any]] = field(default_factory=list)
    fragmentation: list[dict[str, float]] = field(default_factory=list)
    admitted: int = 0
    most_open: int = 0

    def expect(self, arrivals: Iterable[Arrival]) -> None:
        for arrival in arrivals:
            self.simulator.at(arrival.at_s, lambda a=arrival: self._arrive(a))  # type: ignore[misc]

    def _arrive(self, arrival: Arrival) -> None:
        now_s = self.simulator.clock.now_s()
        request = arrival.request
        state = self.simulator.overload_state
        outcome: Admitted | Refused
        if not state.admit:
            outcome = Refused(
                reason=f"the engine is {state.level}: device {state.where} falls behind",
                short_resource="time",
                device=f"device {state.where}",
            )
        else:
            outcome = self.admission.request(request)
        if isinstance(outcome, Refused):
            self.refused.append(
                {
                    "at_s": now_s,
                    "stream": request.stream_id,
                    "model": request.model,
                    **asdict(outcome),
                }
            )
        else:
            self.admitted += 1
            self.simulator.open(
                stream_of(
                    outcome,
                    self.admission,
                    open_s=now_s,
                    sensor_period_s=self.sensor_period_s,
                    sensor_delay_s=self.sensor_delay_s,
                )
            )
            if arrival.stay_s < math.inf:
                self.simulator.at(now_s + arrival.stay_s, lambda: self._leave(request.stream_id))
        self.note_fragmentation(now_s)

    def _leave(self, stream_id: str) -> None:
        self.simulator.close(stream_id)
        # Its resources are free at once, although chunks in flight run on for up to a response.
        self.admission.leave(stream_id)
        self.note_fragmentation(self.simulator.clock.now_s())

    def note_fragmentation(self, now_s: float) -> None:
        memory, time = self.admission.fragmentation()
        self.most_open = max(self.most_open, len(self.admission.admitted))
        self.fragmentation.append(
            {
                "at_s": now_s,
                "open": len(self.admission.admitted),
                "stranded_memory": memory,
                "stranded_time": time,
            }
        )


def stream_of(
    admitted: Admitted,
    admission: Admission,
    *,
    open_s: float = 0.0,
    sensor_period_s: float = 0.0,
    sensor_delay_s: float = 0.0,
) -> SimStream:
    """A stream of the full simulation, with an allowance for the streams that share its devices."""
    placed = admitted.placed
    profile = admission.models[placed.model]
    first = admission.placement.tables.first_key[placed.model]
    response_s = admitted.plan.response_s
    return SimStream(
        stream_id=placed.stream_id,
        kind=placed.model,
        graph=profile.graph,
        device_of=placed.device_of,
        block_keys=tuple(range(first, first + profile.blocks)),
        period_s=placed.period_s,
        credits=math.ceil(4.0 * response_s / placed.period_s) + 4,
        priority=placed.priority,
        open_s=open_s,
        hidden_bytes=profile.hidden_bytes,
        sensor_period_s=sensor_period_s,
        sensor_delay_s=sensor_delay_s,
        expected_response_s=admitted.plan.relaxed_response_s * 1.5,
        margin_s=0.25 * placed.period_s,
    )


def device_memory(admission: Admission) -> dict[int, dict[str, float]]:
    """Bytes by device and use, for the streams that are open now."""
    out: dict[int, dict[str, float]] = {}
    weights: dict[int, set[tuple[str, int]]] = {}
    for admitted in admission.admitted.values():
        profile = admission.models[admitted.request.model]
        for rank, device in enumerate(admitted.devices):
            use = out.setdefault(
                device, {"weights": 0.0, "kv": 0.0, "activations": 0.0, "workspace": 0.0}
            )
            stages = admitted.plan.partition.stages_of(rank)
            blocks = admitted.plan.partition.blocks_of(rank)
            use["kv"] += profile.kv_bytes_of(stages)
            use["activations"] += profile.activation_bytes
            for block in blocks:
                if (admitted.request.model, block) not in weights.setdefault(device, set()):
                    weights[device].add((admitted.request.model, block))
                    use["weights"] += profile.block_costs[block].weight_bytes
            shared = (admitted.request.model, -1)
            if shared not in weights[device]:
                weights[device].add(shared)
                use["weights"] += profile.shared_weight_bytes
    return out
