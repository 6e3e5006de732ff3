"""Check the Markdown files, then build the documentation site: `make docs`.

The checks need any Python. The site needs Python 3.11 or newer and an environment of its own,
`.venv-docs`, from requirements/docs.txt. A broken link or anchor fails the build.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv-docs"
REQUIREMENTS = ROOT / "requirements" / "docs.txt"
OLDEST = (3, 11)
LONGEST_LINE = 100
FOLDERS = (
    "physis_core|physis_ros|physis_lab|benchmarks|checkpoints|config|docs|launch|msg|requirements"
    "|scripts|srv|test"
)
NAMED_PATH = re.compile(rf"`((?:{FOLDERS})/[\w./*-]*)`")
NAMED_MODULE = re.compile(r"\bpython3? -m (physis_[a-z]+(?:\.[a-z0-9_]+)+)")


def markdown_files() -> list[Path]:
    patterns = ("*.md", "benchmarks/*.md", "checkpoints/*.md", "docs/**/*.md")
    return sorted(path for pattern in patterns for path in ROOT.glob(pattern))


def faults(path: Path) -> Iterator[str]:
    """One line per fault: a file or module that does not exist, or a line that is too long."""
    name = path.relative_to(ROOT)
    in_code = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        for match in NAMED_PATH.finditer(line):
            if not exists(match[1].rstrip("/")):
                yield f"{name}:{number}: `{match[1]}` does not exist"
        for match in NAMED_MODULE.finditer(line):
            if not (ROOT / (match[1].replace(".", "/") + ".py")).is_file():
                yield f"{name}:{number}: the module {match[1]} does not exist"
        is_prose = not in_code and not line.startswith(("|", "    ", "[")) and "](" not in line
        if is_prose and len(line) > LONGEST_LINE:
            yield f"{name}:{number}: {len(line)} columns, more than {LONGEST_LINE}"


def exists(name: str) -> bool:
    """A path or pattern in the repository, or a ROS type such as physis_ros/ActionChunk."""
    type_name = name.removeprefix("physis_ros/")
    interfaces = (ROOT / "msg" / f"{type_name}.msg", ROOT / "srv" / f"{type_name}.srv")
    return any(ROOT.glob(name)) or any(path.is_file() for path in interfaces)


def prepare_environment() -> None:
    wanted = hashlib.sha256(REQUIREMENTS.read_bytes() + sys.version.encode()).hexdigest()
    stamp = VENV / ".requirements"
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted:
        return
    print(f"packages of {REQUIREMENTS.relative_to(ROOT)} into {VENV}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(VENV)], check=True)
    pip = [str(VENV / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    pip += ["--disable-pip-version-check", "-r", str(REQUIREMENTS)]
    done = subprocess.run(pip, check=False, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.stderr.write(done.stderr)
        raise SystemExit(f"make docs: pip could not install {REQUIREMENTS.relative_to(ROOT)}")
    stamp.write_text(wanted, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--skip-old-python", action="store_true", help="only check where Python is too old"
    )
    args = parser.parse_args()
    found = [fault for path in markdown_files() for fault in faults(path)]
    print("\n".join(found), file=sys.stderr, end="\n" if found else "")
    if found:
        return 1
    if sys.version_info < OLDEST:
        print(f"make docs: python3 is {sys.version.split()[0]}; the site needs 3.11 or newer")
        return 0 if args.skip_old_python else 2
    prepare_environment()
    # The theme's notice about its own future is no warning of ours.
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    mkdocs = [str(VENV / "bin" / "python"), "-m", "mkdocs", "build", "--strict"]
    # Not --quiet: it hides the warnings that --strict counts.
    done = subprocess.run(
        mkdocs,
        cwd=ROOT,
        env=environment,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode != 0:
        lines = done.stdout.splitlines(keepends=True)
        sys.stderr.write("".join(line for line in lines if not line.startswith("INFO")))
        return 1
    print(f"built: {ROOT / 'site' / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
