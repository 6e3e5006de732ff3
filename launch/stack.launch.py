"""Start a stack of config/stacks: what `physis up STACK` runs, under `ros2 launch`.

wam.launch.py, robot.launch.py, engine.launch.py and others include this file with their stack's
name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from launch import LaunchContext, LaunchDescription
from launch.actions import DeclareLaunchArgument, LogInfo, OpaqueFunction, Shutdown
from launch.events.process import ProcessExited
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

from physis_core.types import UserError
from physis_ros.stack.description import load_stack
from physis_ros.stack.resolution import ENGINES, SIMULATED, NodeRun, Options, resolve
from physis_ros.stack.share import share_directory
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


def truth(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise UserError(name, text, "must be true or false")
    return text.lower() == "true"


def after_exit(run: NodeRun) -> Callable[[ProcessExited, LaunchContext], Shutdown | None]:
    """End the launch with a node that must live, and with one that would be refused again."""

    def decide(event: ProcessExited, context: LaunchContext) -> Shutdown | None:
        if context.is_shutdown:
            return None
        if run.node.must_live or event.returncode == BAD_INPUT_CODE:
            return Shutdown(reason=f"{run.label} {describe(event.returncode)}")
        return None

    return decide


def action(run: NodeRun, transport: Mapping[str, str]) -> Node:
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
        on_exit=after_exit(run),
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
    return [log, *(action(run, transport) for run in runs)]


def generate_launch_description() -> LaunchDescription:
    arguments = [
        DeclareLaunchArgument(name, default_value=default, description=text)
        for name, (default, text) in ARGUMENTS.items()
    ]
    return LaunchDescription([*arguments, OpaqueFunction(function=start)])
