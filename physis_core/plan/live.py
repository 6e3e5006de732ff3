"""The planner's admission at the door of a running engine: the same code, with the places given.

A running engine has its routes already (which stage is on which device), so a new stream is not
placed anew: it takes the place of its route, and is admitted if memory, time and the simulation say
so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from physis_core.plan.admission import Admission, Policy, StreamRequest
from physis_core.plan.partition import Partition
from physis_core.plan.profile import ModelProfile
from physis_core.plan.slo import Meaning, Slo
from physis_core.plan.topology import Pool
from physis_core.runtime.stream import StreamConfig
from physis_core.types import Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRoute:
    """A route of the deployment: its partition and the device of each rank."""

    partition: Partition
    devices: tuple[int, ...]


@dataclass(slots=True)
class LiveAdmission:
    """Give `admit` to the engine, and `leave` every stream that closed.

    `count` and `per_chunk` say what a chunk of this model holds, for the words of a refusal.
    Free-running streams have no period to keep; they are admitted and counted with none of the
    time.
    """

    pool: Pool
    profile: ModelProfile
    routes: tuple[LiveRoute, ...]
    count: Meaning = "action_chunks"
    per_chunk: float = 1.0
    policy: Policy = field(default_factory=Policy)
    _admission: Admission = field(init=False)

    def __post_init__(self) -> None:
        self._admission = Admission(self.pool, {self.profile.name: self.profile}, self.policy)

    @property
    def admit(self) -> Callable[[StreamConfig], Refused | None]:
        return self._admit

    def _admit(self, config: StreamConfig) -> Refused | None:
        if config.period_s is None or config.release != "periodic":
            return None
        if config.stream_id in self._admission.admitted:
            # The engine knows best which streams are open: this one must have closed.
            self._admission.leave(config.stream_id)
        route = self.routes[config.route]
        request = StreamRequest(
            stream_id=config.stream_id,
            model=self.profile.name,
            slo=Slo.of_period(self.count, self.per_chunk, config.period_s),
            priority=config.priority,
        )
        outcome = self._admission.request_at(request, route.partition, route.devices)
        return outcome if isinstance(outcome, Refused) else None

    def leave(self, stream_id: str) -> None:
        if stream_id in self._admission.admitted:
            self._admission.leave(stream_id)
