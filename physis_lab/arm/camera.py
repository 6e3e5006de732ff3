"""A headless camera: renders a named camera of the scene to an RGB array through EGL.

A camera belongs to the thread that made it, because an OpenGL context does.
"""

from __future__ import annotations

import importlib
import os
from types import TracebackType
from typing import Any

import mujoco
import numpy as np

from physis_core.types import Array, UserError
from physis_lab.arm.scene import CAMERA_NAME

EGL_APT_LINE = "sudo apt install libegl1 libgl1"
_BACKENDS = ("egl", "osmesa", "glfw")


class Camera:
    """Renders camera `name` of `model` at `width` x `height` pixels.

    Raises:
        UserError: no usable OpenGL, unknown camera, or a size that the scene does not allow.
    """

    def __init__(
        self, model: mujoco.MjModel, *, width: int, height: int, name: str = CAMERA_NAME
    ) -> None:
        for field, value, most in (
            ("width", width, model.vis.global_.offwidth),
            ("height", height, model.vis.global_.offheight),
        ):
            if not 8 <= value <= most:
                raise UserError(field, value, f"must be between 8 and {most} pixels")
        camera_id = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA, name)
        if camera_id < 0:
            raise UserError("camera", name, "no such camera in the scene")
        self._model = model
        self._context = _new_context(width, height)
        self._context.make_current()
        self._scene = mujoco.MjvScene(model=model, maxgeom=200)
        self._option = mujoco.MjvOption()
        self._view = mujoco.MjvCamera()
        self._view.type = mujoco.mjtCamera.mjCAMERA_FIXED
        self._view.fixedcamid = camera_id
        self._rectangle = mujoco.MjrRect(0, 0, width, height)
        self._gl = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100.value)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, self._gl)
        self._pixels = np.empty((height, width, 3), dtype=np.uint8)

    def render(self, data: mujoco.MjData) -> Array:
        """The picture of `data` now: uint8 [height, width, 3], RGB, row 0 at the top."""
        mujoco.mjv_updateScene(
            self._model,
            data,
            self._option,
            None,
            self._view,
            mujoco.mjtCatBit.mjCAT_ALL.value,
            self._scene,
        )
        mujoco.mjr_render(self._rectangle, self._scene, self._gl)
        mujoco.mjr_readPixels(self._pixels, None, self._rectangle, self._gl)
        return np.ascontiguousarray(self._pixels[::-1])

    def close(self) -> None:
        self._context.make_current()
        self._gl.free()
        self._context.free()

    def __enter__(self) -> Camera:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _new_context(width: int, height: int) -> Any:
    """An OpenGL context: EGL, unless MUJOCO_GL names another way."""
    backend = os.environ.get("MUJOCO_GL", "egl").strip().lower()
    if backend not in _BACKENDS:
        raise UserError("MUJOCO_GL", backend, f"one of {', '.join(_BACKENDS)}")
    try:
        return importlib.import_module(f"mujoco.{backend}").GLContext(width, height)
    # PyOpenGL raises any of these for a missing library.
    except (ImportError, AttributeError, RuntimeError, OSError, TypeError) as error:
        raise UserError(
            "MUJOCO_GL", backend, f"no headless rendering here ({error}); try: {EGL_APT_LINE}"
        ) from error
