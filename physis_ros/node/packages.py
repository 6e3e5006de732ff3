"""Names a Python package that is missing here, and the command that installs it.

`package.xml` names what the nodes of a robot import, by rosdep key. Engine, lab and some verbs
need more, which pip installs (the extras of `setup.py`).
"""

from __future__ import annotations

import sys
from pathlib import Path

APT_PACKAGES = {
    "numpy": "python3-numpy",
    "cv2": "python3-opencv",
    "prometheus_client": "python3-prometheus-client",
    "yaml": "python3-yaml",
}
"""Module -> rosdep key in package.xml, which is also the name of the package in apt."""

PIP_PACKAGES = {
    "msgspec": "msgspec",
    "torch": "torch",
    "safetensors": "safetensors",
    "rich": "rich",
    "matplotlib": "'matplotlib<3.11'",
    "packaging": "packaging",
    "mujoco": "mujoco",
    "glfw": "mujoco",
    "OpenGL": "mujoco",
    "imageio_ffmpeg": "imageio-ffmpeg",
    "cyclonedds": "cyclonedds",
    "diffusers": "diffusers",
    "psutil": "psutil",
    "websockets": "websockets",
    "zmq": "pyzmq",
}
"""Module -> what pip installs."""

ROS_PACKAGES = (
    "builtin_interfaces",
    "std_msgs",
    "sensor_msgs",
    "rclpy",
    "diagnostic_msgs",
    "geometry_msgs",
    "lifecycle_msgs",
    "rosgraph_msgs",
    "std_srvs",
    "trajectory_msgs",
    "launch",
    "launch_ros",
)
"""What package.xml names of ROS itself."""

BUILD_WITH_LAB = "colcon build --cmake-args -DPHYSIS_LAB=ON"


def missing_package(error: ModuleNotFoundError) -> str | None:
    """One line for a package that is not installed; None for a module that ours should hold."""
    module = (error.name or "").partition(".")[0]
    if module in ("physis_core", "physis_ros") or not module:
        return None
    return f"the Python package {module!r} is not installed: {command_for(module)}"


def command_for(module: str, *, prefix: str = sys.prefix, base: str = sys.base_prefix) -> str:
    """Return the command that installs a top-level module on this machine."""
    if module == "physis_lab":
        return BUILD_WITH_LAB
    source = Path(__file__).resolve().parents[2]
    if (source / "Makefile").is_file() and (source / ".venv").resolve() == Path(prefix).resolve():
        return f"make -C {source} build"
    if module in ROS_PACKAGES:
        return "source /opt/ros/DISTRO/setup.bash, or rosdep install --from-paths src -i"
    if module in APT_PACKAGES:
        return f"sudo apt install {APT_PACKAGES[module]}"
    package = PIP_PACKAGES.get(module, module)
    if prefix != base:
        return f"{prefix}/bin/python -m pip install {package}"
    # PEP 668: the distribution's own Python refuses pip.
    return (
        "python3 -m venv --system-site-packages ~/physis_venv && "
        f"~/physis_venv/bin/python -m pip install {package}, "
        "then build with --cmake-args -DPython3_EXECUTABLE=$HOME/physis_venv/bin/python"
    )
