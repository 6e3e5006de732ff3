"""Cameras and joint states in, one matched and resized Observation out.

Inputs: `camera/<name>/image_raw` (or `.../compressed`), `joint_states` and others named in
`joint_state_topics`, `instruction`. Output: `observation`, at most `max_rate_hz` times a second,
and only if every part is present; /diagnostics names the source that is missing. Everything runs on
the executor's thread except resizing (physis_ros.observation.images). While an observation is due,
an image is resized when it arrives; otherwise it is kept and resized only if it is used.
"""

from __future__ import annotations

import array
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sensor_msgs.msg import Image, JointState
from std_msgs.msg import String

from physis_core.types import UserError
from physis_ros.msg import Observation
from physis_ros.node.base import OK, WARN, Diagnosis, PhysisNode, main
from physis_ros.node.graph import publisher_names, with_publisher
from physis_ros.node.interfaces import (
    INSTRUCTION,
    JOINT_STATES,
    OBSERVATION,
    camera_compressed,
    camera_raw,
)
from physis_ros.node.time_messages import ns_to_time, time_to_ns
from physis_ros.observation.images import CameraMessage, ObservationImages
from physis_ros.observation.parameters import (
    ObservationParameters,
    WantedInputs,
    wanted_inputs,
)
from physis_ros.observation.sync import Matched, ObservationSync, SyncConfig
from physis_ros.robot.joint_publishers import JointPublishers
from physis_ros.robot.joint_readings import joint_readings

_SILENCE_S = 1.0
"""Without an observation for so long, the node waits for something."""


