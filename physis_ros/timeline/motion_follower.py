"""Follows a reference, tick by tick, within velocity, acceleration and position limits.

However the reference jumps, the motion has no step in position, and no step in velocity above
acceleration limit x tick. So every hand-over between chunks is smooth. If the reference is within
the limits, the motion equals it.

The law is the discrete time-optimal one for a double integrator (J. Han, "From PID to active
disturbance rejection control", IEEE Transactions on Industrial Electronics 56(3), 2009, the
function fst there), fed forward with the reference's own acceleration. Acceleration is constant
within a tick, so q' = q + (v + v') h / 2 holds exactly, and a cubic through the ticks is the same
motion.
"""

from __future__ import annotations

import math

from physis_ros.robot.joint_limits import RobotLimits


class JointFollower:
    """The law for one joint with ticks of `tick_s`. Holds no state between calls.

    `correction_share` is the part of the acceleration that removes a distance to the reference;
    the rest stays free for following a reference that accelerates itself.
    """

    def __init__(
        self,
        *,
        tick_s: float,
        lower: float,
        upper: float,
        velocity: float,
        acceleration: float,
        correction_share: float,
    ) -> None:
        self._tick_s = tick_s
        self._lower = lower
        self._upper = upper
        self._velocity = velocity
        self._acceleration = acceleration
        self._correction = correction_share * acceleration
        self._linear = self._correction * tick_s * tick_s
        # The largest change of velocity in one tick.
        self._most = acceleration * tick_s
        # Further from a position limit than this, no velocity within the limits can reach it.
        self._far = velocity * velocity / (2.0 * acceleration) + 2.0 * tick_s * velocity
        self._far += acceleration * tick_s * tick_s

    def follow(
        self,
        position: float,
        velocity: float,
        begin: float,
        begin_velocity: float,
        end: float,
        end_velocity: float,
    ) -> tuple[float, float]:
        """Position and velocity after the tick, given the reference at its begin and end.

        One flat function with few calls: it runs for every joint at every tick of every new plan,
        between a chunk and the robot.
        """
        h = self._tick_s
        if end > self._upper:
            end = self._upper
        elif end < self._lower:
            end = self._lower
        # The reference may not have constant acceleration within the tick; the difference is known
        # beforehand and belongs to the distance that is removed.
        drift = begin + 0.5 * h * (begin_velocity + end_velocity) - end
        closing = velocity - begin_velocity
        # Shifted by half a tick of motion, the exact double integrator has the form of the law.
        y = position - begin + drift + 0.5 * h * closing
        linear = self._linear
        if -linear <= y <= linear:
            a = h * closing + y
        else:
            bend = 0.5 * (math.sqrt(linear * (linear + 8.0 * abs(y))) - linear)
            a = h * closing + (bend if y > 0.0 else -bend)
        if -linear <= a <= linear:
            change = -a / h
        else:
            change = -self._correction * h if a > 0.0 else self._correction * h
        most = self._most
        # A reference that accelerates beyond the limit is followed up to the limit. Added whole, it
        # would leave no room for the correction, and the motion would drift away.
        forward = end_velocity - begin_velocity
        if forward > most:
            forward = most
        elif forward < -most:
            forward = -most
        after = velocity + forward + change
        if after > self._velocity:
            after = self._velocity
        elif after < -self._velocity:
            after = -self._velocity
        above, below = self._upper - position, position - self._lower
        if above < self._far:
            after = min(after, self._fastest_towards(above, velocity))
        if below < self._far:
            after = max(after, -self._fastest_towards(below, -velocity))
        if after > velocity + most:
            after = velocity + most
        elif after < velocity - most:
            after = velocity - most
        return position + 0.5 * h * (velocity + after), after

    def brake(self, position: float, velocity: float) -> tuple[float, float]:
        """Position and velocity after a tick of braking; the velocity ends at exactly zero."""
        change = self._most
        if abs(velocity) <= change:
            after = 0.0
        else:
            after = velocity - math.copysign(change, velocity)
        return position + 0.5 * self._tick_s * (velocity + after), after

    def _fastest_towards(self, room: float, velocity: float) -> float:
        """The largest velocity after this tick from which braking still ends before the limit."""
        h, most = self._tick_s, self._acceleration
        left = room - 0.5 * h * velocity - most * h * h / 8.0
        inside = h * h / 4.0 + 2.0 * left / most
        fastest = most * (math.sqrt(inside) - 0.5 * h) if inside > 0.0 else -math.inf
        # Zero is always allowed: the acceleration limit is applied last.
        return max(fastest, 0.0)


def followers(
    limits: RobotLimits, tick_s: float, correction_share: float
) -> tuple[JointFollower, ...]:
    """One follower per joint, in the order of the limits."""
    return tuple(
        JointFollower(
            tick_s=tick_s,
            lower=limits.lower[joint],
            upper=limits.upper[joint],
            velocity=limits.velocity[joint],
            acceleration=limits.acceleration[joint],
            correction_share=correction_share,
        )
        for joint in range(len(limits.names))
    )
