"""The one resize between a camera and a model: training and the observation node both call it."""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

from physis_core.types import UserError


def resize_rgb(image: npt.NDArray[np.uint8], size: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """Resize an rgb8 image uint8[H, W, 3] to `size` = (height, width), uint8[height, width, 3].

    Averages over areas, so that a small object keeps its sub-pixel position. An image of another
    aspect ratio is first cropped about its centre: stretching would move what the model has learned
    to locate.

    Raises:
        UserError: not uint8[H, W, 3], or an empty side.
    """
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape:
        raise UserError("image", f"{image.dtype}{list(image.shape)}", "needs uint8[H, W, 3]")
    height, width = size
    if height < 1 or width < 1:
        raise UserError("size", size, "needs (height, width) of at least 1 each")
    if image.shape[:2] == (height, width):
        return image
    have_height, have_width = image.shape[:2]
    scale = min(have_height / height, have_width / width)
    crop_height = min(have_height, max(1, round(height * scale)))
    crop_width = min(have_width, max(1, round(width * scale)))
    top, left = (have_height - crop_height) // 2, (have_width - crop_width) // 2
    crop = image[top : top + crop_height, left : left + crop_width]
    resized = cv2.resize(crop, (width, height), interpolation=cv2.INTER_AREA)
    return np.asarray(resized, dtype=np.uint8)
