"""Parameters of observation_node, with ranges and units, and what they say the model wants; their
values are in config/observation_node.param.yaml.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from physis_core.model.inputs import ModelInputs, read_model_inputs
from physis_core.types import UserError
from physis_ros.engine.checkpoint_file import checkpoint_path
from physis_ros.node.base import BaseParameters
from physis_ros.node.parameters import param


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservationParameters(BaseParameters):
    stream_id: str = param("arm", description="Stream (robot) that the observations belong to")
    checkpoint: str = param(
        "physis_tiny_follow",
        description="Checkpoint whose metadata names cameras, joints and image size; empty: "
        "camera_names, joint_names, image_height and image_width do",
    )
    camera_names: tuple[str, ...] = param(
        (), description="Cameras in the model's order; empty: those of the checkpoint"
    )
    joint_names: tuple[str, ...] = param(
        (), description="Joints in the model's order; empty: those of the checkpoint"
    )
    image_height: int = param(
        0, description="Height to resize to; 0: the checkpoint's", unit="pixel", minimum=0
    )
    image_width: int = param(
        0, description="Width to resize to; 0: the checkpoint's", unit="pixel", minimum=0
    )
    compressed_cameras: tuple[str, ...] = param(
        (), description="Cameras of which the compressed topic is read"
    )
    joint_state_topics: tuple[str, ...] = param(
        ("joint_states",), description="Topics that together bring all joints"
    )
    max_rate_hz: float = param(
        30.0,
        description="Most observations per second",
        unit="Hz",
        minimum=0.1,
        maximum=1000.0,
        runtime=True,
    )
    slop_s: float = param(
        0.02,
        description="Largest difference between the stamps of an observation's parts",
        unit="s",
        minimum=0.0,
        maximum=1.0,
    )
    max_age_s: float = param(
        0.3,
        description="A source without a new stamp for this long (steady time) is missing",
        unit="s",
        minimum=0.01,
        maximum=60.0,
    )
    future_s: float = param(
        0.05,
        description="How far ahead of ROS time a sensor stamp may lie",
        unit="s",
        minimum=0.0,
        maximum=10.0,
    )
    clock_suspect_s: float = param(
        0.5,
        description="A change of (receipt - stamp) by more than this makes the clock suspect",
        unit="s",
        minimum=0.01,
        maximum=60.0,
    )


def wanted_inputs(params: ObservationParameters) -> ModelInputs:
    """From the checkpoint, or the parameters, which must not contradict it.

    Raises:
        UserError: something is said by neither, or differently by both.
    """
    given_size = (params.image_height, params.image_width)
    if not params.checkpoint:
        if not params.joint_names:
            raise UserError("joint_names", [], "set it, or checkpoint")
        if params.camera_names and 0 in given_size:
            raise UserError("image_height, image_width", given_size, "set both, or checkpoint")
        return ModelInputs(
            camera_names=params.camera_names,
            joint_names=params.joint_names,
            image_size=given_size,
            period_s=math.nan,
        )
    inputs = read_model_inputs(checkpoint_path(params.checkpoint))
    if params.camera_names and params.camera_names != inputs.camera_names:
        raise UserError(
            "camera_names", list(params.camera_names), f"the model has {list(inputs.camera_names)}"
        )
    if params.joint_names and params.joint_names != inputs.joint_names:
        raise UserError(
            "joint_names", list(params.joint_names), f"the model has {list(inputs.joint_names)}"
        )
    for name, given, needed in zip(("image_height", "image_width"), given_size, inputs.image_size):
        if given not in (0, needed):
            raise UserError(name, given, f"the model has {needed}")
    return inputs
