"""What a person may choose when a stack is started, by `physis up` or by `ros2 launch`.

`physis up` reads each choice as an option (`--params-file FILE`), a launch file as an argument of
the same name (`params_file:=FILE`). All of them come after the files: they are the command line in
the order of parameters (docs/reference/parameters.md).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from physis_core.files import nearest, parse_yaml
from physis_core.types import UserError
from physis_ros.policies.wire import parse_address

NAMESPACE = re.compile(r"(/?[A-Za-z_][A-Za-z0-9_]*)(/[A-Za-z_][A-Za-z0-9_]*)*\Z")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_REMAP = re.compile(r"(?:(?P<node>[A-Za-z_]\w*):)?(?P<source>[~/\w]+):=(?P<target>[~/\w]+)\Z")
SIMULATED = "sim"
"""`robot: sim` runs the simulated arm; its limits are those of SIMULATED_ROBOT."""
SIMULATED_ROBOT = "ur5e"
SIMULATED_CONTRACT = "demo_arm"
"""In `config/policies/`: what the simulated arm sends to a policy."""
ENGINES = ("local", "remote", "none")
LOG_LEVELS = ("debug", "info", "warn", "error", "fatal")
CONTROLLER_TOPICS = (
    "joint_trajectory_controller/joint_trajectory",
    "forward_position_controller/commands",
)

CHOICES = {
    "namespace": ("", "the robot's namespace, such as left"),
    "params_file": ("", "ROS parameter file, laid over the values of the stack"),
    "robot": (SIMULATED, f"'{SIMULATED}' (a simulated arm), a name in config/robots, or a file"),
    "use_sim_time": ("false", "take ROS time from /clock"),
    "engine": (
        "local",
        f"{', '.join(ENGINES)}: whether the engine node runs here, elsewhere, or not at all",
    ),
    "policy": (
        "",
        "SCHEME://HOST:PORT, such as openpi://: a policy server in the engine's place",
    ),
    "policy_contract": ("", "how observations become its requests: a name in config/policies"),
    "model": ("", "the model of every node that has one: file, folder, checkpoint or family"),
    "urdf": ("", "the robot's description, a file with further limits"),
    "joint_prefix": ("", "in front of the joint names of the robot's driver (UR: tf_prefix)"),
    "cameras": ("", "cameras that there are: NAME or NAME=TOPIC, separated by commas"),
    "controller_topic": ("", "where the robot's controller takes its trajectories"),
    "log_level": ("", f"{', '.join(LOG_LEVELS)}; or LOGGER:=LEVEL"),
    "remap": ("", "[NODE:]FROM:=TO, as in ROS"),
    "set": ("", "NODE.PARAM=VALUE: one parameter of one node, the strongest of all"),
}
"""Name -> default and meaning."""
REPEATED = ("params_file", "remap", "set")
"""`physis up` takes these more than once. A launch argument `set` or `remap` holds several,
separated by spaces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Camera:
    """A camera under its name in the model; `topic`: where its driver publishes, if elsewhere."""

    name: str
    topic: str = ""

    @property
    def compressed(self) -> bool:
        return self.topic.endswith("/compressed")

    def remaps(self) -> tuple[str, ...]:
        """Rules that lead our topics of this camera to those of its driver."""
        if not self.topic:
            return ()
        ours, theirs = f"camera/{self.name}/image_raw", self.topic.removesuffix("/compressed")
        return (f"{ours}:={theirs}", f"{ours}/compressed:={theirs}/compressed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The choices, checked.

    `robot`: `sim`, or a name in `config/robots/`, or the path of such a file. `engine`: `local`
    runs the engine here, `remote` leaves it to another host of the domain, `none` runs none.
    `sets`: (node, parameter, value), the strongest of all; `left/buffer_node` is that of the robot
    `left` alone.
    """

    namespace: str = ""
    params_files: tuple[Path, ...] = ()
    robot: str = SIMULATED
    use_sim_time: bool = False
    engine: str = "local"
    policy: str = ""
    policy_contract: str = ""
    model: str = ""
    urdf: str = ""
    joint_prefix: str = ""
    cameras: tuple[Camera, ...] = ()
    controller_topic: str = ""
    log_level: str = ""
    remaps: tuple[str, ...] = ()
    sets: tuple[tuple[str, str, Any], ...] = ()

    def __post_init__(self) -> None:
        if self.namespace and not NAMESPACE.match(self.namespace):
            raise UserError("namespace", self.namespace, "must be a ROS namespace such as left/arm")
        if self.engine not in ENGINES:
            raise UserError("engine", self.engine, f"must be one of {', '.join(ENGINES)}")
        if self.policy_contract and not self.policy:
            raise UserError("policy_contract", self.policy_contract, "needs policy, too")
        if self.policy:
            parse_address(self.policy)
        if self.policy and self.engine != "local":
            raise UserError("engine", self.engine, "has no place beside policy: leave it out")
        if self.policy and not self.contract:
            raise UserError("policy_contract", "", f"name that of robot {self.robot!r}")
        if self.controller_topic and not NAMESPACE.match(self.controller_topic):
            raise UserError("controller_topic", self.controller_topic, "must be a ROS topic")
        if self.joint_prefix and not _NAME.match(self.joint_prefix):
            raise UserError("joint_prefix", self.joint_prefix, "must be letters, digits and _")
        level = self.log_level.rpartition(":=")[2].lower()
        if self.log_level and level not in LOG_LEVELS:
            raise UserError("log_level", self.log_level, f"must be one of {', '.join(LOG_LEVELS)}")
        for remap in self.remaps:
            _check_remap(remap)

    @property
    def contract(self) -> str:
        """The policy's contract; without a choice that of the simulated arm, for this arm alone."""
        return self.policy_contract or (SIMULATED_CONTRACT if self.robot == SIMULATED else "")

    def namespace_of(self, robot: str) -> str:
        """Absolute; `robot`: its name in the stack, or empty."""
        return "/" + "/".join(filter(None, (self.namespace.strip("/"), robot)))

    def full_name(self, node: str, robot: str) -> str:
        """Of a node in ROS."""
        return f"{self.namespace_of(robot).rstrip('/')}/{node}"

    def arguments(self) -> dict[str, tuple[str, Any]]:
        """Choices that are a parameter of each node that has it: parameter -> choice, value."""
        found: dict[str, tuple[str, Any]] = {}
        if self.policy:
            found["policy"] = ("policy", self.policy)
            found["policy_contract"] = ("policy_contract", self.contract)
        if self.model:
            found["model"] = ("model", self.model)
        if self.urdf:
            found["robot_description_file"] = ("urdf", self.urdf)
        if self.joint_prefix:
            found["joint_prefix"] = ("joint_prefix", self.joint_prefix)
        if self.cameras:
            found["camera_names"] = ("cameras", [camera.name for camera in self.cameras])
        compressed = [camera.name for camera in self.cameras if camera.compressed]
        if compressed:
            found["compressed_cameras"] = ("cameras", compressed)
        if self.use_sim_time:
            found["use_sim_time"] = ("use_sim_time", True)
        return found

    def remap_rules(self) -> tuple[str, ...]:
        """Of every node, the strongest first: ROS takes the first rule that fits."""
        rules = list(self.remaps)
        for camera in self.cameras:
            rules += camera.remaps()
        if self.controller_topic:
            rules += [f"{topic}:={self.controller_topic}" for topic in CONTROLLER_TOPICS]
        return tuple(rules)


def options_from_texts(texts: Mapping[str, str]) -> Options:
    """The choices of a launch file: each a text, empty where it was not made.

    Raises:
        UserError: naming the choice and its value.
    """
    given = {name: texts.get(name, default) for name, (default, _) in CHOICES.items()}
    return Options(
        namespace=given["namespace"],
        params_files=(Path(given["params_file"]),) if given["params_file"] else (),
        robot=given["robot"],
        use_sim_time=truth("use_sim_time", given["use_sim_time"]),
        engine=given["engine"],
        policy=given["policy"],
        policy_contract=given["policy_contract"],
        model=given["model"],
        urdf=given["urdf"],
        joint_prefix=given["joint_prefix"],
        cameras=parse_cameras(given["cameras"]),
        controller_topic=given["controller_topic"],
        log_level=given["log_level"],
        remaps=_words("remap", given["remap"]),
        sets=tuple(parse_set(text) for text in _words("set", given["set"])),
    )


def truth(name: str, text: str) -> bool:
    """Raises UserError where the text is neither true nor false."""
    if text.lower() not in ("true", "false"):
        raise UserError(name, text, "must be true or false")
    return text.lower() == "true"


def check_arguments(given: Mapping[str, str], known: tuple[str, ...]) -> None:
    """Refuse a launch argument that nobody declares; `ros2 launch` drops it without a word."""
    for name, value in given.items():
        if name not in known:
            raise UserError(
                name, value, f"is no argument of this launch file{nearest(name, known)}"
            )


def parse_set(text: str) -> tuple[str, str, Any]:
    """Split `node.parameter=value`; the value is read as YAML, as `ros2 param set` reads it."""
    target, sign, value = text.partition("=")
    node, dot, parameter = target.partition(".")
    if not (sign and dot and node and parameter):
        raise UserError("set", text, "must be node.parameter=value")
    read = parse_yaml(value, text, "set") if value else ""
    if read is None or isinstance(read, Mapping):
        raise UserError("set", text, "its value must be a number, text, true, false or a list")
    return node, parameter, read


def parse_cameras(text: str) -> tuple[Camera, ...]:
    """`front=/realsense/color/image_raw,wrist`: names in the model, and topics of the drivers."""
    cameras: list[Camera] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, sign, topic = part.partition("=")
        if not _NAME.match(name) or (sign and not NAMESPACE.match(topic)):
            raise UserError("cameras", part, "must be NAME or NAME=TOPIC")
        if any(camera.name == name for camera in cameras):
            raise UserError("cameras", name, "is named twice")
        cameras.append(Camera(name=name, topic=topic))
    return tuple(cameras)


def remapped_node(rule: str) -> str:
    """The node that a rule is for; empty: every node."""
    found = _REMAP.match(rule)
    return (found["node"] or "") if found else ""


def _check_remap(rule: str) -> None:
    found = _REMAP.match(rule)
    if found is None:
        raise UserError("remap", rule, "must be FROM:=TO or NODE:FROM:=TO")
    if found["source"].startswith("__"):
        raise UserError("remap", rule, "names and namespaces are not remapped; set namespace")


def _words(name: str, text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UserError(name, text, str(error).lower()) from None
