"""Interpolation between two trajectory points: linear, cubic or quintic by what both give."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from physis_core.types import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class MotionState:
    """Arrays [joints] of rad, rad/s and rad/s^2; None where not given."""

    position: Array
    velocity: Array | None = None
    acceleration: Array | None = None


def interpolate(
    from_s: float, a: MotionState, to_s: float, b: MotionState, now_s: float
) -> MotionState:
    """The state at `now_s`, clamped into [from_s, to_s], on the segment from `a` to `b`.

    Positions alone give a line, velocities at both ends a cubic, accelerations as well a quintic.
    """
    span = to_s - from_s
    t = min(max(now_s - from_s, 0.0), span)
    zero = np.zeros_like(a.position)
    if span <= 0.0:
        c: tuple[Array, ...] = (b.position, zero, zero, zero, zero, zero)
    elif a.velocity is None or b.velocity is None:
        c = (a.position, (b.position - a.position) / span, zero, zero, zero, zero)
    elif a.acceleration is None or b.acceleration is None:
        gap = b.position - a.position
        c = (
            a.position,
            a.velocity,
            (3.0 * gap - (2.0 * a.velocity + b.velocity) * span) / span**2,
            (-2.0 * gap + (a.velocity + b.velocity) * span) / span**3,
            zero,
            zero,
        )
    else:
        # What is left of position, velocity and acceleration for the three highest terms.
        gap = b.position - a.position - a.velocity * span - 0.5 * a.acceleration * span**2
        speed = b.velocity - a.velocity - a.acceleration * span
        push = b.acceleration - a.acceleration
        c = (
            a.position,
            a.velocity,
            0.5 * a.acceleration,
            (20.0 * gap - 8.0 * speed * span + push * span**2) / (2.0 * span**3),
            (-30.0 * gap + 14.0 * speed * span - 2.0 * push * span**2) / (2.0 * span**4),
            (12.0 * gap - 6.0 * speed * span + push * span**2) / (2.0 * span**5),
        )
    return MotionState(
        position=c[0] + t * (c[1] + t * (c[2] + t * (c[3] + t * (c[4] + t * c[5])))),
        velocity=c[1] + t * (2 * c[2] + t * (3 * c[3] + t * (4 * c[4] + t * 5 * c[5]))),
        acceleration=2 * c[2] + t * (6 * c[3] + t * (12 * c[4] + t * 20 * c[5])),
    )
