"""Matches cameras and joint states by stamp, and names the source that prevents a match.

Pure: every call is given the time. A source is one camera (`camera/front`) or one joint
(`joint/elbow_joint`; each has stamps of its own, so that several publishers may share a robot).

A reading is accepted only if its stamp is newer than the source's last one. A reading without a
stamp, with a repeated stamp (a frozen camera looks alive), or with a stamp that goes back or lies
in the future is refused and counted. A source without an accepted reading for `max_age_s` of steady
time is missing. Nothing missing is ever filled in: the result is a whole set, or a reason for each
source that prevents one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from physis_core.types import UserError
from physis_ros.robot.joint_readings import JointReading

T = TypeVar("T")

_CAMERA_DEPTH = 8
_JOINT_DEPTH = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncConfig:
    """The parts of an observation, and how old and how far apart they may be.

    slop_s: largest difference between the stamps of two parts and the reference camera.
    max_age_s: longest steady time since a source's last accepted reading.
    future_s: how far ahead of ROS time a stamp may lie (clocks of two hosts).
    clock_jump_s: a change of (receipt - stamp) between two readings that makes a clock suspect.
    """

    cameras: tuple[str, ...]
    joints: tuple[str, ...]
    slop_s: float
    max_age_s: float
    future_s: float
    clock_jump_s: float = 0.5

    def __post_init__(self) -> None:
        for name in ("cameras", "joints"):
            names = getattr(self, name)
            if len(set(names)) != len(names):
                raise UserError(name, names, "holds a name twice")
        if not self.cameras and not self.joints:
            raise UserError("cameras", self.cameras, "an observation needs a camera or a joint")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part(Generic[T]):
    """An accepted reading of one source and when it came."""

    stamp_ns: int
    receipt_ns: int
    receipt_s: float
    clock_suspect: bool
    value: T


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched(Generic[T]):
    """A whole observation: `images` in the order of the cameras, joints in theirs."""

    images: tuple[T, ...]
    positions: tuple[float, ...]
    velocities: tuple[float, ...] | None
    capture_oldest_ns: int
    capture_newest_ns: int
    receipt_ns: int
    receipt_s: float
    clock_suspect: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmatched:
    """No observation. `reasons` by source; empty where only newer readings are missing."""

    reasons: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class SourceCounts:
    """Accepted and refused readings of a source since the last reset."""

    accepted: int = 0
    unstamped: int = 0
    repeated: int = 0
    back: int = 0
    future: int = 0


class _Source(Generic[T]):
    """Accepted readings of one source, oldest first, and why the last one was refused."""

    def __init__(self, depth: int) -> None:
        self.parts: deque[Part[T]] = deque(maxlen=depth)
        self.counts = SourceCounts()
        self.trouble = ""
        self._offset_ns: int | None = None

    def offer(
        self,
        value: T,
        stamp_ns: int,
        receipt_ns: int,
        receipt_s: float,
        config: SyncConfig,
        clock_step_ns: int,
    ) -> str | None:
        if stamp_ns <= 0:
            # A driver that does not stamp, or simulated time before the first /clock.
            self.counts.unstamped += 1
            return self._refuse("it has no stamp")
        ahead_ns = stamp_ns - receipt_ns
        if ahead_ns > 0 and clock_step_ns > 0:
            # Made since ROS time advanced last: no clock is wrong.
            within_ns = min(ahead_ns, clock_step_ns)
            receipt_ns, ahead_ns = receipt_ns + within_ns, ahead_ns - within_ns
        if ahead_ns > config.future_s * 1e9:
            self.counts.future += 1
            reason = f"its stamp lies {ahead_ns / 1e9:.3f} s in the future"
            if clock_step_ns:
                reason += f" beyond the next step of /clock ({clock_step_ns / 1e9:.3f} s)"
            return self._refuse(reason)
        if self.parts:
            last = self.parts[-1]
            if receipt_s - last.receipt_s > config.max_age_s and stamp_ns != last.stamp_ns:
                # The source was missing meanwhile: accept whatever clock it has now.
                self.parts.clear()
                self._offset_ns = None
            elif stamp_ns == last.stamp_ns:
                self.counts.repeated += 1
                return self._refuse("frozen: it repeats one stamp")
            elif stamp_ns < last.stamp_ns:
                self.counts.back += 1
                back_s = (last.stamp_ns - stamp_ns) / 1e9
                return self._refuse(f"its stamp went back by {back_s:.3f} s")
        jumped = (
            self._offset_ns is not None
            and abs(-ahead_ns - self._offset_ns) > config.clock_jump_s * 1e9
        )
        self._offset_ns = -ahead_ns
        self.counts.accepted += 1
        self.trouble = ""
        self.parts.append(
            Part(
                stamp_ns=stamp_ns,
                receipt_ns=receipt_ns,
                receipt_s=receipt_s,
                clock_suspect=ahead_ns > 0 or jumped,
                value=value,
            )
        )
        return None

    def _refuse(self, reason: str) -> str:
        self.trouble = reason
        return reason

    def why_absent(self, now_s: float, max_age_s: float) -> str | None:
        """None where the source is alive."""
        if not self.parts:
            return self.trouble or "nothing has come yet"
        age_s = now_s - self.parts[-1].receipt_s
        if age_s <= max_age_s:
            return None
        if self.trouble:
            return f"{self.trouble}; nothing new for {age_s:.2f} s"
        return f"silent for {age_s:.2f} s"

    def nearest(self, stamp_ns: int) -> Part[T]:
        """Stamps only grow, and what is looked for is near the end: walk back from there."""
        best = self.parts[-1]
        for part in reversed(self.parts):
            if abs(part.stamp_ns - stamp_ns) > abs(best.stamp_ns - stamp_ns):
                break
            best = part
        return best


class ObservationSync(Generic[T]):
    """See the module docstring. `T` stands for an image (a message not yet decoded)."""

    def __init__(self, config: SyncConfig) -> None:
        self._config = config
        self.reset()

    def reset(self) -> None:
        """Forget every reading and stamp (ROS time jumped)."""
        self._cameras: dict[str, _Source[T]] = {
            name: _Source(_CAMERA_DEPTH) for name in self._config.cameras
        }
        self._joints: dict[str, _Source[JointReading]] = {
            name: _Source(_JOINT_DEPTH) for name in self._config.joints
        }
        self._last: tuple[int, ...] = ()

    def add_image(
        self,
        camera: str,
        image: T,
        *,
        stamp_ns: int,
        receipt_ns: int,
        receipt_s: float,
        clock_step_ns: int = 0,
    ) -> str | None:
        """Return why the reading was refused, or None.

        `clock_step_ns`: the step of a simulated clock. A stamp may lie ahead of ROS time by so
        much, and counts as received at its stamp.
        """
        return self._cameras[camera].offer(
            image, stamp_ns, receipt_ns, receipt_s, self._config, clock_step_ns
        )

    def add_joints(
        self,
        readings: Sequence[JointReading],
        *,
        receipt_ns: int,
        receipt_s: float,
        clock_step_ns: int = 0,
    ) -> dict[str, str]:
        """Return, by joint, why a reading was refused; see `add_image`."""
        refused = {}
        for reading in readings:
            source = self._joints.get(reading.name)
            if source is None:
                continue
            reason = source.offer(
                reading, reading.stamp_ns, receipt_ns, receipt_s, self._config, clock_step_ns
            )
            if reason is not None:
                refused[reading.name] = reason
        return refused

    def note_trouble(self, source: str, reason: str) -> None:
        """A message of this source could not be read; reported while the source is missing."""
        for name, camera in self._cameras.items():
            if source == f"camera/{name}":
                camera.trouble = reason
        for name, joint in self._joints.items():
            if source in ("joint_states", f"joint/{name}"):
                joint.trouble = reason

    def counts(self) -> dict[str, SourceCounts]:
        return {name: source.counts for name, source in self._sources()}

    def faults(self, now_s: float) -> dict[str, str]:
        """The sources that are missing now, each with the reason."""
        found = {}
        for name, source in self._sources():
            reason = source.why_absent(now_s, self._config.max_age_s)
            if reason is not None:
                found[name] = reason
        return found

    def match(self, now_s: float) -> Matched[T] | Unmatched:
        """The newest whole set that was not returned yet, or why there is none.

        The reference is the newest image of the slowest camera (of the joints without cameras);
        every other part is the one nearest to its stamp.
        """
        reasons = self.why_unmatched(now_s)
        if reasons:
            return Unmatched(reasons=reasons)
        cameras, joints = self._nearest()
        identity = tuple(part.stamp_ns for part in cameras or joints)
        if identity == self._last:
            return Unmatched()
        self._last = identity
        return _matched(cameras, joints)

    def why_unmatched(self, now_s: float) -> dict[str, str]:
        """By source, what prevents an observation now; empty where nothing does."""
        reasons = self.faults(now_s)
        if reasons:
            return reasons
        cameras, joints = self._nearest()
        reference_ns = self._reference_ns()
        slop_ns = self._config.slop_s * 1e9
        stamps = [part.stamp_ns for part in cameras] + [part.stamp_ns for part in joints]
        for (name, _), stamp_ns in zip(self._sources(), stamps):
            if abs(stamp_ns - reference_ns) > slop_ns:
                off_s = (stamp_ns - reference_ns) / 1e9
                allowed_s = self._config.slop_s
                reasons[name] = f"its nearest stamp is {off_s:+.3f} s off, {allowed_s:g} s allowed"
        return reasons

    def _reference_ns(self) -> int:
        if self._cameras:
            return min(source.parts[-1].stamp_ns for source in self._cameras.values())
        return min(source.parts[-1].stamp_ns for source in self._joints.values())

    def _nearest(self) -> tuple[tuple[Part[T], ...], tuple[Part[JointReading], ...]]:
        reference_ns = self._reference_ns()
        cameras = tuple(source.nearest(reference_ns) for source in self._cameras.values())
        joints = tuple(source.nearest(reference_ns) for source in self._joints.values())
        return cameras, joints

    def _sources(self) -> list[tuple[str, _Source[T] | _Source[JointReading]]]:
        found: list[tuple[str, _Source[T] | _Source[JointReading]]] = []
        found.extend((f"camera/{name}", camera) for name, camera in self._cameras.items())
        found.extend((f"joint/{name}", joint) for name, joint in self._joints.items())
        return found


def _matched(cameras: tuple[Part[T], ...], joints: tuple[Part[JointReading], ...]) -> Matched[T]:
    velocities: list[float] | None = []
    for part in joints:
        if velocities is not None and part.value.velocity is not None:
            velocities.append(part.value.velocity)
        else:
            velocities = None
    stamps = [part.stamp_ns for part in cameras] + [part.stamp_ns for part in joints]
    receipts_ns = [part.receipt_ns for part in cameras] + [part.receipt_ns for part in joints]
    receipts_s = [part.receipt_s for part in cameras] + [part.receipt_s for part in joints]
    return Matched(
        images=tuple(part.value for part in cameras),
        positions=tuple(part.value.position for part in joints),
        velocities=None if velocities is None else tuple(velocities),
        capture_oldest_ns=min(stamps),
        capture_newest_ns=max(stamps),
        receipt_ns=max(receipts_ns),
        receipt_s=max(receipts_s),
        clock_suspect=any(p.clock_suspect for p in cameras) or any(p.clock_suspect for p in joints),
    )
