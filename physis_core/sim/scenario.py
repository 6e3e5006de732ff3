"""What is simulated: devices, streams, costs, links and everything that goes wrong, as plain
data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from physis_core.deployment.topology import INSTANT, LinkSpec, Pool
from physis_core.pipeline.costs import CostTable
from physis_core.sim.noise import NoiseSpec, SpeedTrace
from physis_core.types import StageGraph, UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class SimStream:
    """One stream and where its stages run. `block_keys[l]` names the weights of block l in the
    costs.

    `kind` groups the stages in the figures, for example by model.
    `period_s` None: free running. `credits`: most chunks in flight, the injector's limit.
    `sensor_period_s`: observations come at this rate (0: always a fresh one), each `sensor_delay_s`
    old. `max_action_age_s`: cap of the pacer. `expected_response_s` None: the sum of its stages.
    """

    stream_id: str
    graph: StageGraph
    device_of: tuple[int, ...]
    block_keys: tuple[int, ...]
    period_s: float | None
    credits: int
    kind: str = ""
    priority: int = 0
    open_s: float = 0.0
    close_s: float = math.inf
    max_chunks: int | None = None
    hidden_bytes: float = 0.0
    sensor_period_s: float = 0.0
    sensor_delay_s: float = 0.0
    max_observation_age_s: float = math.inf
    max_action_age_s: float = math.inf
    expected_response_s: float | None = None
    margin_s: float = 0.0
    first_responses: int = 16

    def __post_init__(self) -> None:
        if len(self.device_of) != self.graph.stages:
            raise UserError("device_of", len(self.device_of), f"needs {self.graph.stages} entries")
        if len(self.block_keys) != self.graph.blocks:
            raise UserError(
                "block_keys", len(self.block_keys), f"needs {self.graph.blocks} entries"
            )
        if self.credits < 1:
            raise UserError("credits", self.credits, "must be at least 1")
        if self.close_s <= self.open_s:
            raise UserError("close_s", self.close_s, f"must be after open_s {self.open_s}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """The device starts nothing for `seconds` from `at_s` on; a batch that runs then ends that much
    later.
    """

    device: int
    at_s: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Everything that the simulator needs.

    Args:
        costs: seconds (p50) by block key and batch size, or a table of them.
        end_s: simulated time.
        boundary_credits: chunks of one stream that may wait between two stages on different
            devices.
        speed: measured slowdown of each device over time.
        per_batch_s: dispatch overhead before each batch.
        per_send_s: how long a device starts nothing after it sent a chunk to another device.
        per_hop_s: added to each hop between devices.
        per_entry_s: from a chunk's release to its first queue.
        credit_latency_s: from the start of a batch to the arrival of its credits.
        warmup_s: chunks released before it are left out of the figures.
        overload_s: interval of the overload check; 0: no check.
        record_tasks: most task records kept; 0: none.
    """

    pool: Pool
    costs: Mapping[int, Mapping[int, float]] | CostTable
    streams: tuple[SimStream, ...]
    end_s: float
    max_batch: int = 16
    boundary_credits: int = 2
    eager_batching: bool = False
    noise: NoiseSpec = field(default_factory=NoiseSpec)
    speed: SpeedTrace | None = None
    stalls: tuple[Stall, ...] = ()
    per_batch_s: float = 0.0
    per_send_s: float = 0.0
    per_hop_s: float = 0.0
    per_entry_s: float = 0.0
    credit_latency_s: float = 0.0
    seed: int = 0
    warmup_s: float = 0.0
    overload_s: float = 0.0
    record_tasks: int = 1 << 20

    def __post_init__(self) -> None:
        if not 0.0 < self.end_s < math.inf:
            raise UserError("end_s", self.end_s, "must be positive and finite")
        if self.max_batch < 1:
            raise UserError("max_batch", self.max_batch, "must be at least 1")
        if self.boundary_credits < 1:
            raise UserError("boundary_credits", self.boundary_credits, "must be at least 1")
        for stream in self.streams:
            for device in stream.device_of:
                if not 0 <= device < self.pool.devices:
                    raise UserError("device_of", device, f"there are {self.pool.devices} devices")
            for key in stream.block_keys:
                if key not in self.costs:
                    raise UserError("block_keys", key, "has no costs")
        for stall in self.stalls:
            if not 0 <= stall.device < self.pool.devices:
                raise UserError("stalls", stall.device, f"there are {self.pool.devices} devices")


__all__ = ["INSTANT", "LinkSpec", "Pool", "Scenario", "SimStream", "Stall"]
