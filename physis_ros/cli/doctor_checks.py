"""The checks of `physis doctor`. Each checks one thing and gives the remedy.

A check that loads foreign libraries does so in a process of its own: if that crashes or hangs, only
this check fails.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from physis_core.types import UserError
from physis_ros.node.domain import FREE_DOMAINS, domain_from, in_use
from physis_ros.node.packages import command_for
from physis_ros.node.share import share_directory
from physis_ros.stack.environment import process_environment
from physis_ros.stack.transport import (
    PROFILE_VARIABLES,
    SHM,
    WANTED_BYTES,
    profile,
    variable,
)

LAST_FREE = FREE_DOMAINS[-1]
APT_EGL = "sudo apt install libegl1"
REAL_TIME = "`@realtime - rtprio 90` in a file in /etc/security/limits.d/, then log in again"
BUILD = "run `make build` in the source tree"
DDS_LIMIT_S = 20.0
PROBE_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """Outcome of one check. A failed check that is not `required` does not fail the command."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""
    required: bool = True


def python_version() -> CheckResult:
    version = sys.version.split()[0]
    fits = (3, 10) <= sys.version_info[:2] <= (3, 13)
    return CheckResult(
        name="python",
        ok=fits,
        detail=f"{version} ({sys.executable})",
        remedy="" if fits else "use Python 3.10 to 3.13: make clean; make build PYTHON=python3.12",
    )


def pinned_packages(lock: Path | None) -> CheckResult:
    """Compare what is installed with the lock; a local label (1.0+cpu) is the same version."""
    if lock is None or not lock.is_file():
        return CheckResult(
            name="packages",
            ok=True,
            required=False,
            detail="no lock beside this installation (a ROS distribution brings its own)",
        )
    # Only `make build` has a lock, and it installs this package.
    from packaging.requirements import Requirement

    missing, differing, count = [], [], 0
    for line in lock.read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        requirement = Requirement(line)
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        count += 1
        try:
            found = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            missing.append(requirement.name)
            continue
        wanted = str(requirement.specifier).removeprefix("==")
        if found.partition("+")[0] != wanted:
            differing.append(f"{requirement.name} {found} instead of {wanted}")
    detail = f"{count} packages as pinned"
    if missing or differing:
        parts = [f"missing: {', '.join(missing)}"] if missing else []
        detail = "; ".join([*parts, *differing])
    fits = not (missing or differing)
    return CheckResult(name="packages", ok=fits, detail=detail, remedy="" if fits else BUILD)


def messages(environment: Mapping[str, str]) -> CheckResult:
    code = (
        "import physis_ros.msg as m, physis_ros.srv as s\n"
        "from rosidl_generator_py import import_type_support\n"
        "import_type_support('physis_ros')\n"
        "names = [n for p in (m, s) for n in dir(p) if n[0].isupper() and '_' not in n]\n"
        "print(len(names), 'types of physis_ros load')\n"
    )
    ok, text = probe([sys.executable, "-c", code], environment)
    return CheckResult(
        name="messages", ok=ok, detail=text, remedy="" if ok else command_for("rclpy")
    )


def domain(environment: Mapping[str, str]) -> CheckResult:
    try:
        chosen = domain_from(environment)
    except UserError as error:
        return CheckResult(
            name="ros domain", ok=False, detail=str(error), remedy="export ROS_DOMAIN_ID=0"
        )
    number = chosen or 0
    detail = f"ROS_DOMAIN_ID {'not set: 0' if chosen is None else number}"
    detail += f", discovery {environment.get('ROS_AUTOMATIC_DISCOVERY_RANGE', 'SUBNET (default)')}"
    remedy = ""
    if number > LAST_FREE:
        remedy = f"above {LAST_FREE} ports may be taken by other programs; prefer 0 to {LAST_FREE}"
    elif in_use(number):
        detail += ", other nodes of this machine are in it"
        remedy = "set another ROS_DOMAIN_ID if they must not hear each other"
    return CheckResult(
        name="ros domain", ok=not remedy, required=False, detail=detail, remedy=remedy
    )


def middleware(environment: Mapping[str, str]) -> CheckResult:
    wanted = environment.get("RMW_IMPLEMENTATION", "")
    if not wanted:
        return CheckResult(name="middleware", ok=True, detail="rmw_fastrtps_cpp (default)")
    prefixes = environment.get("AMENT_PREFIX_PATH", "").split(os.pathsep)
    folders = [Path(prefix, "lib") for prefix in [sys.prefix, *filter(None, prefixes)]]
    found = any((folder / f"lib{wanted}.so").is_file() for folder in folders)
    return CheckResult(
        name="middleware",
        ok=found,
        detail=f"RMW_IMPLEMENTATION={wanted}" + ("" if found else " is not installed here"),
        remedy="" if found else "unset RMW_IMPLEMENTATION",
    )


