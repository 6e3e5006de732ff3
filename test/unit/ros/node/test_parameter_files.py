"""Parameter files and nodes agree: every key is declared, every value is accepted."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import yaml

from physis_core.types import UserError
from physis_ros.node.parameters import resolve
from physis_ros.stack.description import NODE_MODULES, NODE_PARAMETERS

CONFIG = Path(__file__).resolve().parents[4] / "config"
SUFFIX = ".param.yaml"
FILES = sorted(CONFIG.glob(f"*{SUFFIX}"))


def parameters_of(node: str) -> type[Any]:
    """The dataclass of a node's parameters."""
    module, _, name = NODE_PARAMETERS[node].partition(":")
    kind: type[Any] = getattr(importlib.import_module(module), name)
    return kind


@pytest.mark.parametrize("node", NODE_PARAMETERS)
def test_the_node_declares_what_the_launcher_checks(node: str) -> None:
    module = importlib.import_module(NODE_MODULES[node])
    assert any(item is parameters_of(node) for item in vars(module).values())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_parameter_file_fits_its_node(path: Path) -> None:
    declared = parameters_of(path.name.removesuffix(SUFFIX))
    data = yaml.safe_load(path.read_text())
    assert list(data) == ["/**"]
    resolve(declared, data["/**"]["ros__parameters"])


def test_a_key_that_no_node_knows_is_refused() -> None:
    with pytest.raises(UserError, match=r"rate_herz: 3: no such parameter.*rate_hz"):
        resolve(parameters_of("safety_node"), {"rate_herz": 3})
