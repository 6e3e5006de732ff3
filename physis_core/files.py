"""Reading YAML and JSON files as plain data. The only YAML loader of the project.

Imports neither torch nor msgspec: nodes that run on the robot read their files with it.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import yaml

from physis_core.types import UserError


class _Loader(yaml.SafeLoader):
    """`yaml.SafeLoader` that refuses a key that appears twice in one mapping, and reads 1e9 as a
    number, as YAML 1.2 and ROS do.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"key {key.value!r} appears twice", key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?:[0-9]+\.?|[0-9]*\.[0-9]+)[eE][-+]?[0-9]+\Z"),
    list("-+.0123456789"),
)


def read_file(path: Path, field: str = "file") -> Any:
    """The one document of a YAML file, or of a JSON file where the name ends in .json.

    Raises:
        UserError: names `field`, the file, and the line where it cannot be parsed.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(field, str(path), error.strerror or "cannot be read") from None
    except UnicodeDecodeError:
        raise UserError(field, str(path), "is not UTF-8 text") from None
    if path.suffix != ".json":
        return parse_yaml(text, str(path), field)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(field, str(path), f"line {error.lineno}: {error.msg}") from None


def parse_yaml(text: str, origin: str, field: str = "file") -> Any:
    """One YAML document. A `UserError` names `field`, `origin` and the line."""
    try:
        loader = _Loader(text)
        return loader.get_single_data()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f"line {mark.line + 1}: "
        problem = getattr(error, "problem", None) or "is not YAML"
        raise UserError(field, origin, f"{where}{problem}") from None
    except RecursionError:
        raise UserError(field, origin, "is nested too deeply") from None
    except ValueError as error:  # a date or a number that cannot be one
        raise UserError(field, origin, f"is not YAML: {error}") from None


def nearest(name: str, known: Collection[str]) -> str:
    """Ends a refusal of an unknown name: `; did you mean X?`, or else the list of known names."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(sorted(known))}" if known else ""
