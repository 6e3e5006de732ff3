from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from physis_core.model.image_input import resize_rgb
from physis_core.types import UserError


@given(
    height=st.integers(1, 90),
    width=st.integers(1, 90),
    shade=st.integers(0, 255),
    size=st.tuples(st.integers(1, 40), st.integers(1, 40)),
)
def test_shape_and_an_even_shade_are_kept(
    height: int, width: int, shade: int, size: tuple[int, int]
) -> None:
    out = resize_rgb(np.full((height, width, 3), shade, np.uint8), size)
    assert out.shape == (*size, 3)
    assert out.dtype == np.uint8
    assert (out == shade).all()


def test_another_aspect_ratio_is_cropped_about_the_centre_not_stretched() -> None:
    wide = np.zeros((48, 64, 3), np.uint8)
    wide[:, 8:56] = 200
    assert (resize_rgb(wide, (12, 12)) == 200).all()
    square = np.zeros((48, 48, 3), np.uint8)
    square[20:28, 10:18] = 255
    padded = np.pad(square, ((0, 0), (8, 8), (0, 0)))
    assert np.array_equal(resize_rgb(square, (16, 16)), resize_rgb(padded, (16, 16)))


def test_areas_are_averaged() -> None:
    checks = np.indices((8, 8)).sum(axis=0) % 2 * 255
    image = np.repeat(checks[..., None], 3, axis=2).astype(np.uint8)
    assert (np.abs(resize_rgb(image, (4, 4)).astype(int) - 127) <= 1).all()


@pytest.mark.parametrize(
    "image",
    [np.zeros((4, 4), np.uint8), np.zeros((4, 4, 3), np.float32), np.zeros((0, 4, 3), np.uint8)],
)
def test_other_arrays_are_refused(image: np.ndarray) -> None:
    with pytest.raises(UserError, match="image"):
        resize_rgb(image, (2, 2))
    with pytest.raises(UserError, match="size"):
        resize_rgb(np.zeros((4, 4, 3), np.uint8), (0, 2))
