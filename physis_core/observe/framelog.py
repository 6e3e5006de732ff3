"""A log of camera frames that survives kill -9: stamped JPEG records, appended as they come."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from physis_core.types import UserError

Image = npt.NDArray[np.uint8]

_RECORD = struct.Struct("<qI")


class FrameLog:
    """Writer. `append` takes rgb8 [H, W, 3] and its stamp in nanoseconds of ROS time."""

    def __init__(self, path: Path) -> None:
        self._quality = [int(cv2.IMWRITE_JPEG_QUALITY), 92]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("wb")
        except OSError as error:
            raise UserError("record_path", str(path), error.strerror or str(error)) from error

    def append(self, stamp_ns: int, rgb: Image) -> None:
        done, encoded = cv2.imencode(".jpg", cv2.cvtColor(rgb, cv2.COLOR_RGB2BGR), self._quality)
        if not done:
            raise ValueError(f"rgb: shape {rgb.shape}: cannot be encoded as JPEG")
        data = encoded.tobytes()
        self._file.write(_RECORD.pack(stamp_ns, len(data)) + data)
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_frames(path: Path) -> Iterator[tuple[int, Image]]:
    """Stamps and rgb8 frames in writing order; a record cut off at the end is left out."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise UserError("frames", str(path), error.strerror or str(error)) from error
    with file:
        while len(head := file.read(_RECORD.size)) == _RECORD.size:
            stamp_ns, size = _RECORD.unpack(head)
            data = file.read(size)
            if len(data) < size:
                return
            bgr = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
            if bgr is None:
                raise UserError("frames", str(path), "contains a record that is not a JPEG picture")
            yield stamp_ns, np.asarray(cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB), np.uint8)
