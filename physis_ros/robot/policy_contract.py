"""How a robot's observation becomes a policy's request, and a reply its actions: a typed YAML file.

The files of `config/policies/` hold one contract each. A contract names every camera and joint that
the policy needs, and in which unit; nothing that is missing is ever filled in.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from physis_core.decoding import Count, Part, Positive, decode
from physis_core.files import nearest, read_file
from physis_core.model.description import ModelDescription
from physis_core.types import UserError
from physis_ros.node.share import share_directories

Key = str | Annotated[tuple[str, ...], Meta(min_length=1)]
"""The name of a value in a request or a reply; a list for one in nested mappings."""
Names = Annotated[tuple[str, ...], Meta(min_length=1)]
ActionKind = Literal["absolute", "delta", "step_delta"]

_RAD = math.pi / 180.0


def key_path(key: Key) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else key


class ImageKey(Part, frozen=True, kw_only=True):
    """A camera's image, uint8 [height, width, 3] or with `channels_first` [3, height, width].

    canvas: (height, width) of a black image in whose centre it lies, as openpi pads images.
    """

    camera: str
    key: Key
    channels_first: bool = False
    canvas: tuple[Count, Count] | None = None


class JointValues(Part, frozen=True, kw_only=True):
    """Joints in the order of a vector's columns. Several entries of one key follow each other.

    A value w of the policy stands for the joint position `at_0 + w * (at_1 - at_0)` in `unit`. So a
    gripper that the policy knows from 0 (open) to 1 (closed) names its two joint positions.
    """

    key: Key
    joints: Names
    unit: Literal["si", "deg"] = "si"
    at_0: float = 0.0
    at_1: float = 1.0

    def __post_init__(self) -> None:
        if self.at_0 == self.at_1:
            raise UserError("at_1", self.at_1, "must differ from at_0")

    @property
    def offset(self) -> float:
        """Joint position (rad or m) of the policy's value 0."""
        return self.at_0 * (_RAD if self.unit == "deg" else 1.0)

    @property
    def scale(self) -> float:
        """Rad or m for each unit of the policy's value."""
        return (self.at_1 - self.at_0) * (_RAD if self.unit == "deg" else 1.0)


class ActionValues(JointValues, frozen=True, kw_only=True):
    """Columns of an action.

    kind: `absolute` joint positions; `delta` to the observed position; `step_delta` to the point
    before, the first one to the observed position. Of a delta only the scale counts.
    """

    kind: ActionKind = "absolute"


class Actions(Part, frozen=True, kw_only=True):
    """`horizon` points are used of each reply, `step_s` apart; point 0 applies at the capture."""

    horizon: Count
    step_s: Positive
    parts: Annotated[tuple[ActionValues, ...], Meta(min_length=1)]

    def __post_init__(self) -> None:
        _refuse_twice("parts", self.joints)

    @property
    def joints(self) -> tuple[str, ...]:
        return tuple(joint for part in self.parts for joint in part.joints)


class PolicyContract(Part, frozen=True, kw_only=True):
    """`image_height` and `image_width`: what observation_node resizes every camera to [pixel].

    period_s: time between requests. instruction, session: where these are sent; none: they are not.
    """

    summary: str
    period_s: Positive
    image_height: Annotated[int, Meta(ge=0)] = 0
    image_width: Annotated[int, Meta(ge=0)] = 0
    images: tuple[ImageKey, ...] = ()
    state: Annotated[tuple[JointValues, ...], Meta(min_length=1)]
    instruction: Key | None = None
    session: Key | None = None
    actions: Actions

    def __post_init__(self) -> None:
        _refuse_twice("images", self.camera_names)
        size = self.image_size
        if self.images and 0 in size:
            raise UserError("image_height, image_width", size, "set both: there are images")
        for image in self.images:
            if image.canvas and (image.canvas[0] < size[0] or image.canvas[1] < size[1]):
                raise UserError("images.canvas", image.canvas, f"is smaller than {size}")
        for part in self.actions.parts:
            for joint in part.joints:
                if part.kind != "absolute" and joint not in self.state_joints:
                    raise UserError("actions.parts", joint, "a delta needs the joint in state")

    @property
    def image_size(self) -> tuple[int, int]:
        return (self.image_height, self.image_width)

    @property
    def camera_names(self) -> tuple[str, ...]:
        return tuple(image.camera for image in self.images)

    @property
    def state_joints(self) -> tuple[str, ...]:
        """Each joint of the state once, in order."""
        return tuple(dict.fromkeys(joint for part in self.state for joint in part.joints))


def load_policy_contract(name: str) -> PolicyContract:
    """A file, or a name in `config/policies/`.

    Raises:
        UserError: there is none, or it names the field and the value that are wrong.
    """
    path = _path(name)
    return decode(read_file(path, "policy_contract"), PolicyContract, path.name)


def contract_of_model(described: ModelDescription) -> PolicyContract:
    """The contract under which our server offers a model: keys as DROID names them.

    Raises:
        UserError: the model gives no actions for joints, or names no period.
    """
    actions = described.actions
    if actions is None or not described.joints or described.period_s is None:
        raise UserError("model", described.family, f"is a {described.purpose}: it serves no robot")
    return PolicyContract(
        summary=f"a model of family {described.family}",
        period_s=described.period_s,
        image_height=described.image_size[0],
        image_width=described.image_size[1],
        images=tuple(
            ImageKey(camera=name, key=f"observation/{name}") for name in described.camera_names
        ),
        state=(JointValues(key="observation/joint_position", joints=described.joints),),
        session="session_id",
        actions=Actions(
            horizon=actions.steps,
            step_s=actions.step_s,
            parts=(ActionValues(key="actions", joints=described.joints),),
        ),
    )


def _path(name: str) -> Path:
    given = Path(name).expanduser()
    if given.is_file():
        return given
    known: set[str] = set()
    for share in share_directories():
        folder = share / "config" / "policies"
        if given.parent == Path() and (folder / f"{given.stem}.yaml").is_file():
            return folder / f"{given.stem}.yaml"
        known.update(path.stem for path in folder.glob("*.yaml"))
    raise UserError(
        "policy_contract", name, f"no such file, and not in config/policies{nearest(name, known)}"
    )


def _refuse_twice(field: str, names: tuple[Any, ...]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise UserError(field, name, "is named twice")
