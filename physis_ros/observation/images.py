"""Resizes camera images to the model's input while images of other cameras still arrive.

Resizing takes about as long as receiving a message. So all but the last image of an observation are
resized on threads of this module while the executor receives the next; OpenCV releases the
interpreter's lock.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeAlias

from sensor_msgs.msg import CompressedImage, Image

from physis_core.model.image_input import resize_rgb
from physis_core.types import UserError
from physis_ros.node.image_messages import compressed_to_rgb, image_to_rgb, rgb_to_image
from physis_ros.node.time_messages import time_to_ns

CameraMessage: TypeAlias = Image | CompressedImage


def read_image(camera: str, message: CameraMessage, size: tuple[int, int]) -> Image:
    """rgb8 of `size` = (height, width).

    Raises:
        UserError: the image cannot be read.
    """
    field = f"camera/{camera}"
    if isinstance(message, CompressedImage):
        rgb = compressed_to_rgb(message, field=field)
    else:
        rgb = image_to_rgb(message, field=field)
    header = message.header
    return rgb_to_image(resize_rgb(rgb, size), stamp=header.stamp, frame_id=header.frame_id)


class ObservationImages:
    """The newest image of each camera, resized or being resized. One thread calls; `size` is
    (height, width)."""

    def __init__(self, cameras: tuple[str, ...], size: tuple[int, int], *, slop_s: float) -> None:
        self._cameras = cameras
        self._size = size
        self._slop_ns = slop_s * 1e9
        self._begun: dict[str, tuple[int, Future[Image]]] = {}
        self._pool: ThreadPoolExecutor | None = None
        if len(cameras) > 1:
            self._pool = ThreadPoolExecutor(len(cameras) - 1, thread_name_prefix="resize")

    def begin(self, camera: str, message: CameraMessage) -> None:
        """Resize on a thread; on this one if the observation waits only for this image."""
        stamp_ns = time_to_ns(message.header.stamp)
        if self._pool is not None and self._others_to_come(camera, stamp_ns):
            begun = self._pool.submit(read_image, camera, message, self._size)
        else:
            begun = _done(camera, message, self._size)
        self._begun[camera] = stamp_ns, begun

    def read(self, camera: str, message: CameraMessage) -> Image:
        """The image of `begin`, or resize it now.

        Raises:
            UserError: the image cannot be read.
        """
        stamp_ns, begun = self._begun.get(camera, (None, None))
        if begun is None or stamp_ns != time_to_ns(message.header.stamp):
            begun = _done(camera, message, self._size)
            self._begun[camera] = time_to_ns(message.header.stamp), begun
        return begun.result()

    def trouble(self, camera: str) -> UserError | None:
        """Why the newest image of a camera cannot be read, as far as that is known by now.

        Any other error of a thread is raised here, so that it ends the node.
        """
        _, begun = self._begun.get(camera, (None, None))
        error = begun.exception() if begun is not None and begun.done() else None
        if error is None or isinstance(error, UserError):
            return error
        raise error

    def forget(self) -> None:
        self._begun.clear()

    def close(self) -> None:
        """Return when no image is being resized."""
        if self._pool is not None:
            self._pool.shutdown()
        self._begun.clear()

    def _others_to_come(self, camera: str, stamp_ns: int) -> bool:
        return any(
            other not in self._begun or stamp_ns - self._begun[other][0] > self._slop_ns
            for other in self._cameras
            if other != camera
        )


def _done(camera: str, message: CameraMessage, size: tuple[int, int]) -> Future[Image]:
    done: Future[Image] = Future()
    try:
        done.set_result(read_image(camera, message, size))
    except UserError as error:
        done.set_exception(error)
    return done
