"""sensor_msgs/Image and CompressedImage <-> uint8[H, W, 3] in RGB order.

The table of encodings is explicit: one that is not in it is refused by name, never guessed. Reading
makes no copy until the colours are turned; a padded `step` and big-endian words are honoured.
Sixteen bit grey (mono16) is scaled to eight by its high byte: the full range of a camera, not of a
scene. Depth is refused: no model here takes it.
"""

from __future__ import annotations

import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
from builtin_interfaces.msg import Time
from sensor_msgs.msg import CompressedImage, Image

from physis_core.types import UserError

Rgb = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """`channels` x `bits` per pixel, and how such pixels become RGB (None: they already are)."""

    channels: int
    bits: int
    to_rgb: Callable[[npt.NDArray[Any]], npt.NDArray[Any]] | None


def _convert(code: int) -> Callable[[npt.NDArray[Any]], npt.NDArray[Any]]:
    def convert(pixels: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.asarray(cv2.cvtColor(np.ascontiguousarray(pixels), code))

    return convert


def _encodings() -> dict[str, Encoding]:
    grey = _convert(cv2.COLOR_GRAY2RGB)
    bgr = _convert(cv2.COLOR_BGR2RGB)
    table = {
        "rgb8": Encoding(channels=3, bits=8, to_rgb=None),
        "rgb16": Encoding(channels=3, bits=16, to_rgb=None),
        "bgr8": Encoding(channels=3, bits=8, to_rgb=bgr),
        "bgr16": Encoding(channels=3, bits=16, to_rgb=bgr),
        "rgba8": Encoding(channels=4, bits=8, to_rgb=_convert(cv2.COLOR_RGBA2RGB)),
        "rgba16": Encoding(channels=4, bits=16, to_rgb=_convert(cv2.COLOR_RGBA2RGB)),
        "bgra8": Encoding(channels=4, bits=8, to_rgb=_convert(cv2.COLOR_BGRA2RGB)),
        "bgra16": Encoding(channels=4, bits=16, to_rgb=_convert(cv2.COLOR_BGRA2RGB)),
        "mono8": Encoding(channels=1, bits=8, to_rgb=grey),
        "mono16": Encoding(channels=1, bits=16, to_rgb=grey),
        # OpenCV's own names: one channel is grey, three and four are in its order, blue first.
        "8UC1": Encoding(channels=1, bits=8, to_rgb=grey),
        "8UC3": Encoding(channels=3, bits=8, to_rgb=bgr),
        "8UC4": Encoding(channels=4, bits=8, to_rgb=_convert(cv2.COLOR_BGRA2RGB)),
        # Two pixels share one colour: UYVY under the old name, YUYV under the newer one.
        "yuv422": Encoding(channels=2, bits=8, to_rgb=_convert(cv2.COLOR_YUV2RGB_UYVY)),
        "uyvy": Encoding(channels=2, bits=8, to_rgb=_convert(cv2.COLOR_YUV2RGB_UYVY)),
        "yuv422_yuy2": Encoding(channels=2, bits=8, to_rgb=_convert(cv2.COLOR_YUV2RGB_YUYV)),
        "yuyv": Encoding(channels=2, bits=8, to_rgb=_convert(cv2.COLOR_YUV2RGB_YUYV)),
    }
    # A ROS pattern names the first two by two pixels in reading order; OpenCV names a pattern by
    # its second row and column.
    patterns = {
        "rggb": cv2.COLOR_BayerRGGB2RGB,
        "bggr": cv2.COLOR_BayerBGGR2RGB,
        "gbrg": cv2.COLOR_BayerGBRG2RGB,
        "grbg": cv2.COLOR_BayerGRBG2RGB,
    }
    for name, code in patterns.items():
        for bits in (8, 16):
            table[f"bayer_{name}{bits}"] = Encoding(channels=1, bits=bits, to_rgb=_convert(code))
    return table


ENCODINGS = _encodings()
DEPTH = ("16UC1", "32FC1")
"""Depth in millimetres and in metres (REP 118). Its high byte would be a nearly black picture."""


def image_to_rgb(message: Image, *, field: str) -> Rgb:
    """uint8[H, W, 3], RGB. May share memory with the message (rgb8): do not write into it.

    Raises:
        UserError: an encoding outside the table, or sizes that contradict each other; `field` says
            which camera it was.
    """
    _refuse_depth(f"{field}.encoding", message.encoding, message.encoding)
    encoding = ENCODINGS.get(message.encoding)
    if encoding is None:
        known = ", ".join(sorted(ENCODINGS))
        raise UserError(f"{field}.encoding", message.encoding, f"unknown; known: {known}")
    height, width = int(message.height), int(message.width)
    if height < 1 or width < 1:
        raise UserError(f"{field}.size", f"{width}x{height}", "an image needs at least one pixel")
    row_bytes = width * encoding.channels * encoding.bits // 8
    step = int(message.step)
    if step < row_bytes:
        raise UserError(
            f"{field}.step", step, f"{width} pixels of {message.encoding} need {row_bytes} bytes"
        )
    data = np.frombuffer(message.data, dtype=np.uint8)
    # The last row may come without its padding.
    needed = step * (height - 1) + row_bytes
    if data.size < needed:
        raise UserError(f"{field}.data", f"{data.size} bytes", f"{needed} are needed")
    rows = np.lib.stride_tricks.as_strided(
        data, shape=(height, row_bytes), strides=(step, 1), writeable=False
    )
    if encoding.bits == 16:
        order = ">u2" if message.is_bigendian else "<u2"
        # A padded step may break the alignment of words: copy the rows together first.
        words = np.ascontiguousarray(rows).view(order)
        pixels: npt.NDArray[Any] = words.astype(np.uint16).reshape(height, width, encoding.channels)
    else:
        pixels = rows.reshape(height, width, encoding.channels)
    if encoding.channels == 1:
        pixels = pixels[:, :, 0]
    if encoding.channels == 2 and width % 2:
        raise UserError(f"{field}.width", width, f"{message.encoding} needs an even width")
    if message.encoding.startswith("bayer_") and (width < 2 or height < 2):
        raise UserError(f"{field}.size", f"{width}x{height}", "a Bayer image needs 2x2 pixels")
    rgb: npt.NDArray[Any] = pixels if encoding.to_rgb is None else encoding.to_rgb(pixels)
    return _eight_bits(rgb)


def compressed_to_rgb(message: CompressedImage, *, field: str) -> Rgb:
    """uint8[H, W, 3], RGB, from JPEG or PNG of 8 or 16 bits.

    Raises:
        UserError: another format (a compressedDepth image among them), or bytes that do not decode.
    """
    text = message.format
    pixels_as = "16UC1" if "compressedDepth" in text else text.split(";")[0].strip()
    _refuse_depth(f"{field}.format", text, pixels_as)
    kind = text.split(";")[-1].lower()
    if not any(name in kind for name in ("jpeg", "jpg", "png")):
        raise UserError(f"{field}.format", text, "unknown; known: jpeg, png")
    data = np.frombuffer(message.data, dtype=np.uint8)
    if data.size == 0:
        raise UserError(f"{field}.data", "0 bytes", "no image in the message")
    try:
        pixels = cv2.imdecode(data, cv2.IMREAD_COLOR | cv2.IMREAD_ANYDEPTH)
    except cv2.error:
        pixels = None
    if pixels is None:
        raise UserError(f"{field}.data", f"{data.size} bytes", f"do not decode as {text}")
    rgb: npt.NDArray[Any] = np.asarray(cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB))
    if rgb.dtype not in (np.uint8, np.uint16):
        raise UserError(f"{field}.format", text, f"decodes to {rgb.dtype}; 8 or 16 bits are known")
    return _eight_bits(rgb)


