"""Start a stack of config/stacks: what `physis up STACK` runs, under `ros2 launch`.

wam.launch.py, robot.launch.py, engine.launch.py and others start one stack each with
`stack_description`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from launch import Action, LaunchContext, LaunchDescription
from launch.actions import (
    DeclareLaunchArgument,
    EmitEvent,
    LogInfo,
    OpaqueFunction,
    RegisterEventHandler,
)
from launch.event import Event
from launch.event_handler import BaseEventHandler
from launch.event_handlers import OnShutdown
from launch.events import matches_action
from launch.events.process import ProcessExited, ShutdownProcess
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

from physis_core.types import UserError
from physis_ros.node.share import share_directory
from physis_ros.stack.description import load_stack
from physis_ros.stack.options import CHOICES, check_arguments, options_from_texts, truth
from physis_ros.stack.parameter_layers import table
from physis_ros.stack.reach import reach_of
from physis_ros.stack.resolution import NodeRun, notes, resolve
from physis_ros.stack.supervisor import BAD_INPUT_CODE, describe
from physis_ros.stack.transport import with_transport

STACK = ("wam", "a name in config/stacks, or a file")
PRINT = ("false", "print each parameter and what set it, and start nothing")
OF_LAUNCH = ("launch-prefix", "launch-prefix-filter")
"""Arguments of `ros2 launch` itself."""

AfterExit = Callable[[ProcessExited, LaunchContext], list[Action] | None]


class StackFailed(Event):
    """Ends the launch with a failure code: `ros2 launch` returns 1 after an exception only."""

    name = "physis_ros.StackFailed"

    def __init__(self, reason: str) -> None:
        self.reason = reason


class OnStackFailed(BaseEventHandler):
    def __init__(self) -> None:
        super().__init__(matcher=lambda event: isinstance(event, StackFailed))

    def handle(self, event: Event, context: LaunchContext) -> None:
        super().handle(event, context)
        raise RuntimeError(event.reason)


class Robots:
    """The nodes that end with each robot, by its name in the stack; the engine's robot has an empty
    name. What stands for the robot itself goes on, as a robot does."""

    def __init__(self) -> None:
        self._nodes: dict[str, list[Node]] = {}
        self._lost: list[str] = []

    def node(self, run: NodeRun, transport: Mapping[str, str]) -> Node:
        node = action(run, transport, self._after_exit(run))
        own = self._nodes.setdefault(run.robot, [])
        if run.node.part != "simulated_robot":
            own.append(node)
        return node

    def failures(self) -> list[Action]:
        """What makes the launch end with a failure code."""
        at_end = OnShutdown(on_shutdown=self._end)
        return [RegisterEventHandler(OnStackFailed()), RegisterEventHandler(at_end)]

    def _end(self, event: Event, context: LaunchContext) -> list[Action]:
        return [EmitEvent(event=StackFailed("; ".join(self._lost)))] if self._lost else []

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
                return [EmitEvent(event=StackFailed(reason))]
            ended = self._nodes.pop(run.robot)
            self._lost.append(reason)
            said = LogInfo(msg=f"{reason}; the nodes of {run.robot} end, the others go on")
            return [said, *(end(node) for node in ended)]

        return decide


def end(node: Node) -> EmitEvent:
    """As Ctrl-C of this node alone: it is not started again."""
    return EmitEvent(event=ShutdownProcess(process_matcher=matches_action(node)))


def action(run: NodeRun, transport: Mapping[str, str], after_exit: AfterExit) -> Node:
    respawn = run.node.respawn
    return Node(
        package="physis_ros",
        executable=run.node.executable,
        name=run.node.name,
        namespace=run.namespace,
        arguments=run.words(),
        additional_env={**transport, **run.node.env},
        output="both",
        emulate_tty=True,
        respawn=respawn is not None,
        respawn_delay=None if respawn is None else respawn.first_s,
        on_exit=after_exit,
    )


def start(context: LaunchContext, stack: str | None, file: str) -> list[Action]:
    try:
        return actions(context, stack, file)
    except UserError as error:
        # Where other files have started something, launch itself must end it: with code 1.
        if children():
            raise
        print(f"{file}: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        raise SystemExit(BAD_INPUT_CODE) from None


def actions(context: LaunchContext, stack: str | None, file: str) -> list[Action]:
    known = (*CHOICES, "print_parameters", *(() if stack else ("stack",)), *OF_LAUNCH)
    if any(Path(word).name == file for word in sys.argv):
        # Not included by another file, whose arguments would be none of ours.
        given = dict(word.split(":=", 1) for word in context.argv if ":=" in word)
        check_arguments(given, known)
    texts = {name: LaunchConfiguration(name).perform(context) for name in CHOICES}
    pushed = context.launch_configurations.get("ros_namespace", "")
    texts["namespace"] = "/".join(filter(None, (pushed.strip("/"), texts["namespace"].strip("/"))))
    options = options_from_texts(texts)
    share = share_directory()
    spec = load_stack(stack or LaunchConfiguration("stack").perform(context), share)
    runs = resolve(spec, options, share)
    if truth("print_parameters", LaunchConfiguration("print_parameters").perform(context)):
        lines = table({run.label: run.settings for run in runs})
        return [LogInfo(msg="\n".join(["parameters", *lines]))]
    environ = context.environment
    reach = reach_of(runs, environ)
    transport = {
        name: value
        for name, value in with_transport({**environ, **reach.environment}, share).items()
        if environ.get(name) != value
    }
    names = ", ".join(run.label for run in runs)
    lines = [f"stack {spec.name}: {names}", *filter(None, [reach.line]), *notes(runs, options)]
    robots = Robots()
    return [
        *(LogInfo(msg=line) for line in lines),
        *robots.failures(),
        *(robots.node(run, transport) for run in runs),
    ]


def children() -> bool:
    """Whether this process has started others."""
    tasks = Path("/proc/self/task").glob("*/children")
    return any(task.read_text().strip() for task in tasks)


def stack_description(stack: str | None, file: str) -> LaunchDescription:
    """The launch description of one stack; None: of the one that the argument `stack` names.
    `file`: the launch file's name."""
    declared = {**({} if stack else {"stack": STACK}), **CHOICES, "print_parameters": PRINT}
    arguments = [
        DeclareLaunchArgument(name, default_value=default, description=text)
        for name, (default, text) in declared.items()
    ]
    return LaunchDescription([*arguments, OpaqueFunction(function=start, args=[stack, file])])


def generate_launch_description() -> LaunchDescription:
    return stack_description(None, Path(__file__).name)
