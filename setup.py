"""`pip install .` with ROS 2 in the environment: drives the same CMakeLists.txt as colcon does."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build import build

ROOT = Path(__file__).resolve().parent

ENGINE = ("torch", "msgspec", "safetensors")
TOOLS = ("msgspec", "rich", "matplotlib", "packaging")
POLICIES = ("msgspec", "websockets", "pyzmq")
LAB = ("mujoco", "imageio", "imageio-ffmpeg", "cyclonedds", "psutil")


def requirements(*names: str) -> list[str]:
    """The lines of requirements/runtime.in for these packages."""
    lines = (ROOT / "requirements" / "runtime.in").read_text(encoding="utf-8").splitlines()
    by_name = {re.split(r"[=<>;\[ ]", line)[0]: line for line in lines}
    return [by_name[name] for name in sorted(set(names))]


class CMakeBuild(build):
    """Let CMake install into a staging folder, then hand its two halves to the wheel."""

    def run(self) -> None:
        work = Path(self.build_temp).absolute() / "cmake"
        # The prefix is the environment itself, which may lie within the source tree: CMake refuses
        # include directories from there unless they are below the prefix. DESTDIR keeps it clean.
        destination = Path(self.build_temp).absolute() / "staging"
        staging = destination / sys.prefix.lstrip("/")
        shutil.rmtree(destination, ignore_errors=True)
        environment = dict(os.environ)
        # pip hides the environment's packages from an isolated build; CMake's Python needs them.
        if "pip-build-env" in environment.get("PYTHONPATH", ""):
            del environment["PYTHONPATH"]
        for name in ("AMENT_PREFIX_PATH", "CMAKE_PREFIX_PATH"):
            parts = [sys.prefix, *filter(None, [environment.get(name)])]
            environment[name] = os.pathsep.join(parts)
        configure = ["cmake", "-S", str(ROOT), "-B", str(work), "-DBUILD_TESTING=OFF"]
        configure += ["-DCMAKE_BUILD_TYPE=Release", f"-DCMAKE_INSTALL_PREFIX={sys.prefix}"]
        configure += [f"-DPython3_EXECUTABLE={sys.executable}", "-DPython3_FIND_VIRTUALENV=FIRST"]
        subprocess.run(configure, check=True, env=environment)
        jobs = str(os.cpu_count() or 1)
        install = ["cmake", "--build", str(work), "--target", "install", "--parallel", jobs]
        environment["DESTDIR"] = str(destination)
        subprocess.run(install, check=True, env=environment)
        python = next(staging.rglob("physis_core")).parent
        for package in ("physis_core", "physis_ros", "physis_lab"):
            if not (python / package).is_dir():
                continue  # PHYSIS_LAB=OFF
            shutil.copytree(python / package, Path(self.build_lib) / package, dirs_exist_ok=True)
            shutil.rmtree(python / package)
        # What is left (libraries, headers, share) lies at the same place under the prefix.
        files: dict[str, list[str]] = {}
        for folder in ("lib", "include", "share"):
            for path in sorted((staging / folder).rglob("*")):
                if path.is_file() and python not in path.parents:
                    place = path.parent.relative_to(staging).as_posix()
                    files.setdefault(place, []).append(os.path.relpath(path, ROOT))
        self.distribution.data_files = sorted(files.items())
        super().run()


class BinaryDistribution(Distribution):
    """The message libraries belong to one platform and one Python."""

    def has_ext_modules(self) -> bool:
        return True


setup(
    name="physis_ros",
    version="0.1.0",
    description="Streams of actions and frames from staged world models, with their age",
    license="Apache-2.0",
    python_requires=">=3.10,<3.14",
    packages=[],
    # A distribution brings `robot`. Its messages are compiled against its numpy, so the other
    # extras must not pull in another one.
    extras_require={
        "robot": requirements("numpy", "pyyaml", "opencv-python-headless"),
        "engine": requirements(*ENGINE),
        "tools": requirements(*TOOLS),
        "metrics": requirements("prometheus-client"),
        "policies": requirements(*POLICIES),
        "lab": requirements(*ENGINE, *TOOLS, *POLICIES, *LAB),
        "models": [*requirements(*ENGINE, "transformers"), "diffusers>=0.41,<0.43"],
    },
    entry_points={"console_scripts": ["physis = physis_ros.cli.main:main"]},
    cmdclass={"build": CMakeBuild},
    distclass=BinaryDistribution,
)
