from pathlib import Path

import cv2
import numpy as np
import pytest

from physis_core.observe.framelog import FrameLog, read_frames
from physis_core.observe.report import BUFFER_SERVO_COLUMNS
from physis_core.observe.rowlog import RowLog, read_rows
from physis_core.observe.video import write_video
from physis_core.types import UserError


def test_frames_come_back_with_their_stamps_and_a_cut_record_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "frames"
    log = FrameLog(path)
    picture = np.zeros((32, 48, 3), np.uint8)
    picture[:, :, 0] = 200
    for stamp in (10, 20, 30):
        log.append(stamp, picture)
    log.close()
    path.write_bytes(path.read_bytes()[:-7])
    frames = list(read_frames(path))
    assert [stamp for stamp, _ in frames] == [10, 20]
    assert np.abs(frames[0][1].astype(int) - picture).max() < 12


def test_the_film_has_even_time_and_shows_the_age(tmp_path: Path) -> None:
    frames = FrameLog(tmp_path / "frames")
    servo = RowLog(tmp_path / "servo.rows", BUFFER_SERVO_COLUMNS)
    for i in range(30):
        servo.append(0.1 * i, 1e8 * i, 120.0, 0, i, 0.3, 0)
    for i in [*range(10), *range(20, 30)]:
        frames.append(int(1e8 * i), np.full((64, 64, 3), 8 * i, np.uint8))
    frames.close()
    servo.close()
    count = write_video(
        tmp_path / "frames",
        read_rows(tmp_path / "servo.rows"),
        tmp_path / "film.mp4",
        fps=10,
        progress=lambda n: None,
    )
    assert count == 30
    film = cv2.VideoCapture(str(tmp_path / "film.mp4"))
    assert int(film.get(cv2.CAP_PROP_FRAME_COUNT)) == 30
    assert film.read()[1].shape == (544, 480, 3)


def test_says_when_there_is_nothing_to_show(tmp_path: Path) -> None:
    FrameLog(tmp_path / "frames").close()
    RowLog(tmp_path / "servo.rows", BUFFER_SERVO_COLUMNS).close()
    with pytest.raises(UserError, match="no camera frame"):
        write_video(
            tmp_path / "frames",
            read_rows(tmp_path / "servo.rows"),
            tmp_path / "x.mp4",
            fps=10,
            progress=lambda n: None,
        )
