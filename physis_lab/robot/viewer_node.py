"""A live window with the camera image and the current action age.

Inputs: one raw camera, `stream_status`. The window (GLFW) needs a screen; closing it ends only this
node. It has its own thread, because GLFW must be called from a single thread.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import glfw
import numpy as np
from OpenGL import GL

from physis_core.observe.video import BAR_PX, SIDE_PX, draw_age
from physis_core.types import UserError
from physis_lab.robot.parameters import ViewerParameters
from physis_ros.node.base import EXIT_OK, PhysisNode, main
from physis_ros.node.image_messages import image_to_rgb
from physis_ros.node.interfaces import STREAM_STATUS, camera_raw

SIZE = (SIDE_PX, SIDE_PX + BAR_PX)


class ViewerNode(PhysisNode[ViewerParameters]):
    def __init__(self) -> None:
        super().__init__("viewer_node", ViewerParameters)
        self._picture = draw_age(np.zeros((8, 8, 3), np.uint8), float("nan"), 0)
        self._age_ms = float("nan")
        self._chunks = 0
        self._fresh = threading.Event()
        self._end = threading.Event()
        self._opened = threading.Event()
        self._refusal = ""
        self._thread: threading.Thread | None = None
        self._handles: list[Any] = []

    def configure(self) -> None:
        self._end.clear()
        self._opened.clear()
        self._thread = threading.Thread(target=self._window, name="window", daemon=True)
        self._thread.start()
        self._opened.wait()
        if self._refusal:
            raise UserError("show", True, self._refusal)
        self._handles = [
            self.subscribe(camera_raw(self.params.camera), self._on_image),
            self.subscribe(STREAM_STATUS, self._on_status),
        ]

    def cleanup(self) -> None:
        self._end.set()
        self._fresh.set()
        if self._thread is not None:
            self._thread.join(timeout=5.0)
        for handle in self._handles:
            self.destroy_subscription(handle)
        self._handles.clear()

    def _on_image(self, message: Any) -> None:
        self._picture = draw_age(
            image_to_rgb(message, field=self.params.camera), self._age_ms, self._chunks
        )
        self._fresh.set()

    def _on_status(self, message: Any) -> None:
        self._age_ms = message.action_age_servo_ms.p50
        self._chunks = message.chunks

    def _window(self) -> None:
        if not glfw.init():
            self._refusal = "no window can be opened on this screen"
            self._opened.set()
            return
        glfw.window_hint(glfw.RESIZABLE, glfw.FALSE)
        window = glfw.create_window(*SIZE, "physis: camera and action age", None, None)
        if not window:
            self._refusal = "no window with OpenGL can be opened on this screen"
        self._opened.set()
        if window:
            glfw.make_context_current(window)
            while not self._end.is_set() and not glfw.window_should_close(window):
                if self._fresh.wait(timeout=0.1):
                    self._fresh.clear()
                    self._show(window)
                glfw.poll_events()
            if not self._end.is_set():
                self.request_exit(EXIT_OK, "the window was closed")
        glfw.terminate()

    def _show(self, window: Any) -> None:
        picture = np.ascontiguousarray(self._picture[::-1])
        GL.glViewport(0, 0, *glfw.get_framebuffer_size(window))
        GL.glPixelStorei(GL.GL_UNPACK_ALIGNMENT, 1)
        GL.glRasterPos2f(-1.0, -1.0)
        GL.glDrawPixels(*SIZE, GL.GL_RGB, GL.GL_UNSIGNED_BYTE, picture)
        glfw.swap_buffers(window)


if __name__ == "__main__":
    sys.exit(main(ViewerNode))
