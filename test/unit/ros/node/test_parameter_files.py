"""Parameter files and nodes agree: every key is declared, every value is accepted."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import yaml

from physis_core.types import UserError
from physis_ros.node.base import BaseParameters
from physis_ros.node.parameters import resolve
from physis_ros.stack.description import NODE_MODULES

CONFIG = Path(__file__).resolve().parents[4] / "config"
SUFFIX = ".param.yaml"
FILES = sorted(CONFIG.glob(f"*{SUFFIX}"))


def parameters_of(node: str) -> type[Any]:
    """Return the dataclass of a node's parameters, the one that its module uses."""
    module = importlib.import_module(NODE_MODULES[node])
    found = [
        item
        for item in vars(module).values()
        if isinstance(item, type)
        and issubclass(item, BaseParameters)
        and item is not BaseParameters
    ]
    assert len(found) == 1, found
    return found[0]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_parameter_file_fits_its_node(path: Path) -> None:
    declared = parameters_of(path.name.removesuffix(SUFFIX))
    data = yaml.safe_load(path.read_text())
    assert list(data) == ["/**"]
    resolve(declared, data["/**"]["ros__parameters"])


def test_a_key_that_no_node_knows_is_refused() -> None:
    with pytest.raises(UserError, match=r"rate_herz: 3: no such parameter.*rate_hz"):
        resolve(parameters_of("safety_node"), {"rate_herz": 3})
