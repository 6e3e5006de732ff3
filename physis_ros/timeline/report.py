"""The reports of buffer_node: stream_status and /diagnostics."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from physis_ros.msg import StreamStatus
from physis_ros.node.base import ERROR, OK, WARN, Diagnosis
from physis_ros.node.diagnosis import percentiles_message
from physis_ros.node.metric_names import Sample
from physis_ros.timeline.chunk_timeline import ChunkTimeline
from physis_ros.timeline.stream_figures import StreamFigures

_STATE_NAMES = {
    StreamStatus.STARTING: "starting",
    StreamStatus.PLAYING: "playing",
    StreamStatus.UNDERRUN: "underrun",
}
_IN_STATUS = (
    "output_interval_ms",
    "response_latency_ms",
    "action_age_handoff_ms",
    "action_age_servo_ms",
    "capture_ms",
    "queue_ms",
    "response_ms",
    "handoff_ms",
)


@dataclass(slots=True)
class BufferCounts:
    """Since the node was configured."""

    dropped: int = 0
    rebases: int = 0
    deadline_events: int = 0
    liveliness_events: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferSnapshot:
    """What the buffer reports at one moment. `state`: of StreamStatus. `reason`: empty while
    playing."""

    timeline: ChunkTimeline
    figures: StreamFigures
    counts: BufferCounts
    stream_id: str
    state: int
    reason: str
    now_ns: int
    now_s: float

    def status(self) -> StreamStatus:
        """All but the stamp."""
        timeline, figures, counts = self.timeline, self.figures, self.counts
        seen = figures.snapshot(self.now_s)
        message = StreamStatus(
            stream_id=self.stream_id,
            epoch=timeline.epoch,
            state=self.state,
            reason=self.reason,
            clock_suspect=seen.clock_suspect,
            sensor_hz=seen.sensor_hz,
            replan_hz=seen.replan_hz,
            chunk_hz=seen.chunk_hz,
            servo_hz=seen.servo_hz,
            depth_s=timeline.depth_s(self.now_ns),
            chunks=timeline.counts.accepted,
            dropped=counts.dropped,
            gaps=timeline.gaps,
            deadline_misses=figures.deadline_misses,
            underruns=figures.underruns,
            qos_deadline_events=counts.deadline_events,
            qos_liveliness_events=counts.liveliness_events,
        )
        for field in _IN_STATUS:
            setattr(message, field, percentiles_message(getattr(seen, field)))
        return message

    def metrics(self) -> Iterator[Sample]:
        timeline, figures, seen = self.timeline, self.figures, self.figures.snapshot(self.now_s)
        stream = {"stream": self.stream_id}
        yield from figures.histograms(self.stream_id)
        for family, value in (
            ("physis_buffer_depth_seconds", timeline.depth_s(self.now_ns)),
            ("physis_chunks", timeline.counts.accepted),
            ("physis_chunks_dropped", self.counts.dropped),
            ("physis_chunk_gaps", timeline.gaps),
            ("physis_deadline_misses", figures.deadline_misses),
            ("physis_underruns", figures.underruns),
            ("physis_playing", self.state == StreamStatus.PLAYING),
        ):
            yield Sample(family=family, value=value, labels=stream)
        for of in ("sensor", "replan", "chunk", "servo"):
            labels = {**stream, "of": of}
            yield Sample(family="physis_rate_hertz", value=getattr(seen, f"{of}_hz"), labels=labels)

    def diagnosis(self) -> Diagnosis:
        timeline, figures, counts = self.timeline, self.figures, self.counts
        seen, depth_s = figures.snapshot(self.now_s), timeline.depth_s(self.now_ns)
        level = OK if self.state == StreamStatus.PLAYING else WARN
        if self.state == StreamStatus.UNDERRUN and depth_s == 0.0:
            level = ERROR
        values: dict[str, object] = {
            "stream_id": self.stream_id,
            "epoch": timeline.epoch,
            "chunks": timeline.counts.accepted,
            "dropped": counts.dropped,
            "late": timeline.counts.late,
            "gaps": timeline.gaps,
            "deadline misses": figures.deadline_misses,
            "underruns": figures.underruns,
            "rebases on the commanded state": counts.rebases,
            "DDS deadline events": counts.deadline_events,
            "DDS liveliness events": counts.liveliness_events,
            "depth [s]": f"{depth_s:.3f}",
            "rates [Hz]": f"sensor {seen.sensor_hz:.1f}, replan {seen.replan_hz:.1f}, "
            f"chunk {seen.chunk_hz:.1f}, servo {seen.servo_hz:.1f}",
        }
        for name, found in (
            ("output interval", seen.output_interval_ms),
            ("response latency", seen.response_latency_ms),
            ("action age at hand-off", seen.action_age_handoff_ms),
            ("action age at servo tick", seen.action_age_servo_ms),
            ("capture", seen.capture_ms),
            ("queue", seen.queue_ms),
            ("response", seen.response_ms),
            ("handoff", seen.handoff_ms),
        ):
            values[f"{name} [ms]"] = (
                f"p50 {found.p50:.1f}, p99 {found.p99:.1f}, p99.9 {found.p999:.1f}, "
                f"max {found.max:.1f}, n {found.n}"
            )
        message = self.reason or _STATE_NAMES[self.state]
        ahead_s = seen.engine_ahead_s
        if ahead_s:
            way = "ahead of" if ahead_s > 0.0 else "behind"
            level = max(level, WARN)
            message += (
                f"; the engine's clock is {way} this host's by at least {abs(ahead_s):.3f} s: "
                "queue, handoff and the engine's lookahead are wrong by that much"
            )
        return Diagnosis(part="stream", level=level, message=message, values=values)
