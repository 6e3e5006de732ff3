"""`physis VERB`: finds the verb's module, parses its arguments, runs it and returns an exit code.

A verb module has `SUMMARY`, `add_arguments(parser)` and `run(args) -> dict`; `ok` in the result
decides between exit code 0 and 1. Bad input is a `UserError`: one line, exit code 2.

Only the requested verb's module is imported, and summaries are read from the source text. So help
is fast, and a missing dependency of one verb does not stop another. Modules of physis_lab are named
as text here: a robot's install may lack that package.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol, cast

from physis_core.files import nearest
from physis_core.observe.result_file import check_writable, write_result
from physis_core.types import UserError
from physis_ros.node.packages import BUILD_WITH_LAB, missing_package

VERSION = "0.1.0"

VERBS = {
    "demo": "physis_lab.cli.demo",
    "up": "physis_ros.cli.up",
    "serve": "physis_ros.cli.serve",
    "models": "physis_ros.cli.models",
    "profile": "physis_ros.cli.profile",
    "plan": "physis_ros.cli.plan",
    "simulate": "physis_ros.cli.simulate",
    "bench": "physis_lab.cli.bench",
    "eval": "physis_lab.cli.eval",
    "trace": "physis_ros.cli.trace",
    "doctor": "physis_ros.cli.doctor",
}


class Verb(Protocol):
    """The interface of a verb's module."""

    SUMMARY: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, args: argparse.Namespace) -> Mapping[str, Any]: ...


class OneLineParser(argparse.ArgumentParser):
    """Reports a wrong argument in one line, like every other bad input."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {' '.join(message.split())}\n")


def module_source(module: str) -> Path | None:
    """Path of a module's source, found without importing the module; None where there is none."""
    package, _, name = module.rpartition(".")
    top, _, below = package.partition(".")
    if importlib.util.find_spec(top) is None:
        return None
    # A package may have several directories: sources and generated messages.
    for root in importlib.import_module(top).__path__:
        folder = Path(root, *below.split("."))
        for candidate in (folder / f"{name}.py", folder / name / "__init__.py"):
            if candidate.is_file():
                return candidate
    return None


def summary(module: str) -> str:
    """Read a verb's SUMMARY from its source text."""
    source = module_source(module)
    if source is None:
        return "(not in this installation)"
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign):
            targets = [node.target]
        named = any(isinstance(target, ast.Name) and target.id == "SUMMARY" for target in targets)
        if named and isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            return str(ast.literal_eval(node.value))
    return ""


def overview() -> str:
    width = max(map(len, VERBS))
    lines = ["usage: physis VERB [--json FILE] [...]", "", "verbs:"]
    lines += [f"  {verb:<{width}}  {summary(module)}" for verb, module in VERBS.items()]
    lines += ["", "physis VERB --help lists a verb's arguments; physis --version the version."]
    return "\n".join(lines)


def load(verb: str) -> Verb:
    module = VERBS[verb]
    if module.startswith("physis_lab.") and importlib.util.find_spec("physis_lab") is None:
        raise UserError(
            "verb", verb, f"is part of physis_lab, which is not installed: {BUILD_WITH_LAB}"
        )
    if module_source(module) is None:
        raise UserError("verb", verb, "is not in this installation")
    try:
        return cast(Verb, importlib.import_module(module))
    except ModuleNotFoundError as error:
        raise _needs(verb, error) from error


def _needs(verb: str, error: ModuleNotFoundError) -> Exception:
    """The error for a package that a verb does not find. A missing module of ours is a fault."""
    line = missing_package(error)
    return error if line is None else UserError("verb", verb, line)


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        code = dispatch(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output has closed the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


def dispatch(arguments: Sequence[str] | None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help", "help"):
        print(overview())
        return 0 if words else 2
    if words[0] in ("-V", "--version"):
        print(f"physis {VERSION}")
        return 0
    verb = words[0]
    try:
        if verb not in VERBS:
            raise UserError("verb", verb, f"unknown{nearest(verb, VERBS)}")
        module = load(verb)
        parser = OneLineParser(prog=f"physis {verb}", description=module.SUMMARY)
        module.add_arguments(parser)
        parser.add_argument(
            "--json", metavar="FILE", type=Path, help="write the result to this file"
        )
        args = parser.parse_args(words[1:])
        if args.json is not None:
            check_writable(args.json)
        try:
            result = module.run(args)
        except ModuleNotFoundError as error:
            raise _needs(verb, error) from error
        if args.json is not None:
            write_result(args.json, result)
    except UserError as error:
        print(f"physis {verb}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"physis {verb}: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    if result.get("ok", True):
        return 0
    # `refused`: bad input, which one of our processes has already named in its line.
    return 2 if result.get("refused", False) else 1


if __name__ == "__main__":
    sys.exit(main())
