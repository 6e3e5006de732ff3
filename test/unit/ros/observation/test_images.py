import threading

import numpy as np
import pytest
from builtin_interfaces.msg import Time

from physis_core.types import UserError
from physis_ros.node.image_messages import image_to_rgb, rgb_to_image
from physis_ros.observation import images as observation_images
from physis_ros.observation.images import ObservationImages

CAMERAS = ("front", "wrist")
SIZE = (4, 4)
LIMIT_S = 20.0


def image(stamp_s, value=7):
    pixels = np.full((8, 8, 3), value, dtype=np.uint8)
    return rgb_to_image(pixels, stamp=Time(sec=stamp_s), frame_id="lens")


@pytest.fixture
def images():
    made = ObservationImages(CAMERAS, SIZE, slop_s=0.02)
    yield made
    made.close()


@pytest.fixture
def readers(monkeypatch):
    """The threads on which each camera was read."""
    read = observation_images.read_image
    seen = {}

    def note(camera, message, size):
        seen.setdefault(camera, []).append(threading.current_thread())
        return read(camera, message, size)

    monkeypatch.setattr(observation_images, "read_image", note)
    return seen


def test_the_first_is_read_pool_and_the_last_here_each_once(images, readers):
    own = threading.current_thread()
    for stamp_s in (1, 2):
        messages = {camera: image(stamp_s, 10 * stamp_s) for camera in CAMERAS}
        for camera, message in messages.items():
            images.begin(camera, message)
        for camera, message in messages.items():
            found = images.read(camera, message)
            assert np.all(image_to_rgb(found, field="f") == 10 * stamp_s)
            assert (found.height, found.width) == SIZE
            assert (found.header.stamp.sec, found.header.frame_id) == (stamp_s, "lens")
    assert [thread is own for thread in readers["front"]] == [False, False]
    assert [thread is own for thread in readers["wrist"]] == [True, True]


def test_what_was_not_begun_is_read_when_it_is_used(images, readers):
    images.begin("front", image(1))
    assert image_to_rgb(images.read("front", image(2, 9)), field="f")[0, 0, 0] == 9
    assert image_to_rgb(images.read("wrist", image(2, 5)), field="f")[0, 0, 0] == 5
    assert readers["wrist"] == [threading.current_thread()]


def test_an_image_that_cannot_be_read_is_told_wherever_it_was_read(images):
    bad = image(1)
    bad.encoding = "nonsense"
    for camera in CAMERAS:
        images.begin(camera, bad)
    for camera in CAMERAS:
        with pytest.raises(UserError, match=rf"camera/{camera}.encoding: 'nonsense'"):
            images.read(camera, bad)
        assert "nonsense" in str(images.trouble(camera))
    images.begin("front", image(2))
    images.read("front", image(2))
    assert images.trouble("front") is None
    images.forget()
    assert images.trouble("wrist") is None


def test_a_fault_on_a_thread_is_raised_though_no_observation_asked_for_its_image(
    images, monkeypatch
):
    def fail(camera, message, size):
        raise RuntimeError("a fault of this test")

    monkeypatch.setattr(observation_images, "read_image", fail)
    images.begin("front", image(1))
    images._pool.shutdown()
    with pytest.raises(RuntimeError, match="a fault of this test"):
        images.trouble("front")
