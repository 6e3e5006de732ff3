"""Encodings by an explicit table: colours come out right, whatever the padding and byte order."""

from __future__ import annotations

import array
from typing import Any

import cv2
import numpy as np
import pytest
from builtin_interfaces.msg import Time
from hypothesis import given, settings
from hypothesis import strategies as st
from sensor_msgs.msg import CompressedImage, Image

from physis_core.types import UserError
from physis_ros.node.image_messages import (
    ENCODINGS,
    compressed_to_rgb,
    image_to_rgb,
    rgb_to_compressed,
    rgb_to_image,
)

RNG = np.random.default_rng(0)


def message(
    pixels: np.ndarray[Any, Any], encoding: str, padding: int = 0, bigendian: bool = False
) -> Image:
    """`pixels` [H, W] or [H, W, C], uint8 or uint16, with `padding` bytes behind each row."""
    height, width = pixels.shape[:2]
    if pixels.dtype == np.uint16:
        pixels = pixels.astype(">u2" if bigendian else "<u2")
    rows = np.frombuffer(pixels.tobytes(), np.uint8).reshape(height, -1)
    padded = np.pad(rows, ((0, 0), (0, padding)), constant_values=0xEE)
    return Image(
        height=height,
        width=width,
        encoding=encoding,
        is_bigendian=int(bigendian),
        step=padded.shape[1],
        data=array.array("B", padded.tobytes()),
    )


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 9),
    st.integers(1, 9),
    st.integers(0, 5),
    st.booleans(),
    st.sampled_from(
        [
            ("rgb", (0, 1, 2)),
            ("bgr", (2, 1, 0)),
            ("rgba", (0, 1, 2)),
            ("bgra", (2, 1, 0)),
            ("mono", (0, 0, 0)),
        ]
    ),
    st.sampled_from([8, 16]),
)
def test_channels_padding_depth_and_byte_order(
    height: int,
    width: int,
    padding: int,
    bigendian: bool,
    kind: tuple[str, tuple[int, ...]],
    bits: int,
) -> None:
    name, order = kind
    channels = {"mono": 1, "rgb": 3, "bgr": 3}.get(name, 4)
    dtype = np.uint8 if bits == 8 else np.uint16
    pixels = RNG.integers(0, 2**bits, (height, width, channels)).astype(dtype)
    got = image_to_rgb(message(pixels, f"{name}{bits}", padding, bigendian), field="camera/x")
    wanted = pixels[:, :, list(order)] >> (bits - 8)
    assert got.dtype == np.uint8
    np.testing.assert_array_equal(got, wanted)


def test_opencv_names() -> None:
    colour = RNG.integers(0, 256, (4, 6, 3)).astype(np.uint8)
    np.testing.assert_array_equal(
        image_to_rgb(message(colour, "8UC3"), field="x"), colour[:, :, ::-1]
    )
    grey = RNG.integers(0, 2**8, (4, 6)).astype(np.uint8)
    got = image_to_rgb(message(grey, "8UC1"), field="x")
    np.testing.assert_array_equal(got[:, :, 1], grey)


@pytest.mark.parametrize("encoding", ["16UC1", "32FC1"])
def test_depth_is_refused_where_colour_is_wanted(encoding: str) -> None:
    """2500 mm would be a pixel of 9."""
    depth = np.full((4, 6), 2500, np.uint16 if encoding == "16UC1" else np.float32)
    with pytest.raises(UserError) as refused:
        image_to_rgb(message(depth, encoding), field="camera/front")
    assert str(refused.value) == (
        f"camera/front.encoding: '{encoding}': is a depth image; the model takes colour"
    )


@pytest.mark.parametrize(("encoding", "luma_first"), [("yuv422", False), ("yuv422_yuy2", True)])
def test_yuv422(encoding: str, luma_first: bool) -> None:
    # Grey has neutral colour: only the place of the luma bytes decides.
    pixels = np.full((2, 4, 2), 128, np.uint8)
    pixels[:, :, 0 if luma_first else 1] = 235
    got = image_to_rgb(message(pixels, encoding, padding=3), field="x")
    assert (got > 250).all()