def dds(environment: Mapping[str, str]) -> CheckResult:
    """Let two processes talk over loopback, with a time limit."""
    local = process_environment({**environment, "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST"})
    command = [sys.executable, "-m", "physis_ros.stack.dds_probe"]
    begun_s = time.monotonic()
    with subprocess.Popen(
        [*command, "talk", str(DDS_LIMIT_S)],
        env=local,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as talker:
        ok, text = probe([*command, "listen", str(DDS_LIMIT_S)], local, limit_s=2 * DDS_LIMIT_S)
        talker.kill()
    ok = ok and "heard" in text
    took = f"{time.monotonic() - begun_s:.1f} s"
    return CheckResult(
        name="dds",
        ok=ok,
        detail=f"two processes heard each other (with their start, {took})" if ok else text,
        remedy="" if ok else "look at firewall rules for UDP on lo, at /dev/shm, and at middleware",
    )


def rendering(environment: Mapping[str, str]) -> CheckResult:
    if importlib.util.find_spec("mujoco") is None:
        return not_installed("rendering", "mujoco", "the simulated arm needs it")
    backend = environment.get("MUJOCO_GL", "egl")
    if backend == "egl" and ctypes.util.find_library("EGL") is None and not _loads("libEGL.so.1"):
        return CheckResult(
            name="rendering", ok=False, detail="libEGL.so.1 is not on this machine", remedy=APT_EGL
        )
    code = (
        "import mujoco\n"
        "m = mujoco.MjModel.from_xml_string("
        '\'<mujoco><worldbody><light pos="0 0 3"/><geom size=".2" rgba="1 0 0 1"/>'
        "</worldbody></mujoco>')\n"
        "d = mujoco.MjData(m)\n"
        "mujoco.mj_forward(m, d)\n"
        "r = mujoco.Renderer(m, 48, 64)\n"
        "r.update_scene(d)\n"
        "assert r.render().max() > 0, 'the picture is black'\n"
        f"print('MuJoCo', mujoco.__version__, 'renders with', {backend!r})\n"
    )
    ok, text = probe([sys.executable, "-c", code], {**environment, "MUJOCO_GL": backend})
    return CheckResult(
        name="rendering", ok=ok, detail=text, remedy="" if ok else f"{APT_EGL} libgl1-mesa-dri"
    )


def torch_devices(environment: Mapping[str, str]) -> CheckResult:
    if importlib.util.find_spec("torch") is None:
        return not_installed("torch", "torch", "the engine needs it")
    code = (
        "import torch\n"
        "n = torch.cuda.device_count()\n"
        "names = [f'cuda:{i} {torch.cuda.get_device_name(i)}' for i in range(n)]\n"
        "gloo = torch.distributed.is_available() and torch.distributed.is_gloo_available()\n"
        "assert gloo, 'this build of torch has no gloo'\n"
        "print('torch', torch.__version__ + ';', 'cpu', *names, sep=' ')\n"
    )
    ok, text = probe([sys.executable, "-c", code], environment)
    return CheckResult(name="torch", ok=ok, detail=text, remedy="" if ok else command_for("torch"))


def not_installed(name: str, package: str, need: str) -> CheckResult:
    """A package that a robot's host may lack. After `make build`, the check of the pins fails."""
    return CheckResult(
        name=name,
        ok=False,
        required=False,
        detail=f"the Python package {package!r} is not installed; only {need}",
        remedy=command_for(package),
    )


def shared_memory() -> CheckResult:
    """DDS moves large messages between processes through /dev/shm."""
    if not (SHM.is_dir() and os.access(SHM, os.W_OK)):
        return CheckResult(
            name="shared memory",
            ok=False,
            detail=f"{SHM} cannot be written",
            remedy="in a container: run it with --shm-size=512m, or mount a tmpfs there",
        )
    free = shutil.disk_usage(SHM).free
    fits = free >= WANTED_BYTES
    return CheckResult(
        name="shared memory",
        ok=fits,
        detail=f"{free >> 20} MiB free in {SHM}",
        remedy="" if fits else "in a container: run it with --shm-size=512m",
    )


def large_images(given: Mapping[str, str]) -> CheckResult:
    """Whether images of 640 x 480 and more pass between processes of this machine."""
    chosen = profile(given, share_directory())
    if chosen is not None:
        return CheckResult(
            name="large images",
            ok=True,
            detail=f"our nodes use {chosen}",
            remedy="for a camera driver that is started elsewhere: "
            f"export {variable(given)}={chosen}",
        )
    own = [name for name in PROFILE_VARIABLES if given.get(name)]
    if own:
        return CheckResult(
            name="large images",
            ok=True,
            required=False,
            detail=f"{own[0]}={given[own[0]]} is used as it is",
            remedy="set a segment_size of several images for its SHM transport",
        )
    return CheckResult(
        name="large images",
        ok=False,
        required=False,
        detail="the middleware's default transports: an image of 640x480 may be lost",
        remedy=f"more room in {SHM}, or compressed images (compressed_cameras)",
    )


def real_time() -> CheckResult:
    """Whether a process of this user may take a real-time priority, as the safety node does."""
    code = "import os; os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))"
    ok, _ = probe([sys.executable, "-S", "-c", code], os.environ)
    limit = resource.getrlimit(resource.RLIMIT_RTPRIO)[0]
    return CheckResult(
        name="real time",
        ok=ok,
        required=False,
        detail="SCHED_FIFO is granted" if ok else f"SCHED_FIFO is refused (rtprio limit {limit})",
        remedy="" if ok else f"on a robot: {REAL_TIME}",
    )


def machine() -> CheckResult:
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return CheckResult(
        name="machine",
        ok=cores >= 2,
        required=False,
        detail=f"{cores} cores, {memory / 2**30:.1f} GiB of memory",
        remedy="" if cores >= 2 else "the demo wants two cores",
    )


def probe(
    command: list[str], environment: Mapping[str, str], limit_s: float = PROBE_LIMIT_S
) -> tuple[bool, str]:
    """Run a command; return whether it succeeded, and its last line (or why there is none)."""
    try:
        done = subprocess.run(
            command,
            env=dict(environment),
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False, f"no answer within {limit_s:.0f} s"
    said = done.stdout if done.returncode == 0 else done.stderr or done.stdout
    lines = said.strip().splitlines()
    last = lines[-1].strip() if lines else f"ended with exit code {done.returncode}, without output"
    return done.returncode == 0, last


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
