"""A video of the camera's frames with the action age drawn in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import cv2
import imageio_ffmpeg
import numpy as np
import numpy.typing as npt

from physis_core.observe.framelog import read_frames
from physis_core.observe.rowlog import RowTable
from physis_core.types import UserError

Image = npt.NDArray[np.uint8]

SIDE_PX = 480
BAR_PX = 64
AGE_FULL_BAR_MS = 600.0
LEAD_NS = 2e9


def write_video(
    frames: Path, servo: RowTable, path: Path, *, fps: int, progress: Callable[[int], None]
) -> int:
    """Draw and encode (H.264); calls `progress(frames read)`. Returns the number of frames written.

    The video begins LEAD_NS before the first commanded point. Frames are resampled at even times of
    their stamps: a missing camera frame shows as a repeated picture, not as faster motion.

    Raises:
        UserError: no frame was recorded.
    """
    ticks_ns = servo["ros_ns"]
    written = 0
    writer = None
    next_ns: float | None = None
    played = np.flatnonzero(servo["underrun"] == 0)
    from_ns = float(ticks_ns[played[0]]) - LEAD_NS if played.size else 0.0
    for read, (stamp_ns, rgb) in enumerate(read_frames(frames)):
        progress(read + 1)
        if stamp_ns < from_ns:
            continue
        if writer is None:
            next_ns = float(stamp_ns)
            path.parent.mkdir(parents=True, exist_ok=True)
            writer = imageio_ffmpeg.write_frames(
                str(path), (SIDE_PX, SIDE_PX + BAR_PX), fps=fps, macro_block_size=16, quality=6
            )
            writer.send(None)
        tick = int(np.searchsorted(ticks_ns, stamp_ns)) - 1
        picture = np.ascontiguousarray(draw_age(rgb, *age_at(servo, tick)))
        assert next_ns is not None
        while next_ns <= stamp_ns:
            writer.send(picture)
            written += 1
            next_ns += 1e9 / fps
    if writer is None:
        raise UserError("frames", str(frames), "no camera frame was recorded")
    writer.close()
    return written


def age_at(servo: RowTable, tick: int) -> tuple[float, int]:
    """Age [ms] and chunk of the point commanded at a servo tick; NaN before the first tick."""
    if tick < 0:
        return float("nan"), 0
    return float(servo["age_ms"][tick]), int(servo["chunk_id"][tick])


def draw_age(rgb: Image, age_ms: float, chunk_id: int) -> Image:
    """Picture [SIDE + BAR, SIDE, 3] with a bar that shows the age of the commanded point."""
    height, width = rgb.shape[:2]
    scale = SIDE_PX / max(height, width)
    size = (round(width * scale), round(height * scale))
    canvas = np.full((SIDE_PX + BAR_PX, SIDE_PX, 3), 24, np.uint8)
    top, left = (SIDE_PX - size[1]) // 2, (SIDE_PX - size[0]) // 2
    canvas[top : top + size[1], left : left + size[0]] = cv2.resize(
        rgb, size, interpolation=cv2.INTER_CUBIC
    )
    if np.isnan(age_ms):
        text, colour, share = "no valid point is commanded", (200, 200, 200), 0.0
    else:
        text = f"action age {age_ms:4.0f} ms    chunk {chunk_id}"
        share = min(1.0, age_ms / AGE_FULL_BAR_MS)
        colour = (0, 158, 115) if share < 0.5 else (213, 94, 0)
    base = SIDE_PX + BAR_PX - 12
    cv2.rectangle(canvas, (16, base - 10), (SIDE_PX - 16, base), (60, 60, 60), -1)
    cv2.rectangle(canvas, (16, base - 10), (16 + int(share * (SIDE_PX - 32)), base), colour, -1)
    place = (16, SIDE_PX + 30)
    cv2.putText(canvas, text, place, cv2.FONT_HERSHEY_SIMPLEX, 0.62, (235,) * 3, 1, cv2.LINE_AA)
    return canvas
