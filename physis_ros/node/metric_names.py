"""Every metric that the nodes expose: its name, kind, labels and meaning.

The reference page, the dashboard and the alert rules are checked against this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from physis_core.observe.histogram import HistogramCounts

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """`name` without the `_total` of a counter. `unit`: the end of the name, empty for counts."""

    name: str
    kind: Kind
    help: str
    node: str
    labels: tuple[str, ...] = ()
    unit: str = ""

    @property
    def exposed(self) -> tuple[str, ...]:
        """The names of its series."""
        if self.kind == "counter":
            return (f"{self.name}_total",)
        if self.kind == "histogram":
            return tuple(f"{self.name}_{end}" for end in ("bucket", "count", "sum"))
        return (self.name,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One series now. `family`: a name of `FAMILIES`; `labels`: a value for each of its labels."""

    family: str
    value: float | HistogramCounts
    labels: Mapping[str, str] = field(default_factory=dict)


def _table(*rows: tuple[str, Kind, str, str, str, str]) -> dict[str, Family]:
    return {
        name: Family(
            name=name, kind=kind, unit=unit, labels=tuple(labels.split()), node=node, help=text
        )
        for name, kind, unit, labels, node, text in rows
    }


_E, _B, _S = "engine_node, world_node", "buffer_node", "safety_node"
FAMILIES = _table(
    ("physis_node_active", "gauge", "", "node", "every node", "1 while the node is active"),
    (
        *("physis_output_interval_seconds", "histogram", "seconds", "stream", _B),
        "Time between two chunks at the engine's exit; no latency",
    ),
    (
        *("physis_response_latency_seconds", "histogram", "seconds", "stream", _B),
        "From an observation's entry into the engine to the chunk's completion",
    ),
    (
        *("physis_age_part_seconds", "histogram", "seconds", "stream part", _B),
        "Parts of the action age: capture, queue, response, handoff",
    ),
    (
        *("physis_action_age_seconds", "histogram", "seconds", "stream at", _B),
        "Action age at the hand-off of a chunk and at each servo tick",
    ),
    (
        *("physis_rate_hertz", "gauge", "hertz", "stream of", _B),
        "Rates of sensor, replan, chunk and servo",
    ),
    ("physis_buffer_depth_seconds", "gauge", "seconds", "stream", _B, "Motion planned ahead"),
    ("physis_chunks", "counter", "", "stream", _B, "Chunks accepted"),
    ("physis_chunks_dropped", "counter", "", "stream", _B, "Chunks refused by the buffer"),
    ("physis_chunk_gaps", "counter", "", "stream", _B, "Chunk numbers that never came"),
    ("physis_deadline_misses", "counter", "", "stream", _B, "Chunks completed after delivery time"),
    ("physis_underruns", "counter", "", "stream", _B, "Servo ticks without a valid point"),
    ("physis_playing", "gauge", "", "stream", _B, "1 while the stream plays"),
    (
        *("physis_engine_output_interval_seconds", "histogram", "seconds", "stream", _E),
        "Time between two chunks at the engine's exit; no latency",
    ),
    (
        *("physis_engine_response_latency_seconds", "histogram", "seconds", "stream", _E),
        "From an observation's entry into the engine to the chunk's completion",
    ),
    ("physis_engine_chunks", "counter", "", "stream", _E, "Chunks delivered"),
    ("physis_engine_chunks_dropped", "counter", "", "stream", _E, "Chunks dropped"),
    (
        *("physis_engine_deadline_misses", "counter", "", "stream", _E),
        "Chunks completed after their delivery time",
    ),
    ("physis_engine_chunks_in_flight", "gauge", "", "stream", _E, "Chunks between entry and exit"),
    ("physis_engine_workers", "gauge", "", "", _E, "Workers of the deployment"),
    ("physis_engine_workers_alive", "gauge", "", "", _E, "Workers that answer"),
    ("physis_engine_overloaded", "gauge", "", "", _E, "1 while the engine reports overload"),
    ("physis_engine_queue_tasks", "gauge", "", "device", _E, "Tasks that wait for the device"),
    (
        *("physis_engine_device_busy_seconds", "counter", "seconds", "device", _E),
        "Time in which the device computed",
    ),
    (
        *("physis_engine_device_memory_bytes", "gauge", "bytes", "device of", _E),
        "Memory by use: weights, kv, activations, workspace",
    ),
    ("physis_engine_batch_tasks", "histogram", "", "device", _E, "Tasks in a batch"),
    ("physis_safety_verdict", "gauge", "", "", _S, "0 OK, 1 LIMIT, 2 HOLD, 3 STOP"),
    ("physis_safety_latched", "gauge", "", "", _S, "1 while a STOP is latched"),
    ("physis_safety_enabled", "gauge", "", "", _S, "1 while armed"),
    (
        *("physis_safety_commands", "counter", "", "verdict", _S),
        "Commands: accepted (forwarded), of them limited; rejected",
    ),
    ("physis_safety_trips", "counter", "", "", _S, "Times the verdict rose to HOLD or STOP"),
    ("physis_safety_ticks", "counter", "", "", _S, "Ticks of the loop"),
    ("physis_safety_lost_ticks", "counter", "", "", _S, "Ticks that the loop missed"),
    (
        *("physis_safety_loop_jitter_seconds", "histogram", "seconds", "", _S),
        "How late a tick of the loop woke up",
    ),
)
