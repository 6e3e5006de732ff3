"""What the buffer measures of its stream: interval, latency, the four parts of age, four rates, and
the reason why nothing plays.

No figure stands for another: the output interval lies between chunks, the response latency counts
through the engine, and the action age from the sensor to the robot. All percentiles are over the
samples of a sliding window.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from physis_core.observe.histogram import CountedWindow
from physis_core.types import Percentiles
from physis_ros.node.metric_names import Sample

_MS_PER_NS = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkStamps:
    """Stamps of one chunk, nanoseconds of ROS time; `deadline_ns` is its planned delivery."""

    epoch: int
    chunk_id: int
    capture_oldest_ns: int
    capture_newest_ns: int
    receipt_ns: int
    entry_ns: int
    exit_ns: int
    deadline_ns: int
    start_ns: int
    missed: bool
    clock_suspect: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSnapshot:
    """All figures at one moment; milliseconds and hertz.

    `engine_ahead_s`: by how much at least the engine's clock is ahead of this host's (below zero:
    behind it), as of the last hand-off; 0 where nothing speaks for it.
    """

    output_interval_ms: Percentiles
    response_latency_ms: Percentiles
    action_age_handoff_ms: Percentiles
    action_age_servo_ms: Percentiles
    capture_ms: Percentiles
    queue_ms: Percentiles
    response_ms: Percentiles
    handoff_ms: Percentiles
    sensor_hz: float
    replan_hz: float
    chunk_hz: float
    servo_hz: float
    clock_suspect: bool
    engine_ahead_s: float


class EventRate:
    """Events per second over a sliding window of seconds; bounded memory. Times are steady."""

    def __init__(self, *, window_s: float, capacity: int) -> None:
        self._window_s = window_s
        self._times_s: deque[float] = deque(maxlen=capacity)

    def event(self, now_s: float) -> None:
        self._times_s.append(now_s)

    def hz(self, now_s: float) -> float:
        while self._times_s and now_s - self._times_s[0] > self._window_s:
            self._times_s.popleft()
        if len(self._times_s) < 2:
            return 0.0
        # Up to now, not to the last event: the rate falls as soon as the stream is silent.
        span_s = now_s - self._times_s[0]
        return (len(self._times_s) - 1) / span_s if span_s > 0.0 else 0.0


class StreamFigures:
    """Not thread safe: one owner. `window`: samples of chunks; `servo_window`: samples of ticks.

    `queue` and `handoff` are differences between stamps of the robot's host and of the engine's.
    Where one is below zero by more than `clock_slack_s`, the two clocks differ by at least that
    much. A difference shorter than the latency of a message cannot be detected.
    """

    def __init__(
        self,
        *,
        window: int,
        servo_window: int,
        rate_window_s: float,
        clock_slack_s: float = 1e-3,
    ) -> None:
        self._clock_slack_s = clock_slack_s
        self._engine_ahead_s = 0.0
        self._interval = CountedWindow(window)
        self._response = CountedWindow(window)
        self._capture = CountedWindow(window)
        self._queue = CountedWindow(window)
        self._handoff = CountedWindow(window)
        self._age_handoff = CountedWindow(window)
        self._age_servo = CountedWindow(servo_window)
        self._sensor, self._replan, self._chunk, self._servo = (
            EventRate(window_s=rate_window_s, capacity=capacity)
            for capacity in (10_000, 10_000, 10_000, servo_window)
        )
        self._last: ChunkStamps | None = None
        self._newest_capture_ns = 0
        self.deadline_misses = 0
        self.underruns = 0

    def observation(self, now_s: float) -> None:
        self._sensor.event(now_s)

    def chunk(self, stamps: ChunkStamps, now_s: float) -> None:
        """An accepted chunk."""
        last = self._last
        if last is not None and last.epoch == stamps.epoch:
            self._interval.add((stamps.exit_ns - last.exit_ns) * _MS_PER_NS)
        self._last = stamps
        self._response.add((stamps.exit_ns - stamps.entry_ns) * _MS_PER_NS)
        self._capture.add((stamps.receipt_ns - stamps.capture_oldest_ns) * _MS_PER_NS)
        self._queue.add((stamps.entry_ns - stamps.receipt_ns) * _MS_PER_NS)
        self._chunk.event(now_s)
        if stamps.capture_newest_ns > self._newest_capture_ns:
            self._newest_capture_ns = stamps.capture_newest_ns
            self._replan.event(now_s)

    def missed(self) -> None:
        """A chunk, accepted or not, that was finished after its deadline."""
        self.deadline_misses += 1

    def handed_off(self, stamps: ChunkStamps, now_ns: int) -> None:
        """The command that plays this chunk left for the robot at `now_ns` of ROS time."""
        queue_s = (stamps.entry_ns - stamps.receipt_ns) * 1e-9
        handoff_s = (now_ns - stamps.exit_ns) * 1e-9
        self._engine_ahead_s = 0.0
        if min(queue_s, handoff_s) < -self._clock_slack_s:
            self._engine_ahead_s = -handoff_s if handoff_s < queue_s else queue_s
        self._handoff.add(handoff_s * 1e3)
        self._age_handoff.add((now_ns - stamps.capture_oldest_ns) * _MS_PER_NS)

    def servo_point(self, age_s: float, now_s: float) -> None:
        """A servo tick with a valid point of this age."""
        self._age_servo.add(age_s * 1e3)
        self._servo.event(now_s)

    def underrun(self) -> None:
        """A servo tick without one."""
        self.underruns += 1

    def clear(self) -> None:
        """After a clock jump: intervals across it mean nothing."""
        self._last = None
        self._newest_capture_ns = 0
        self._engine_ahead_s = 0.0

    def snapshot(self, now_s: float) -> StreamSnapshot:
        response = self._response.percentiles()
        return StreamSnapshot(
            output_interval_ms=self._interval.percentiles(),
            response_latency_ms=response,
            action_age_handoff_ms=self._age_handoff.percentiles(),
            action_age_servo_ms=self._age_servo.percentiles(),
            capture_ms=self._capture.percentiles(),
            queue_ms=self._queue.percentiles(),
            # This part of the age equals the latency: both count from the entry of the oldest
            # observation.
            response_ms=response,
            handoff_ms=self._handoff.percentiles(),
            sensor_hz=self._sensor.hz(now_s),
            replan_hz=self._replan.hz(now_s),
            chunk_hz=self._chunk.hz(now_s),
            servo_hz=self._servo.hz(now_s),
            clock_suspect=self._engine_ahead_s != 0.0
            or (self._last is not None and self._last.clock_suspect),
            engine_ahead_s=self._engine_ahead_s,
        )

    def histograms(self, stream_id: str) -> Iterator[Sample]:
        """All samples since the figures began, in seconds."""
        stream = {"stream": stream_id}
        for family, window, labels in (
            ("physis_output_interval_seconds", self._interval, {}),
            ("physis_response_latency_seconds", self._response, {}),
            ("physis_age_part_seconds", self._capture, {"part": "capture"}),
            ("physis_age_part_seconds", self._queue, {"part": "queue"}),
            ("physis_age_part_seconds", self._response, {"part": "response"}),
            ("physis_age_part_seconds", self._handoff, {"part": "handoff"}),
            ("physis_action_age_seconds", self._age_handoff, {"at": "handoff"}),
            ("physis_action_age_seconds", self._age_servo, {"at": "servo"}),
        ):
            yield Sample(family=family, value=window.histogram.copy(), labels={**stream, **labels})


class StreamReason:
    """`recent_s`: how long a refusal is the reason. After that the reason is the silence, followed
    by the last refusal."""

    def __init__(self, recent_s: float) -> None:
        self._recent_s = recent_s
        self._came_s: float | None = None
        self._refusal = ""
        self._refused_s = 0.0

    def accepted(self, now_s: float) -> None:
        """A chunk came and is good."""
        self._came_s = now_s
        self._refusal = ""

    def refused(self, reason: str, now_s: float) -> None:
        """A chunk came and was refused."""
        self._came_s = now_s
        self._refusal, self._refused_s = reason, now_s

    def cleared(self, reason: str, now_s: float) -> None:
        """Accepted chunks were dropped."""
        self._refusal, self._refused_s = reason, now_s

    def line(self, now_s: float) -> str:
        """For a person."""
        if self._refusal and now_s - self._refused_s <= self._recent_s:
            return self._refusal
        silence = "no chunk yet"
        if self._came_s is not None:
            silence = f"no chunk for {now_s - self._came_s:.1f} s"
        return f"{silence}; last: {self._refusal}" if self._refusal else silence