class ObservationNode(PhysisNode[ObservationParameters]):
    """See the module docstring."""

    def __init__(self) -> None:
        super().__init__("observation_node", ObservationParameters)
        self._inputs: WantedInputs | None = None
        self._sync: ObservationSync[CameraMessage] | None = None
        self._entities: list[Any] = []
        self._output: Any = None
        self._instruction = ""
        self._next_id = 0
        self._not_before_s = 0.0
        self._image_waits = False
        self._published = 0
        self._published_before = 0
        self._clock_suspect = False
        self._unreadable: dict[str, str] = {}
        self._images: ObservationImages | None = None
        self._joint_publishers: JointPublishers | None = None
        self._disagree = ""
        self._published_s = -math.inf

    def validate_parameters(self, new: ObservationParameters) -> None:
        for name in new.compressed_cameras:
            if new.camera_names and name not in new.camera_names:
                raise UserError("compressed_cameras", name, "is not among camera_names")
        if not new.joint_state_topics:
            raise UserError("joint_state_topics", [], "needs at least one topic")
        if not new.stream_id:
            raise UserError("stream_id", new.stream_id, "must not be empty")

    def configure(self) -> None:
        params = self.params
        self._inputs = wanted_inputs(params)
        for name in params.compressed_cameras:
            if name not in self._inputs.camera_names:
                cameras = ", ".join(self._inputs.camera_names)
                raise UserError("compressed_cameras", name, f"cameras are {cameras}")
        self._sync = ObservationSync(
            SyncConfig(
                cameras=self._inputs.camera_names,
                joints=self._inputs.sensor_joints,
                slop_s=params.slop_s,
                max_age_s=params.max_age_s,
                future_s=params.future_s,
                clock_jump_s=params.clock_suspect_s,
            )
        )
        self._images = ObservationImages(
            self._inputs.camera_names, self._inputs.image_size, slop_s=params.slop_s
        )
        self._joint_publishers = JointPublishers(self._inputs.joint_names)
        self._output = self.publisher(OBSERVATION)

    def activate(self) -> None:
        assert self._inputs is not None, "activate follows configure"
        for camera in self._inputs.camera_names:
            compressed = camera in self.params.compressed_cameras
            topic = camera_compressed(camera) if compressed else camera_raw(camera)

            def on_image(message: CameraMessage, camera: str = camera) -> None:
                self._take_image(camera, message)

            self._entities.append(self.subscribe(topic, on_image))
        for name in self.params.joint_state_topics:
            topic = replace(JOINT_STATES, name=name)
            self._entities.append(self.subscribe(topic, with_publisher(self._take_joints)))
        self._entities.append(self.subscribe(INSTRUCTION, self._take_instruction))

    def deactivate(self) -> None:
        for subscription in self._entities:
            self.destroy_subscription(subscription)
        self._entities.clear()
        if self._images is not None:
            self._images.forget()
        if self._sync is not None:
            self._sync.reset()
        if self._joint_publishers is not None:
            self._joint_publishers.forget()

    def cleanup(self) -> None:
        self.deactivate()
        if self._output is not None:
            self.destroy_publisher(self._output)
        self._output = None
        if self._images is not None:
            self._images.close()
        self._images = None
        self._joint_publishers = None
        self._sync = None
        self._inputs = None

    def on_clock_jump(self, delta_s: float) -> None:
        if self._sync is not None:
            self._sync.reset()
        if self._images is not None:
            self._images.forget()
        self._not_before_s = 0.0

    def _take_image(self, camera: str, message: CameraMessage) -> None:
        assert self._sync is not None, "subscriptions live between activate and cleanup"
        assert self._images is not None, "subscriptions live between activate and cleanup"
        stamp_ns, now_s = time_to_ns(message.header.stamp), self.steady_s()
        refused = self._sync.add_image(
            camera,
            message,
            stamp_ns=stamp_ns,
            receipt_ns=self.now_ns(),
            receipt_s=now_s,
            clock_step_ns=round(self.clock_step_s() * 1e9),
        )
        self._image_waits = True
        if refused is None and now_s >= self._not_before_s:
            # The error of an earlier image that no observation has used.
            if (error := self._images.trouble(camera)) is not None:
                self._note_unreadable(f"camera/{camera}", error)
            self._images.begin(camera, message)
            self._publish_newest()

    def _take_joints(self, message: JointState, publisher: bytes | None) -> None:
        assert self._sync is not None, "subscriptions live between activate and cleanup"
        assert self._inputs is not None, "subscriptions live between activate and cleanup"
        assert self._joint_publishers is not None, "subscriptions live between activate and cleanup"
        now_s = self.steady_s()
        self._joint_publishers.see(message.name, message.position, publisher, now_s)
        try:
            stamp_ns = time_to_ns(message.header.stamp)
            readings = joint_readings(message, self._inputs.sensor_joints, stamp_ns=stamp_ns)
        except UserError as error:
            self._note_unreadable("joint_states", error)
            return
        if readings:
            self._unreadable.pop("joint_states", None)
        self._sync.add_joints(
            readings,
            receipt_ns=self.now_ns(),
            receipt_s=now_s,
            clock_step_ns=round(self.clock_step_s() * 1e9),
        )
        if self._image_waits or not self._inputs.camera_names:
            self._publish_newest()

    def _take_instruction(self, message: String) -> None:
        self._instruction = message.data

    def _publish_newest(self) -> None:
        assert self._sync is not None
        now_s = self.steady_s()
        if now_s < self._not_before_s:
            return
        if self._disagreement(now_s):
            return
        matched = self._sync.match(now_s)
        if not isinstance(matched, Matched):
            return
        self._image_waits = False
        images = self._read_images(matched.images)
        if images is None:
            return
        period_s = 1.0 / self.params.max_rate_hz
        # Due times keep the rate: a camera slightly above the limit is not halved.
        self._not_before_s = max(self._not_before_s + period_s, now_s - period_s / 2)
        self._output.publish(self._message(matched, images))
        self._published += 1
        self._published_s = now_s
        self._clock_suspect = matched.clock_suspect

    def _read_images(self, messages: Sequence[CameraMessage]) -> list[Image] | None:
        """The resized images; None, with the reason noted, where one cannot be read."""
        assert self._inputs is not None
        assert self._images is not None
        images = []
        for camera, message in zip(self._inputs.camera_names, messages):
            try:
                images.append(self._images.read(camera, message))
            except UserError as error:
                self._note_unreadable(f"camera/{camera}", error)
                return None
            self._unreadable.pop(f"camera/{camera}", None)
        return images

    def _message(self, matched: Matched[CameraMessage], images: list[Image]) -> Observation:
        assert self._inputs is not None
        message = Observation()
        message.header.stamp = ns_to_time(matched.capture_newest_ns)
        message.header.frame_id = images[0].header.frame_id if images else ""
        message.stream_id = self.params.stream_id
        message.observation_id = self._next_id
        self._next_id += 1
        message.capture_oldest = ns_to_time(matched.capture_oldest_ns)
        message.capture_newest = message.header.stamp
        message.receipt = ns_to_time(matched.receipt_ns)
        message.clock_suspect = matched.clock_suspect
        message.camera_names = list(self._inputs.camera_names)
        message.images = images
        message.joint_names = list(self._inputs.joint_names)
        message.positions = array.array("d", matched.positions)
        message.velocities = array.array("d", matched.velocities or ())
        message.instruction = self._instruction
        return message

    def _disagreement(self, now_s: float) -> str:
        """Which two publishers report different positions of a joint; empty where none do."""
        assert self._joint_publishers is not None
        found = self._joint_publishers.disagreement(now_s)
        if found is None:
            self._disagree = ""
        elif not self._disagree:
            names: dict[bytes, str] = {}
            for topic in self.params.joint_state_topics:
                names.update(publisher_names(self, topic))
            self._disagree = f"joint_states: {found.line(names)}"
            self.get_logger().error(f"no observation: {self._disagree}")
        return self._disagree

    def _note_unreadable(self, source: str, error: UserError) -> None:
        assert self._sync is not None
        reason = str(error)
        if self._unreadable.get(source) != reason:
            self.get_logger().error(reason)
        self._unreadable[source] = reason
        self._sync.note_trouble(source, reason)

    def diagnose(self) -> Sequence[Diagnosis]:
        if self._sync is None or not self.active:
            return ()
        published = self._published - self._published_before
        self._published_before = self._published
        reasons = self._reasons()
        values: dict[str, object] = {"observations": self._published, "in_last_second": published}
        for name, counts in self._sync.counts().items():
            refused = (counts.unstamped, counts.repeated, counts.back, counts.future)
            if name.startswith("camera/") or any(refused):
                values[name] = (
                    f"accepted {counts.accepted}, unstamped {counts.unstamped}, "
                    f"repeated {counts.repeated}, back {counts.back}, future {counts.future}"
                )
        if reasons:
            message = "; ".join(reasons)
            return (Diagnosis(part="observation", level=WARN, message=message, values=values),)
        if self._clock_suspect:
            text = "the clocks of a sensor and of this host disagree"
            return (Diagnosis(part="observation", level=WARN, message=text, values=values),)
        return (Diagnosis(part="observation", level=OK, message="observing", values=values),)

    def waits_for(self) -> str:
        if self.steady_s() - self._published_s < _SILENCE_S:
            return ""
        return "; ".join(self._reasons()) or "a newer image or joint state"

    def _reasons(self) -> list[str]:
        """Why no observation can be made now; empty where nothing is missing."""
        assert self._sync is not None
        now_s = self.steady_s()
        if disagreement := self._disagreement(now_s):
            return [disagreement]
        missing = self._sync.why_unmatched(now_s)
        unreadable = list(self._unreadable.values())
        return [
            *(
                f"{name}: {reason}"
                for name, reason in missing.items()
                # What cannot be read names its source itself.
                if not reason.startswith(tuple(unreadable))
            ),
            *unreadable,
        ]


if __name__ == "__main__":
    sys.exit(main(ObservationNode))
