"""The action timeline: places chunks by absolute time and plans one smooth motion from them.

The plan is a grid of servo ticks from now to rest. An accepted chunk changes it from the hand-over
on, the first tick that was not sent yet. Ticks before stay as they were sent, so expired steps of
the chunk drop out. The plan never jumps: JointFollower keeps each tick within the limits, and each
plan ends at rest.

Times are nanoseconds of ROS time, as the chunks are stamped. The caller gives `now_ns`; no clock is
read here.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace

import numpy as np

from physis_ros.robot.joint_limits import RobotLimits
from physis_ros.robot.joint_motion import Floats, hermite
from physis_ros.timeline.chunk_order import ChunkOrder
from physis_ros.timeline.chunk_overlap import reference
from physis_ros.timeline.motion_follower import followers
from physis_ros.timeline.servo_plan import ServoPlan
from physis_ros.timeline.timed_chunk import (
    ChunkRefusal,
    IncomingChunk,
    RefusedChunk,
    TimedChunk,
    check_chunk,
)
from physis_ros.timeline.types import (
    AcceptedChunk,
    ServoPoint,
    TimelineConfig,
    TimelineCounts,
    TimelineWindow,
)

_KEPT_CHUNKS = 8
_REACH_S = 0.3
# Stamps may lie slightly ahead: clock granularity and thread order.
_FUTURE_SLOP_NS = 50_000_000


class ChunkTimeline:
    """Not thread safe: one owner. Empty until the first `rebase` with the commanded state."""

    def __init__(self, limits: RobotLimits, config: TimelineConfig) -> None:
        self.limits = limits
        self.config = config
        self.counts = TimelineCounts()
        self._tick_ns = round(config.tick_s * 1e9)
        self._followers = followers(limits, config.tick_s, config.correction_share)
        self._jump = np.array(limits.jump)
        self._max_age_ns = round(config.max_age_s * 1e9)
        self._chunks: deque[TimedChunk] = deque(maxlen=_KEPT_CHUNKS)
        self._plan: ServoPlan | None = None
        self._replan_from_ns: int | None = None
        self._order = ChunkOrder()
        self._earliest_capture_ns = 0

    @property
    def epoch(self) -> int:
        """Of the newest chunk; 0 before the first."""
        return self._order.epoch

    @property
    def gaps(self) -> int:
        """Chunk ids that never came."""
        return self._order.gaps

    @property
    def started(self) -> bool:
        """True once the commanded state is known."""
        return self._plan is not None

    def rebase(
        self, position: Floats, velocity: Floats, now_ns: int, *, keep_newest: bool = False
    ) -> bool:
        """Restart from a commanded state [joints]: brake from there and drop all chunks.

        With `keep_newest` the plan goes on to the newest chunk instead, if that is not over and no
        jump, so that the robot need not wait for the next one. Returns True if it does.
        """
        newest = self._chunks[-1] if keep_newest and self._chunks else None
        self._chunks.clear()
        state = ServoPlan.from_state(position, velocity, now_ns, self._tick_ns)
        nothing = reference(
            (), np.array([now_ns], dtype=np.int64), self.config.overlap, len(self._followers)
        )
        plan = state.extended(self._followers, nothing, coast_ticks=0)
        self._plan = plan
        self._replan_from_ns = None
        if newest is None:
            return False
        handover_ns = plan.time_ns(plan.index_at_or_after(now_ns + self._lead_ns))
        begin_ns = max(handover_ns, newest.start_ns)
        refused = self._check_time(newest, now_ns, handover_ns) or self._check_jump(
            newest, plan, handover_ns
        )
        if refused is not None:
            return False
        self._chunks.append(replace(newest, fade_begin_ns=begin_ns, fade_ns=0))
        self._replan_from_ns = now_ns
        return True

    def clear(self, now_ns: int) -> None:
        """After a clock jump: drop the plan, and refuse chunks observed before `now_ns`."""
        self._chunks.clear()
        self._plan = None
        self._earliest_capture_ns = now_ns

    def forget_epoch(self) -> None:
        """The only publisher of chunks is gone: the next one may begin with any epoch."""
        self._order.forget_epoch()

    def offer(self, chunk: IncomingChunk, now_ns: int) -> AcceptedChunk | RefusedChunk:
        """Check a chunk and place it. A refused chunk changes nothing.

        The plan is computed when it is next needed, so a burst of chunks within one tick costs one
        computation.
        """
        if self._replan_from_ns is not None and now_ns - self._replan_from_ns >= self._tick_ns:
            self._current()
        outcome = self._place(chunk, now_ns)
        if isinstance(outcome, AcceptedChunk):
            self.counts.accepted += 1
        else:
            self.counts.refused += 1
            self.counts.late += outcome.why is ChunkRefusal.LATE
        return outcome

    def point(self, now_ns: int) -> ServoPoint:
        """The point that is due now.

        Raises:
            RuntimeError: before `rebase`.
        """
        plan = self._current()
        index, after_s = plan.locate(now_ns)
        if index + 1 < plan.size and after_s > 0.0:
            position, velocity = hermite(
                plan.positions[index],
                plan.velocities[index],
                plan.positions[index + 1],
                plan.velocities[index + 1],
                self.config.tick_s,
                after_s,
            )
            index += 1  # within a tick the robot moves towards the end of the tick
        else:
            position = plan.positions[index].copy()
            velocity = plan.velocities[index].copy()
        past = now_ns > plan.time_ns(plan.size - 1)
        valid = bool(plan.valid[index]) and not past
        captured = int(plan.capture_oldest_ns[index])
        return ServoPoint(
            position=position,
            velocity=velocity,
            valid=valid,
            epoch=int(plan.epoch[index]),
            chunk_id=int(plan.chunk_id[index]),
            capture_oldest_ns=captured,
            age_s=(now_ns - captured) * 1e-9 if valid else math.nan,
        )

    def window(self, now_ns: int) -> TimelineWindow:
        """The part of the plan to send: from the hand-over after `now_ns` to rest, and that rest
        until `_REACH_S` from now at least, so that the window is not over when it arrives late.

        Raises:
            RuntimeError: before `rebase`.
        """
        if self._replan_from_ns is not None:
            # The controller follows it from now on, not from when the chunk came.
            self._replan_from_ns = now_ns
        plan = self._current()
        first = plan.index_at_or_after(now_ns + self._lead_ns)
        first = min(first, plan.size - 1)
        times_ns = plan.start_ns + np.arange(first, plan.size, dtype=np.int64) * self._tick_ns
        times_s: Floats = (times_ns - now_ns) * np.float64(1e-9)
        if times_s[0] < self.config.lead_s:
            # Already at rest: the rest point is due after the lead.
            times_s = times_s + (self.config.lead_s - times_s[0])
        positions, velocities = plan.positions[first:].copy(), plan.velocities[first:].copy()
        if times_s[-1] < _REACH_S:
            times_s = np.append(times_s, _REACH_S)
            positions = np.concatenate([positions, positions[-1:]])
            velocities = np.concatenate([velocities, np.zeros_like(velocities[-1:])])
        return TimelineWindow(times_s=times_s, positions=positions, velocities=velocities)

    def depth_s(self, now_ns: int) -> float:
        """Time ahead of now that the newest chunk covers, without the tail."""
        if not self._chunks:
            return 0.0
        newest = self._chunks[-1]
        return max(0.0, (min(newest.end_ns, newest.valid_until_ns) - now_ns) * 1e-9)

    @property
    def _lead_ns(self) -> int:
        return max(round(self.config.lead_s * 1e9), self._tick_ns)

    def _place(self, chunk: IncomingChunk, now_ns: int) -> AcceptedChunk | RefusedChunk:
        plan = self._plan
        if plan is None:
            return RefusedChunk(
                why=ChunkRefusal.NOT_STARTED, detail="waiting for the state of the joints"
            )
        checked = check_chunk(
            chunk, self.limits, near=plan.positions[-1], max_age_ns=self._max_age_ns
        )
        if isinstance(checked, RefusedChunk):
            return checked
        refused = self._order.check(checked.epoch, checked.chunk_id)
        if refused is not None:
            return refused
        handover_ns = plan.time_ns(plan.index_at_or_after(now_ns + self._lead_ns))
        refused = self._check_time(checked, now_ns, handover_ns) or self._check_jump(
            checked, plan, handover_ns
        )
        if refused is not None:
            return refused
        begin_ns = max(handover_ns, checked.start_ns)
        if self._chunks and self._chunks[-1].epoch != checked.epoch:
            self._chunks.clear()
        fade_ns = self._fade_ns(begin_ns)
        self._chunks.append(replace(checked, fade_begin_ns=begin_ns, fade_ns=fade_ns))
        self._replan_from_ns = now_ns
        return AcceptedChunk(trimmed_s=max(0, begin_ns - checked.start_ns) * 1e-9)

    def _check_time(self, chunk: TimedChunk, now_ns: int, handover_ns: int) -> RefusedChunk | None:
        ahead_s = (chunk.capture_oldest_ns - now_ns) * 1e-9
        if chunk.capture_oldest_ns > now_ns + _FUTURE_SLOP_NS:
            return RefusedChunk(
                why=ChunkRefusal.CLOCK, detail=f"captured {ahead_s:.3f} s in the future"
            )
        if chunk.capture_oldest_ns < self._earliest_capture_ns:
            return RefusedChunk(why=ChunkRefusal.CLOCK, detail="captured before the clock jumped")
        if chunk.start_ns > now_ns + self.config.max_ahead_s * 1e9:
            return RefusedChunk(
                why=ChunkRefusal.EARLY,
                detail=f"in {(chunk.start_ns - now_ns) * 1e-9:.3f} s, "
                f"limit {self.config.max_ahead_s:g} s",
            )
        if chunk.end_ns < handover_ns:
            late_ms = (handover_ns - chunk.end_ns) * 1e-6
            return RefusedChunk(
                why=ChunkRefusal.LATE, detail=f"it ended {late_ms:.1f} ms before the hand-over"
            )
        if chunk.valid_until_ns < handover_ns:
            return RefusedChunk(
                why=ChunkRefusal.STALE,
                detail=f"{-ahead_s:.3f} s old, limit {self.config.max_age_s:g} s",
            )
        return None

    def _check_jump(
        self, chunk: TimedChunk, plan: ServoPlan, handover_ns: int
    ) -> RefusedChunk | None:
        begin_ns = max(handover_ns, chunk.start_ns)
        wanted = chunk.sample(np.array([begin_ns], dtype=np.int64))[0][0]
        index = min(plan.index_at_or_after(begin_ns), plan.size - 1)
        apart = np.abs(wanted - plan.positions[index])
        if not (apart > self._jump).any():
            return None
        joint = int(np.argmax(apart / self._jump))
        return RefusedChunk(
            why=ChunkRefusal.JUMP,
            detail=f"{self.limits.names[joint]}: {apart[joint]:.4f} away, "
            f"limit {self._jump[joint]:.4f}",
        )

    def _fade_ns(self, begin_ns: int) -> int:
        """The configured fade, but not longer than the rest of the chunk that is faded out."""
        if not self._chunks:
            return 0
        before = self._chunks[-1]
        left_ns = min(before.end_ns, before.valid_until_ns) - begin_ns
        return max(0, min(round(self.config.overlap.fade_s * 1e9), left_ns))

    def _current(self) -> ServoPlan:
        plan = self._plan
        if plan is None:
            raise RuntimeError("the timeline has no commanded state yet")
        if self._replan_from_ns is not None:
            plan = self._replan(plan, self._replan_from_ns)
            self._plan = plan
            self._replan_from_ns = None
        return plan

    def _replan(self, plan: ServoPlan, now_ns: int) -> ServoPlan:
        """Keep the plan up to the hand-over; after it, follow the chunks and then brake."""
        while self._chunks and self._chunks[0].end_ns < now_ns and len(self._chunks) > 1:
            self._chunks.popleft()
        kept = plan.until(now_ns, now_ns + self._lead_ns)
        newest = self._chunks[-1] if self._chunks else None
        begin_ns = kept.time_ns(kept.size - 1)
        last_ns = begin_ns
        if newest is not None:
            last_ns = max(begin_ns, min(newest.end_ns, newest.valid_until_ns))
        ticks = (last_ns - begin_ns) // self._tick_ns
        times_ns = begin_ns + np.arange(ticks + 1, dtype=np.int64) * self._tick_ns
        wanted = reference(self._chunks, times_ns, self.config.overlap, len(self._followers))
        coast = 0
        if self.config.underrun == "coast":
            coast = round(self.config.coast_s / self.config.tick_s)
        return kept.extended(self._followers, wanted, coast_ticks=coast)
