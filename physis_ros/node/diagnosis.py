"""A node's reports: statuses on /diagnostics, and percentiles in status messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue

from physis_core import types
from physis_ros.msg import Percentiles

OK = DiagnosticStatus.OK
WARN = DiagnosticStatus.WARN
ERROR = DiagnosticStatus.ERROR
STALE = DiagnosticStatus.STALE


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """One status on /diagnostics. `level` is OK, WARN, ERROR or STALE."""

    part: str
    level: bytes
    message: str
    values: Mapping[str, object] = field(default_factory=dict)


def diagnostic_array(
    found: Sequence[Diagnosis], *, node: str, namespace: str, stamp: Any
) -> DiagnosticArray:
    """`node`: its full name, the prefix of each status; `namespace`: the robot's, used as the
    hardware id."""
    message = DiagnosticArray()
    message.header.stamp = stamp
    for diagnosis in found:
        message.status.append(
            DiagnosticStatus(
                level=diagnosis.level,
                name=f"{node}: {diagnosis.part}",
                message=diagnosis.message,
                hardware_id=namespace.strip("/"),
                values=[
                    KeyValue(key=key, value=str(value)) for key, value in diagnosis.values.items()
                ],
            )
        )
    return message


def percentiles_message(found: types.Percentiles) -> Percentiles:
    return Percentiles(p50=found.p50, p99=found.p99, p999=found.p999, max=found.max, n=found.n)
