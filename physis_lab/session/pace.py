"""How fast a demo may run on this machine, and whether it kept that pace.

Pure decisions: processor capacity in, rates out. `speed` measures the capacity.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FULL_CORES = 1.0
"""Capacity that the demo needs at its full pace, in cores of the reference machine."""
FIXED_CORES = 0.35
"""The part of it that no pace changes: the safety loop, discovery, recording, the screen."""
DIVISORS = (1, 2, 3)
SLOWEST_CONTROLLER_HZ = 50.0
"""The least that the simulated arm accepts."""
KEPT = 0.8
"""Share of a requested rate below which the rate was not kept."""
MOST_LATE = 0.3
"""Share of late chunks, or of lost servo points, above which the pace was not kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The rates of a run: `divisor` 1 is what the model was trained for."""

    divisor: int
    period_s: float
    camera_hz: float
    controller_hz: float
    servo_hz: float
    capacity_cores: float
    enough: bool
    """False where even this pace needs more than the machine has."""

    def parameters(self) -> tuple[tuple[str, str, float], ...]:
        """(node, parameter, value) of what differs from the full pace."""
        if self.divisor == 1:
            return ()
        return (
            ("engine_node", "period_s", self.period_s),
            ("policy_node", "period_s", self.period_s),
            ("robot_sim_node", "camera_hz", self.camera_hz),
            ("robot_sim_node", "controller_hz", self.controller_hz),
            ("buffer_node", "servo_hz", self.servo_hz),
        )

    def line(self) -> str:
        """One line for the person who waits."""
        rates = (
            f"a chunk every {1e3 * self.period_s:.0f} ms, camera {self.camera_hz:.0f} Hz,"
            f" servo {self.servo_hz:.0f} Hz"
        )
        have = f"this machine offers {self.capacity_cores:.1f} reference cores"
        if self.divisor == 1:
            return f"Full pace: {rates} ({have})"
        slower = f"Paced to 1/{self.divisor}: {rates} ({have}, full pace needs {FULL_CORES:.1f})"
        return slower if self.enough else f"{slower}; even this may be too fast"


def choose_pace(capacity_cores: float, full: Pace) -> Pace:
    """The fastest pace that the capacity carries; the slowest one where none does."""
    for divisor in DIVISORS:
        need_cores = FIXED_CORES + (FULL_CORES - FIXED_CORES) / divisor
        enough = need_cores <= capacity_cores
        if enough or divisor == DIVISORS[-1]:
            break
    return Pace(
        divisor=divisor,
        period_s=full.period_s * divisor,
        camera_hz=full.camera_hz / divisor,
        controller_hz=max(SLOWEST_CONTROLLER_HZ, full.controller_hz / divisor),
        servo_hz=full.servo_hz / divisor,
        capacity_cores=capacity_cores,
        enough=enough,
    )


def why_too_slow(report: Mapping[str, Any], pace: Pace) -> str:
    """What of the pace the machine did not keep, in a few words; empty where it kept all."""
    rates = report["rates_hz"]
    asked = {
        "camera": (rates["sensor"], pace.camera_hz),
        "chunk": (rates["chunk"], 1.0 / pace.period_s),
        "servo": (rates["servo"], pace.servo_hz),
    }
    reasons = [
        f"{name} rate {got_hz:.1f} Hz of {wanted_hz:.1f}"
        for name, (got_hz, wanted_hz) in asked.items()
        if math.isnan(got_hz) or got_hz < KEPT * wanted_hz
    ]
    chunks = report["chunks"]
    if chunks and report["deadline_misses"] > MOST_LATE * chunks:
        reasons.append(f"{report['deadline_misses']} of {chunks} chunks late")
    return ", ".join(reasons)
