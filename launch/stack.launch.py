"""Start a stack of config/stacks: what `physis up STACK` runs, under `ros2 launch`.

wam.launch.py, robot.launch.py, engine.launch.py and others include this file with their stack's
name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from launch import Action, LaunchContext, LaunchDescription
from launch.actions import DeclareLaunchArgument, EmitEvent, LogInfo, OpaqueFunction, Shutdown
from launch.events import matches_action
from launch.events.process import ProcessExited, ShutdownProcess
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

from physis_core.types import UserError
from physis_ros.node.share import share_directory
from physis_ros.stack.description import load_stack
from physis_ros.stack.resolution import ENGINES, SIMULATED, NodeRun, Options, resolve
from physis_ros.stack.supervisor import BAD_INPUT_CODE, describe
from physis_ros.stack.transport import with_transport

ARGUMENTS = {
    "stack": ("wam", "a name in config/stacks"),
    "namespace": ("", "the robot's namespace"),
    "params_file": ("", "ROS parameter file, laid over those of the stack"),
    "robot": (SIMULATED, f"'{SIMULATED}' (a simulated arm), a name in config/robots, or a file"),
    "use_sim_time": ("false", "take ROS time from /clock"),
    "engine": ("local", f"whether the engine node runs here: {', '.join(ENGINES)}"),
}

AfterExit = Callable[[ProcessExited, LaunchContext], list[Action] | None]


def truth(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise UserError(name, text, "must be true or false")
    return text.lower() == "true"


class Robots:
    """The nodes that end with each robot, by its name in the stack; the engine's robot has an empty
    name. What stands for the robot itself goes on, as a robot does."""

    def __init__(self) -> None:
        self._nodes: dict[str, list[Node]] = {}

    def node(self, run: NodeRun, transport: Mapping[str, str]) -> Node:
        node = action(run, transport, self._after_exit(run))
        own = self._nodes.setdefault(run.robot, [])
        if run.node.part != "simulated_robot":
            own.append(node)
        return node

    def _after_exit(self, run: NodeRun) -> AfterExit:
        """End the launch with a node that would be refused again, and with the last robot; a robot
        ends alone with a node that it must not be without, while others are there."""

        def decide(event: ProcessExited, context: LaunchContext) -> list[Action] | None:
            if context.is_shutdown:
                return None
            refused = event.returncode == BAD_INPUT_CODE
            # Ended with its robot, after another node of it.
            gone = run.robot not in self._nodes
            if gone or not (run.node.must_live or refused):
                return None
            reason = f"{run.label} {describe(event.returncode)}"
            if refused or run.robot == "" or not self._nodes.keys() - {"", run.robot}:
                return [Shutdown(reason=reason)]
            ended = self._nodes.pop(run.robot)
            said = LogInfo(msg=f"{reason}; the nodes of {run.robot} end, the others go on")
            return [said, *(end(node) for node in ended)]

        return decide


def end(node: Node) -> EmitEvent:
    """As Ctrl-C of this node alone: it is not started again."""
    return EmitEvent(event=ShutdownProcess(process_matcher=matches_action(node)))


def action(run: NodeRun, transport: Mapping[str, str], after_exit: AfterExit) -> Node:
    respawn = run.node.respawn
    parameters: list[object] = [str(path) for path in run.parameter_files]
    if run.parameters:
        parameters.append(dict(run.parameters))
    return Node(
        package="physis_ros",
        executable=run.node.executable,
        name=run.node.name,
        namespace=run.namespace,
        parameters=parameters,
        remappings=list(run.node.remaps.items()),
        additional_env={**transport, **run.node.env},
        output="both",
        emulate_tty=True,
        respawn=respawn is not None,
        respawn_delay=None if respawn is None else respawn.first_s,
        on_exit=after_exit,
    )


def start(context: LaunchContext) -> list[object]:
    chosen = {name: LaunchConfiguration(name).perform(context) for name in ARGUMENTS}
    params_file = chosen["params_file"]
    options = Options(
        namespace=chosen["namespace"],
        params_files=(Path(params_file),) if params_file else (),
        robot=chosen["robot"],
        use_sim_time=truth("use_sim_time", chosen["use_sim_time"]),
        engine=chosen["engine"],
    )
    share = share_directory()
    runs = resolve(load_stack(chosen["stack"], share), options, share)
    names = ", ".join(run.label for run in runs)
    environ = context.environment
    transport = {
        name: value
        for name, value in with_transport(environ, share).items()
        if environ.get(name) != value
    }
    log = LogInfo(msg=f"stack {chosen['stack']}: {names}")
    robots = Robots()
    return [log, *(robots.node(run, transport) for run in runs)]


def generate_launch_description() -> LaunchDescription:
    arguments = [
        DeclareLaunchArgument(name, default_value=default, description=text)
        for name, (default, text) in ARGUMENTS.items()
    ]
    return LaunchDescription([*arguments, OpaqueFunction(function=start)])