def _refuse_depth(field: str, value: str, encoding: str) -> None:
    if encoding in DEPTH:
        raise UserError(field, value, "is a depth image; the model takes colour")


def _eight_bits(pixels: npt.NDArray[Any]) -> Rgb:
    """The upper 8 of 16 bits; 8 bits as they are."""
    found: Rgb = (pixels >> 8).astype(np.uint8) if pixels.dtype == np.uint16 else pixels
    return found


def rgb_to_image(rgb: Rgb, *, stamp: Time, frame_id: str) -> Image:
    """An rgb8 message of uint8[H, W, 3]."""
    height, width = _rgb_size(rgb)
    message = Image()
    message.header.stamp = stamp
    message.header.frame_id = frame_id
    message.height = height
    message.width = width
    message.encoding = "rgb8"
    message.is_bigendian = 0
    message.step = 3 * width
    # An array passes as it is; rclpy would look at every byte of a bytes object.
    message.data = array.array("B", rgb.tobytes())
    return message


def rgb_to_compressed(
    rgb: Rgb, *, stamp: Time, frame_id: str, quality: int = 90
) -> CompressedImage:
    """A JPEG message of uint8[H, W, 3]; `quality` from 1 to 100."""
    _rgb_size(rgb)
    if not 1 <= quality <= 100:
        raise UserError("quality", quality, "must be from 1 to 100")
    bgr = cv2.cvtColor(np.ascontiguousarray(rgb), cv2.COLOR_RGB2BGR)
    done, data = cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, quality])
    assert done, "cv2 encodes every uint8[H, W, 3]"
    message = CompressedImage()
    message.header.stamp = stamp
    message.header.frame_id = frame_id
    message.format = "rgb8; jpeg compressed bgr8"
    message.data = array.array("B", data.tobytes())
    return message


def _rgb_size(rgb: Rgb) -> tuple[int, int]:
    if rgb.dtype != np.uint8 or rgb.ndim != 3 or rgb.shape[2] != 3 or 0 in rgb.shape:
        raise UserError("image", f"{rgb.dtype}{list(rgb.shape)}", "needs uint8[H, W, 3]")
    return int(rgb.shape[0]), int(rgb.shape[1])
