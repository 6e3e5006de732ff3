"""The report of engine_node on /diagnostics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from physis_core.engine.engine import EngineStatus
from physis_core.engine.stream import StreamFigures
from physis_core.types import Percentiles
from physis_ros.engine.stream import EngineStream
from physis_ros.node.base import ERROR, OK, WARN, Diagnosis

_OVERDUE_S = 1.0


def diagnoses(
    status: EngineStatus, streams: Sequence[EngineStream], *, lost: str, notes: Mapping[str, int]
) -> tuple[Diagnosis, ...]:
    """One status for the engine, one for each stream. `notes`: the engine's events by kind."""
    level, message = OK, "running"
    if not status.running:
        level, message = ERROR, status.failure or "the engine does not run"
    for one in status.lost:
        level = max(level, WARN)
        message = f"worker {one.worker} is lost since {status.now_s - one.since_s:.1f} s"
    if lost:
        level, message = ERROR, lost
    engine = Diagnosis(
        part="engine",
        level=level,
        message=message,
        values={
            "workers_alive": f"{len(status.workers_alive)} of {status.workers}",
            "warmup_s": f"{status.warmup_s:.3f}",
            "overload": status.overload.level,
            **notes,
        },
    )
    figures = {figure.stream_id: figure for figure in status.streams}
    return (engine, *(_of_stream(s, figures.get(s.stream_id)) for s in streams))


def _of_stream(stream: EngineStream, figures: StreamFigures | None) -> Diagnosis:
    level, message = OK, "streaming"
    if stream.reason:
        level, message = WARN, stream.reason
    elif not stream.observations:
        level, message = WARN, "no observation yet"
    elif stream.lookahead_capped:
        level = WARN
        message = "capture to exit takes longer than the model can look ahead"
    if figures is not None and figures.suspended:
        level, message = WARN, f"stands still: {figures.reason}"
    elif figures is not None and figures.overdue_s > _OVERDUE_S:
        level, message = WARN, f"a chunk is overdue by {figures.overdue_s:.1f} s"
    values: dict[str, object] = {
        "epoch": stream.epoch,
        "observations": stream.observations,
        "chunks": stream.chunks,
        "refused": stream.refused,
        "lookahead_s": f"{stream.lookahead_s:.4f}",
    }
    if figures is not None:
        values["state"] = figures.state.value
        values["in_flight"] = figures.in_flight
        values["misses"] = figures.misses
        values["overdue_s"] = f"{figures.overdue_s:.3f}"
        values["dropped"] = figures.dropped
        values["output_interval_ms"] = _in_ms(figures.interval_s)
        values["response_latency_ms"] = _in_ms(figures.response_s)
    return Diagnosis(part=f"stream {stream.stream_id}", level=level, message=message, values=values)


def _in_ms(seconds: Percentiles) -> str:
    if not seconds.n:
        return "none yet"
    return f"p50 {1e3 * seconds.p50:.1f}, p99 {1e3 * seconds.p99:.1f}, max {1e3 * seconds.max:.1f}"
