"""Devices, their hosts, and the cost of a hop between two devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from physis_core.types import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpec:
    """A hop costs `latency_s` plus bytes / `bandwidth_bytes_s`."""

    latency_s: float
    bandwidth_bytes_s: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.latency_s < float("inf"):
            raise UserError("latency_s", self.latency_s, "must be finite and not negative")
        if not self.bandwidth_bytes_s > 0.0:
            raise UserError("bandwidth_bytes_s", self.bandwidth_bytes_s, "must be positive")

    def delay_s(self, size_bytes: float) -> float:
        return self.latency_s + size_bytes / self.bandwidth_bytes_s


INSTANT = LinkSpec(latency_s=0.0, bandwidth_bytes_s=float("inf"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Equal devices in hosts of two link levels: `fast` inside a host, `slow` between hosts.

    `memory_bytes` is for weights, KV and activations of one device together. `names` are the
    devices' names in refusals. `host_numbers`: the host of each device, where hosts are not of
    `devices_per_host` devices each.
    """

    devices: int
    memory_bytes: float
    devices_per_host: int
    fast: LinkSpec = INSTANT
    slow: LinkSpec = INSTANT
    names: tuple[str, ...] = ()
    host_numbers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.devices < 1:
            raise UserError("devices", self.devices, "must be at least 1")
        if self.devices_per_host < 1:
            raise UserError("devices_per_host", self.devices_per_host, "must be at least 1")
        if not self.memory_bytes > 0.0:
            raise UserError("memory_bytes", self.memory_bytes, "must be positive")

    def host_of(self, device: int) -> int:
        return self.host_numbers[device] if self.host_numbers else device // self.devices_per_host

    def name_of(self, device: int) -> str:
        return self.names[device] if device < len(self.names) else f"device {device}"

    def link(self, source: int, target: int) -> LinkSpec:
        if source == target:
            return INSTANT
        return self.fast if self.host_of(source) == self.host_of(target) else self.slow

    def hosts(self) -> Sequence[tuple[int, ...]]:
        found: dict[int, list[int]] = {}
        for device in range(self.devices):
            found.setdefault(self.host_of(device), []).append(device)
        return [tuple(found[host]) for host in sorted(found)]