@pytest.mark.parametrize("pattern", ["rggb", "bggr", "gbrg", "grbg"])
@pytest.mark.parametrize("bits", [8, 16])
def test_bayer_patterns(pattern: str, bits: int) -> None:
    pixels = np.zeros((8, 8), np.uint8 if bits == 8 else np.uint16)
    place = pattern.index("r")
    pixels[place // 2 :: 2, place % 2 :: 2] = 200 << (bits - 8)
    got = image_to_rgb(message(pixels, f"bayer_{pattern}{bits}"), field="x")
    assert tuple(got[4, 4]) == (200, 0, 0)


def test_rgb8_is_read_without_a_copy() -> None:
    source = message(RNG.integers(0, 256, (4, 4, 3)).astype(np.uint8), "rgb8")
    got = image_to_rgb(source, field="x")
    assert np.shares_memory(got, np.frombuffer(source.data, np.uint8))


@pytest.mark.parametrize("encoding", ["", "rgb9", "nv12", "nv21", "RGB8"])
def test_unknown_encodings_are_refused_by_name(encoding: str) -> None:
    source = message(np.zeros((2, 2, 3), np.uint8), encoding)
    with pytest.raises(UserError, match=f"camera/front.encoding: '{encoding}': unknown"):
        image_to_rgb(source, field="camera/front")


def test_sizes_that_contradict_each_other_are_refused() -> None:
    good = np.zeros((4, 4, 3), np.uint8)
    short = message(good, "rgb8")
    short.step = 11
    with pytest.raises(UserError, match=r"x\.step: 11"):
        image_to_rgb(short, field="x")
    cut = message(good, "rgb8")
    cut.data = cut.data[:-1]
    with pytest.raises(UserError, match=r"x\.data: '47 bytes': 48"):
        image_to_rgb(cut, field="x")
    empty = message(good, "rgb8")
    empty.height = 0
    with pytest.raises(UserError, match=r"x\.size"):
        image_to_rgb(empty, field="x")
    odd = message(np.zeros((2, 3, 2), np.uint8), "yuv422")
    with pytest.raises(UserError, match="even width"):
        image_to_rgb(odd, field="x")


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(ENCODINGS)),
    st.integers(0, 6),
    st.integers(0, 6),
    st.integers(0, 60),
    st.binary(max_size=200),
)
def test_any_bytes_are_read_or_refused(
    encoding: str, height: int, width: int, step: int, data: bytes
) -> None:
    source = Image(
        height=height, width=width, encoding=encoding, step=step, data=array.array("B", data)
    )
    try:
        got = image_to_rgb(source, field="x")
    except UserError:
        return
    assert got.shape == (height, width, 3)
    assert got.dtype == np.uint8


def test_jpeg_and_png_come_back() -> None:
    rgb = np.zeros((16, 16, 3), np.uint8)
    rgb[:, :, 0] = 220
    jpeg = rgb_to_compressed(rgb, stamp=Time(sec=3), frame_id="f", quality=95)
    got = compressed_to_rgb(jpeg, field="x")
    assert np.abs(got.astype(int) - rgb).max() < 6
    for dtype in (np.uint8, np.uint16):
        wide = (rgb.astype(dtype) << (8 if dtype == np.uint16 else 0))[:, :, ::-1]
        done, data = cv2.imencode(".png", wide)
        assert done
        png = CompressedImage(format="png", data=array.array("B", data.tobytes()))
        np.testing.assert_array_equal(compressed_to_rgb(png, field="x"), rgb)


@pytest.mark.parametrize(
    ("text", "data", "said"),
    [
        ("16UC1; compressedDepth png", b"x", "depth image"),
        ("16UC1; png compressed ", b"x", "depth image"),
        ("32FC1; compressedDepth", b"x", "depth image"),
        ("h264", b"x", "unknown; known: jpeg, png"),
        ("jpeg", b"", "no image"),
        ("jpeg", b"not a picture", "do not decode"),
    ],
)
def test_bad_compressed_images_are_refused(text: str, data: bytes, said: str) -> None:
    source = CompressedImage(format=text, data=array.array("B", data))
    with pytest.raises(UserError, match=said):
        compressed_to_rgb(source, field="camera/front")


def test_a_written_image_is_read_back() -> None:
    rgb = RNG.integers(0, 256, (5, 7, 3)).astype(np.uint8)
    written = rgb_to_image(rgb, stamp=Time(sec=1, nanosec=2), frame_id="front")
    assert (written.header.stamp.sec, written.step) == (1, 21)
    np.testing.assert_array_equal(image_to_rgb(written, field="x"), rgb)
    with pytest.raises(UserError, match=r"needs uint8\[H, W, 3\]"):
        rgb_to_image(rgb[:, :, 0], stamp=Time(), frame_id="")
