"""Records a run: camera frames, and every stream and safety status.

Inputs: one raw camera, `stream_status`, `safety_status`. Outputs, below `record_path`:
`<camera>.frames` (physis_core.observe.framelog) and `status.jsonl` (one JSON object per line with
`topic`, `ros_ns` and the message's fields). Every entry is flushed at once, so the record survives
a killed process.
"""

from __future__ import annotations

import array
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from physis_core.observe.framelog import FrameLog
from physis_core.types import UserError
from physis_lab.robot.parameters import RecorderParameters
from physis_ros.node.base import PhysisNode, main
from physis_ros.node.image_messages import image_to_rgb
from physis_ros.node.interfaces import SAFETY_STATUS, STREAM_STATUS, Topic, camera_raw
from physis_ros.node.time_messages import time_to_ns


class RecorderNode(PhysisNode[RecorderParameters]):
    def __init__(self) -> None:
        super().__init__("recorder_node", RecorderParameters)
        self._frames: FrameLog | None = None
        self._status: TextIO | None = None
        self._count = 0
        self._handles: list[Any] = []

    def configure(self) -> None:
        directory = Path(self.params.record_path)
        self._frames = FrameLog(directory / f"{self.params.camera}.frames")
        self._status = (directory / "status.jsonl").open("w")
        self._handles = [
            self.subscribe(camera_raw(self.params.camera), self._on_image),
            *(
                self.subscribe(topic, partial(self._on_status, topic))
                for topic in (STREAM_STATUS, SAFETY_STATUS)
            ),
        ]

    def cleanup(self) -> None:
        for handle in self._handles:
            self.destroy_subscription(handle)
        self._handles.clear()
        if self._frames is not None:
            self._frames.close()
            self._frames = None
        if self._status is not None:
            self._status.close()
            self._status = None

    def _on_image(self, message: Any) -> None:
        self._count += 1
        if self._frames is None or self._count > self.params.max_frames:
            return
        try:
            rgb = image_to_rgb(message, field=self.params.camera)
            self._frames.append(time_to_ns(message.header.stamp), rgb)
        except UserError as error:
            self.set_fault(str(error))

    def _on_status(self, topic: Topic, message: Any) -> None:
        if self._status is None:
            return
        entry = {"topic": topic.name, "ros_ns": self.now_ns(), **to_plain(message)}
        self._status.write(json.dumps(entry) + "\n")
        self._status.flush()


def to_plain(value: Any) -> Any:
    """A message as dicts, lists, numbers and strings; numeric arrays become lists."""
    if hasattr(value, "get_fields_and_field_types"):
        return {name: to_plain(getattr(value, name)) for name in value.get_fields_and_field_types()}
    if isinstance(value, (np.ndarray, array.array)):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    return value


if __name__ == "__main__":
    sys.exit(main(RecorderNode))
