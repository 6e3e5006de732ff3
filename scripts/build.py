"""Set up `.venv`: the pinned packages, the messages, and the `physis` command. Needs no root.

Run by `make build` with any Python 3.10 to 3.13. Each of the two steps leaves a stamp (a hash of
what it was made from) as its very last act: a step whose stamp still matches is skipped, and one
that was interrupted has no stamp and is done again over what it left.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
LOCK = ROOT / "requirements" / "lock.txt"
WORK = VENV / "physis_build"
INTERFACES = (".msg", ".srv")
BUILT_WITH = ("ros-", "numpy=", "empy=", "lark")


class BuildError(Exception):
    """Something that the person who builds must put right: one line."""


def digest(paths: Iterable[Path], *extra: str) -> str:
    """Hash the names and contents of files, and of strings that matter beside them."""
    total = hashlib.sha256()
    for path in sorted(paths):
        total.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    for text in extra:
        total.update(text.encode() + b"\0")
    return total.hexdigest()


def environment_digest() -> str:
    return digest([LOCK], str(VENV), sys.version.split()[0])


def messages_digest() -> str:
    sources = [*ROOT.glob("msg/*.msg"), *ROOT.glob("srv/*.srv")]
    sources += [ROOT / "CMakeLists.txt", ROOT / "package.xml", ROOT / "physis_ros/__init__.py"]
    built_with = [line for line in LOCK.read_text().splitlines() if line.startswith(BUILT_WITH)]
    return digest(sources, str(VENV), sys.version.split()[0], *built_with, *node_names())


def node_names() -> list[str]:
    return sorted(path.name for path in ROOT.glob("physis_*/**/*_node.py"))


def interface_names() -> str:
    return "\n".join(sorted(path.name for path in ROOT.glob("*/*.*") if path.suffix in INTERFACES))


def stamp(name: str) -> Path:
    return VENV / f".physis_{name}"


def is_current(name: str, wanted: str) -> bool:
    return stamp(name).is_file() and stamp(name).read_text() == wanted


def check_machine() -> None:
    if not (3, 10) <= sys.version_info[:2] <= (3, 13):
        raise BuildError(
            f"python3 is {sys.version.split()[0]}; 3.10 to 3.13 is needed "
            "(name another one: make build PYTHON=python3.12)"
        )
    try:
        import ensurepip  # noqa: F401 - only asked whether it is there
        import venv  # noqa: F401
    except ImportError as error:
        raise BuildError("python3 cannot make environments: apt install python3-venv") from error
    missing = [tool for tool in ("gcc", "g++", "make") if shutil.which(tool) is None]
    if missing:
        raise BuildError(f"{', '.join(missing)} not found: apt install build-essential")


def run_logged(command: list[str], log: Path, environment: dict[str, str]) -> None:
    """Run a build step quietly; its last lines are shown where it fails."""
    with log.open("w") as stream:
        code = subprocess.run(
            command, stdout=stream, stderr=subprocess.STDOUT, env=environment, check=False
        ).returncode
    if code != 0:
        sys.stderr.write("".join(log.read_text().splitlines(keepends=True)[-30:]))
        raise BuildError(f"{command[0]} ended with {code}; all of its output is in {log}")


def install_packages(wanted: str) -> None:
    print(f"[1/2] packages into {VENV} (a few minutes the first time)", flush=True)
    stamp("environment").unlink(missing_ok=True)
    made_by = VENV / "pyvenv.cfg"
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    reusable = (
        made_by.is_file() and (VENV / "lib" / f"python{version}").is_dir() and PYTHON.exists()
    )
    if not reusable:
        stamp("messages").unlink(missing_ok=True)
        if VENV.exists():
            shutil.rmtree(VENV)
    if not (reusable and (VENV / "bin" / "pip").exists()):
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    install_with_progress()
    stamp("environment").write_text(wanted)


def install_with_progress() -> None:
    """Let pip install the lock, and show how far it is on one line."""
    pins = sum(1 for line in LOCK.read_text().splitlines() if line and line[0] != "#")
    command = [str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check"]
    command += ["--progress-bar", "off", "-r", str(LOCK)]
    begun = time.monotonic()
    seen = 0
    lines: list[str] = []
    live = sys.stdout.isatty()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT
    ) as pip:
        assert pip.stdout is not None
        for line in pip.stdout:
            lines.append(line)
            words = line.split()
            text = ""
            if words[:1] == ["Collecting"]:
                seen += 1
                text = f"{min(seen, pins):3d}/{pins} {words[1].split('==')[0]}"
            elif words[:1] == ["Installing"]:
                text = "unpacking all of them into the environment"
            elif words[:1] == ["Building"]:
                text = line.strip()
            if text and live:
                sys.stdout.write(f"\r\033[K      {time.monotonic() - begun:4.0f} s  {text[:60]}")
                sys.stdout.flush()
            elif text and (seen % 25 == 1 or words[0] != "Collecting"):
                print(f"      {time.monotonic() - begun:4.0f} s  {text[:60]}", flush=True)
    if live:
        sys.stdout.write("\r\033[K")
    if pip.returncode != 0:
        sys.stderr.write("".join(line for line in lines if "WARNING: Location" not in line)[-3000:])
        raise BuildError(f"pip could not install {LOCK.relative_to(ROOT)}; see the lines above")
    print(f"      {time.monotonic() - begun:4.0f} s  packages are in place", flush=True)


def build_messages(wanted: str) -> None:
    print("[2/2] messages (rosidl: about a minute)", flush=True)
    begun = time.monotonic()
    stamp("messages").unlink(missing_ok=True)
    if not is_current("interfaces", interface_names()):
        # A message that no longer exists must not stay importable.
        site = next((VENV / "lib").glob("python3.*/site-packages"))
        folders = (site / "physis_ros", VENV / "include/physis_ros", VENV / "share/physis_ros")
        for old in (WORK, *folders):
            if old.exists():
                shutil.rmtree(old)
    # What the last build left is built upon, but never trusted: where that fails, from nothing.
    if WORK.exists():
        try:
            run_cmake()
        except BuildError:
            print("      what the last build left does not build: from nothing", flush=True)
            shutil.rmtree(WORK)
    if not WORK.exists():
        WORK.mkdir()
        run_cmake()
    stamp("interfaces").write_text(interface_names())
    stamp("messages").write_text(wanted)
    print(f"      {time.monotonic() - begun:4.0f} s  messages are in place", flush=True)


def run_cmake() -> None:
    # The build must see the environment alone, whatever distribution was sourced before.
    foreign = ("ROS_", "COLCON", "_ROS_WHEELS", "PYTHONPATH", "LD_LIBRARY_PATH")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(foreign)
    }
    environment["AMENT_PREFIX_PATH"] = environment["CMAKE_PREFIX_PATH"] = str(VENV)
    environment["PATH"] = f"{VENV / 'bin'}{os.pathsep}{environment['PATH']}"
    configure = [str(VENV / "bin" / "cmake"), "-S", str(ROOT), "-B", str(WORK)]
    configure += [
        f"-DCMAKE_INSTALL_PREFIX={VENV}",
        f"-DPython3_EXECUTABLE={PYTHON}",
        "-DPython3_FIND_VIRTUALENV=ONLY",
        "-DCMAKE_BUILD_TYPE=Release",
        "-DBUILD_TESTING=OFF",
        "-DPHYSIS_DEVELOP=ON",
    ]
    run_logged(configure, VENV / "physis_configure.log", environment)
    make = [str(VENV / "bin" / "cmake"), "--build", str(WORK), "--target", "install"]
    make += ["--parallel", str(os.cpu_count() or 1)]
    run_logged(make, VENV / "physis_make.log", environment)
    check = "import physis_ros.msg, physis_ros.srv; physis_ros.msg.ActionChunk()"
    probe = "; ".join(
        [
            check,
            "from rosidl_generator_py import import_type_support",
            "import_type_support('physis_ros')",
        ]
    )
    run_logged([str(PYTHON), "-c", probe], VENV / "physis_check.log", environment)


def main() -> int:
    try:
        environment = environment_digest()
        messages = messages_digest()
        if is_current("environment", environment) and is_current("messages", messages):
            return 0
        check_machine()
        # Two builds of one tree at once would write over each other: the second one waits.
        with (ROOT / ".build.lock").open("w") as guard:
            fcntl.flock(guard, fcntl.LOCK_EX)
            if not is_current("environment", environment):
                install_packages(environment)
            # The first step may have made a new environment, without messages.
            if not is_current("messages", messages):
                build_messages(messages)
        print(f"ready: {VENV / 'bin' / 'physis'}", flush=True)
    except BuildError as error:
        print(f"make build: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nmake build: interrupted; the next one goes on from here", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
