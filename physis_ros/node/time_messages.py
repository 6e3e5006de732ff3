"""Stamps: nanoseconds of ROS time <-> messages, and steady time -> ROS time."""

from __future__ import annotations

from dataclasses import dataclass

from builtin_interfaces.msg import Duration, Time

from physis_core.types import UserError

_NS = 1_000_000_000
_MAX_SECONDS = 2**31 - 1


def time_to_ns(stamp: Time | Duration) -> int:
    return int(stamp.sec) * _NS + int(stamp.nanosec)


def ns_to_time(stamp_ns: int) -> Time:
    """Raises UserError where a ROS stamp can not hold it (before 1970 or after 2038)."""
    seconds, nanoseconds = divmod(int(stamp_ns), _NS)
    if not 0 <= seconds <= _MAX_SECONDS:
        raise UserError("stamp_ns", stamp_ns, "does not fit a ROS stamp")
    return Time(sec=seconds, nanosec=nanoseconds)


def seconds_to_duration(duration_s: float) -> Duration:
    seconds, nanoseconds = divmod(round(duration_s * 1e9), _NS)
    return Duration(sec=seconds, nanosec=nanoseconds)


def duration_to_seconds(duration: Duration) -> float:
    return float(duration.sec) + float(duration.nanosec) / 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyToRos:
    """One moment seen on both clocks: places other steady instants in ROS time.

    Good for instants near that moment only: the clocks drift apart, and simulated time runs at a
    rate of its own. Take a new pair for each message.
    """

    ros_ns: int
    steady_s: float

    def ros_ns_at(self, steady_s: float) -> int:
        return self.ros_ns + round((steady_s - self.steady_s) * 1e9)
