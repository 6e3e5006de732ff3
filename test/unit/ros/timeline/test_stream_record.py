import math

import numpy as np
import pytest

from physis_core.observe.rowlog import read_rows
from physis_core.types import UserError
from physis_ros.timeline.stream_figures import ChunkStamps
from physis_ros.timeline.stream_record import CHUNKS_FILE, SERVO_FILE, StreamRecord
from physis_ros.timeline.types import ServoPoint

STAMPS = ChunkStamps(
    epoch=1,
    chunk_id=4,
    capture_oldest_ns=1,
    capture_newest_ns=2,
    receipt_ns=3,
    entry_ns=4,
    exit_ns=5,
    deadline_ns=6,
    start_ns=7,
    missed=False,
    clock_suspect=False,
)


def point(valid):
    return ServoPoint(
        position=np.zeros(2),
        velocity=np.zeros(2),
        valid=valid,
        epoch=1,
        chunk_id=4,
        capture_oldest_ns=1,
        age_s=0.1 if valid else math.nan,
    )


def test_rows_are_readable_while_it_still_writes(tmp_path):
    record = StreamRecord(tmp_path / "run", joint_names=("a", "b"))
    record.chunk(STAMPS, 1.0, handoff_ns=8, accepted=True)
    for k in range(20):
        record.tick(point(k % 2 == 0), k * 0.01, k, 0.3)
    chunks = read_rows(tmp_path / "run" / CHUNKS_FILE)
    assert (chunks["chunk_id"][0], chunks["handoff_ns"][0], chunks["accepted"][0]) == (4, 8, 1)
    servo = read_rows(tmp_path / "run" / SERVO_FILE)
    assert servo.rows == 20
    assert servo["age_ms"][0] == pytest.approx(100.0)
    assert servo["underrun"][1] == 1.0
    assert servo.meta["joint_names"] == ["a", "b"]


def test_a_second_start_keeps_what_the_first_recorded(tmp_path):
    for chunk_rows in (2, 1):
        record = StreamRecord(tmp_path, joint_names=("a",))
        for _ in range(chunk_rows):
            record.chunk(STAMPS, 1.0, handoff_ns=8, accepted=True)
        record.close()
    assert read_rows(tmp_path / CHUNKS_FILE).rows == 1
    assert read_rows(tmp_path / "chunks.1.rows").rows == 2


def test_a_directory_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises((UserError, NotADirectoryError)):
        StreamRecord(tmp_path / "file" / "below", joint_names=("a",))
