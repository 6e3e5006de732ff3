"""Records every chunk and every servo tick of a run; readable after kill -9."""

from __future__ import annotations

import math
from pathlib import Path

from physis_core.observe.report import BUFFER_CHUNK_COLUMNS, BUFFER_SERVO_COLUMNS
from physis_core.observe.rowlog import RowLog
from physis_ros.timeline.stream_figures import ChunkStamps
from physis_ros.timeline.types import ServoPoint

CHUNKS_FILE = "chunks.rows"
SERVO_FILE = "servo.rows"


class StreamRecord:
    """Writes below `directory`. A chunk's row is written at its hand-off, or when it is refused.

    Raises:
        UserError: the directory cannot be written.
    """

    def __init__(self, directory: Path, *, joint_names: tuple[str, ...]) -> None:
        meta = {"joint_names": list(joint_names)}
        for name in (CHUNKS_FILE, SERVO_FILE):
            _keep_earlier(directory / name)
        self._chunks = RowLog(
            directory / CHUNKS_FILE, BUFFER_CHUNK_COLUMNS, meta=meta, max_rows=500_000, flush_rows=1
        )
        self._servo = RowLog(directory / SERVO_FILE, BUFFER_SERVO_COLUMNS, meta=meta, flush_rows=10)

    def chunk(self, stamps: ChunkStamps, now_s: float, *, handoff_ns: int, accepted: bool) -> None:
        self._chunks.append(
            now_s,
            stamps.epoch,
            stamps.chunk_id,
            stamps.exit_ns,
            stamps.capture_oldest_ns,
            stamps.capture_newest_ns,
            stamps.receipt_ns,
            stamps.entry_ns,
            stamps.deadline_ns,
            stamps.start_ns,
            handoff_ns,
            1.0 if accepted else 0.0,
        )

    def tick(self, point: ServoPoint, now_s: float, now_ns: int, depth_s: float) -> None:
        self._servo.append(
            now_s,
            now_ns,
            point.age_s * 1e3 if point.valid else math.nan,
            point.epoch,
            point.chunk_id,
            depth_s,
            0.0 if point.valid else 1.0,
        )

    def close(self) -> None:
        self._chunks.close()
        self._servo.close()


def _keep_earlier(path: Path) -> None:
    """Rename an earlier record: a restarted buffer must not overwrite it."""
    if not path.exists():
        return
    number = 1
    while (earlier := path.with_name(f"{path.stem}.{number}{path.suffix}")).exists():
        number += 1
    path.rename(earlier)
