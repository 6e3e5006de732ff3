"""Parameters of observation_node, with ranges and units, and what they say the model wants; their
values are in config/observation_node.param.yaml.
"""

from __future__ import annotations

from dataclasses import dataclass

from physis_core.model.description import check_names
from physis_core.model.registry import describe
from physis_core.types import UserError
from physis_ros.node.model_file import named_model
from physis_ros.node.parameters import BaseParameters, param
from physis_ros.robot.joint_readings import with_prefix
from physis_ros.robot.robot_files import check_robot_joints


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservationParameters(BaseParameters):
    stream_id: str = param("arm", description="Stream (robot) that the observations belong to")
    model: str = param(
        "",
        description="The engine's model (file, folder, name in checkpoints/, or family), which "
        "names cameras, joints and image size; empty, for a host without the file: camera_names, "
        "joint_names, image_height and image_width do",
    )
    policy_contract: str = param(
        "",
        description="In place of a model, the contract of another policy (a name in "
        "config/policies, or a file), which names cameras, joints and image size",
    )
    robot_file: str = param(
        "",
        description="The robot's file (a name in config/robots, or a path): a model that moves "
        "other joints is refused; empty: not checked",
    )
    joint_prefix: str = param(
        "",
        description="In front of each joint's name in the robot's messages (UR: tf_prefix); the "
        "model and robot_file may leave it out",
    )
    camera_names: tuple[str, ...] = param(
        (), description="Cameras that there are; with a model: it must need no others"
    )
    joint_names: tuple[str, ...] = param(
        (), description="Joints that there are; with a model: it must need no others"
    )
    image_height: int = param(
        0, description="Height to resize to; 0: the model's", unit="pixel", minimum=0
    )
    image_width: int = param(
        0, description="Width to resize to; 0: the model's", unit="pixel", minimum=0
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


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedInputs:
    """What an observation holds, in the model's order. `image_size` is (height, width);
    `sensor_joints` are the joints' names in the robot's messages."""

    camera_names: tuple[str, ...]
    joint_names: tuple[str, ...]
    sensor_joints: tuple[str, ...]
    image_size: tuple[int, int]


def wanted_inputs(params: ObservationParameters) -> WantedInputs:
    """From the policy's contract, from the model, or from the parameters where neither is named.

    Raises:
        UserError: neither names them, or the model needs a camera or joint that is not there.
    """
    if params.policy_contract:
        wanted = _of_contract(params)
    else:
        wanted = _of_model(params) if params.model else _of_parameters(params)
    check_robot_joints(wanted.joint_names, params.robot_file, params.joint_prefix)
    return wanted


def _of_parameters(params: ObservationParameters) -> WantedInputs:
    size = (params.image_height, params.image_width)
    if not params.joint_names:
        raise UserError("joint_names", [], "set it, or model")
    if params.camera_names and 0 in size:
        raise UserError("image_height, image_width", size, "set both, or model")
    return WantedInputs(
        camera_names=params.camera_names,
        joint_names=params.joint_names,
        sensor_joints=_sensor_joints(params, params.joint_names),
        image_size=size,
    )


def _sensor_joints(params: ObservationParameters, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(with_prefix(name, params.joint_prefix) for name in names)


def _of_contract(params: ObservationParameters) -> WantedInputs:
    from physis_ros.robot.policy_contract import load_policy_contract

    contract = load_policy_contract(params.policy_contract)
    return _needed(
        params, contract.camera_names, contract.state_joints, contract.image_size, "contract"
    )


def _of_model(params: ObservationParameters) -> WantedInputs:
    described = describe(named_model(params.model))
    if not described.joints:
        raise UserError("model", params.model, f"is a {described.purpose}: it reads no joints")
    return _needed(params, described.camera_names, described.joints, described.image_size, "model")


def _needed(
    params: ObservationParameters,
    cameras: tuple[str, ...],
    joints: tuple[str, ...],
    size: tuple[int, int],
    who: str,
) -> WantedInputs:
    """What `who` needs, checked against what the parameters say there is."""
    for field, needed, present in (
        ("camera_names", cameras, params.camera_names),
        ("joint_names", joints, params.joint_names),
    ):
        if present:
            check_names(field, needed, present, where=f"the parameter {field}")
    for name, given, needed_size in zip(
        ("image_height", "image_width"), (params.image_height, params.image_width), size
    ):
        if given not in (0, needed_size):
            raise UserError(name, given, f"the {who} has {needed_size}")
    return WantedInputs(
        camera_names=cameras,
        joint_names=joints,
        sensor_joints=_sensor_joints(params, joints),
        image_size=size,
    )
