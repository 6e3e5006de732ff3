from __future__ import annotations

import mujoco
import numpy as np
import pytest

from physis_core.model.image_input import resize_rgb
from physis_core.types import UserError
from physis_lab.arm.camera import EGL_APT_LINE, Camera
from physis_lab.arm.kinematics import HOME_RAD
from physis_lab.arm.scene import build_model, place_target

MODEL = build_model()


@pytest.mark.parametrize("ball", [(0.35, -0.25, 0.1), (0.45, 0.0, 0.2), (0.57, 0.26, 0.27)])
def test_the_ball_is_seen_at_64_pixels_from_any_size(ball: tuple[float, float, float]) -> None:
    data = mujoco.MjData(MODEL)
    data.qpos[:] = HOME_RAD
    place_target(MODEL, data, np.array(ball))
    mujoco.mj_forward(MODEL, data)
    found = []
    for width, height in ((128, 128), (640, 480)):
        with Camera(MODEL, width=width, height=height) as camera:
            image = camera.render(data)
        assert image.shape == (height, width, 3)
        small = resize_rgb(image, (64, 64)).astype(int)
        red = (small[..., 0] > 120) & (small[..., 1] < 80) & (small[..., 2] < 80)
        assert red.sum() >= 8
        found.append(np.argwhere(red).mean(axis=0))
    # A camera of another shape shows the ball at the same place once it is resized.
    assert found[0] == pytest.approx(found[1], abs=0.7)


@pytest.mark.parametrize(("size", "field"), [((4, 128), "width"), ((128, 4000), "height")])
def test_sizes_are_checked(size: tuple[int, int], field: str) -> None:
    with pytest.raises(UserError, match=field):
        Camera(MODEL, width=size[0], height=size[1])


def test_unknown_camera() -> None:
    with pytest.raises(UserError, match="camera: 'side'"):
        Camera(MODEL, width=64, height=64, name="side")


def test_no_opengl_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> object:
        raise ImportError("libEGL.so.1 not found")

    monkeypatch.setattr("physis_lab.arm.camera.importlib.import_module", missing)
    with pytest.raises(UserError, match=EGL_APT_LINE):
        Camera(MODEL, width=64, height=64)


def test_unknown_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", "vulkan")
    with pytest.raises(UserError, match="MUJOCO_GL"):
        Camera(MODEL, width=64, height=64)
