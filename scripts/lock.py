"""Write requirements/lock.txt: one pin per package and Python version, as environment markers.

Usage: scripts/lock.py python3.10 python3.11 python3.12 python3.13

Each interpreter resolves requirements/*.in by itself (`pip install --dry-run --report`); a pin that
is the same everywhere is written plainly, one that differs is written once per Python version.
torch is written as in runtime.in, without a local version label, so that each machine may take the
build that its package sources offer.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

REQUIREMENTS = Path(__file__).resolve().parent.parent / "requirements"
INPUTS = ("runtime.in", "build.in", "dev.in")


def resolve(interpreter: str, folder: Path) -> tuple[str, dict[str, str]]:
    """Return the interpreter's X.Y and its pins, name -> version."""
    lines: list[str] = []
    for name in INPUTS:
        lines += (REQUIREMENTS / name).read_text().splitlines()
    wanted = folder / "wanted.in"
    wanted.write_text("\n".join(line for line in lines if not line.startswith("torch==")) + "\n")
    environment = folder / "venv"
    report = folder / "report.json"
    subprocess.run([interpreter, "-m", "venv", str(environment)], check=True)
    subprocess.run(
        [str(environment / "bin" / "pip"), "install", "--quiet", "--dry-run", "--ignore-installed"]
        + ["--report", str(report), "-r", str(wanted)],
        check=True,
    )
    return read_report(report)


def read_report(report: Path) -> tuple[str, dict[str, str]]:
    data = json.loads(report.read_text())
    pins = {
        re.sub(r"[-_.]+", "-", entry["metadata"]["name"]).lower(): entry["metadata"]["version"]
        for entry in data["install"]
    }
    return data["environment"]["python_version"], pins


def merge(resolved: dict[str, dict[str, str]]) -> list[str]:
    """Return the lock's lines: plain where all Pythons agree, with a marker elsewhere."""
    versions: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for python, pins in resolved.items():
        for name, version in pins.items():
            versions[name][version].append(python)
    lines = []
    for name, by_version in sorted(versions.items()):
        for version, pythons in sorted(by_version.items()):
            if len(pythons) == len(resolved):
                lines.append(f"{name}=={version}")
            else:
                marker = " or ".join(f'python_version == "{python}"' for python in pythons)
                lines.append(f"{name}=={version}; {marker}")
    return lines


def main(arguments: list[str]) -> None:
    resolved: dict[str, dict[str, str]] = {}
    for argument in arguments:
        if argument.endswith(".json"):
            python, pins = read_report(Path(argument))
        else:
            with tempfile.TemporaryDirectory() as folder:
                python, pins = resolve(argument, Path(folder))
        resolved[python] = pins
    torch = next(
        line
        for line in (REQUIREMENTS / "runtime.in").read_text().splitlines()
        if line.startswith("torch==")
    )
    header = [
        "# Written by scripts/lock.py for Python " + ", ".join(resolved) + ". Do not edit.",
        torch,
    ]
    (REQUIREMENTS / "lock.txt").write_text("\n".join(header + merge(resolved)) + "\n")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1:])
