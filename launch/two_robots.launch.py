"""Launch two robots in two namespaces, served by one engine."""

from __future__ import annotations

from pathlib import Path

from launch import LaunchDescription
from launch.actions import IncludeLaunchDescription
from launch.launch_description_sources import PythonLaunchDescriptionSource


def generate_launch_description() -> LaunchDescription:
    stack = PythonLaunchDescriptionSource(str(Path(__file__).with_name("stack.launch.py")))
    return LaunchDescription(
        [IncludeLaunchDescription(stack, launch_arguments={"stack": "two_robots"}.items())]
    )
