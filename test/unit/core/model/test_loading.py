from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from physis_core.model.loading import checked_device, load, load_spec
from physis_core.model.registry import ModelRef
from physis_core.types import UserError

SYNTHETIC = {"steps": 2, "blocks": 3, "ffn": [8, 16, 24], "kv": "clean"}


def test_round_trip_and_building_only_some_blocks() -> None:
    ref = ModelRef.from_json(ModelRef(family="synthetic", config=SYNTHETIC).to_json())
    assert ModelRef.from_json(ref.to_json()) == ref
    model = load(ref, blocks=[1])
    assert model.spec == load_spec(ref)
    assert model.spec.block_weight_bytes[0] < model.spec.block_weight_bytes[2]
    with pytest.raises(KeyError):
        model.block(0, model.spec.hidden, [0], [], [], [])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ([], "model"),
        ({}, "model.family"),
        ({"family": "large"}, "model.family"),
        ({"family": "synthetic", "weights": 1}, "model.weights"),
        ({"family": "synthetic", "config": 3}, "model.config"),
        ({"family": "synthetic", "checkpoint": "/no/such/file"}, "model.checkpoint"),
    ],
)
def test_bad_reference_names_the_field(values: Any, field: str) -> None:
    with pytest.raises(UserError, match=f"^{field}: "):
        ModelRef.from_json(json.dumps(values))


@pytest.mark.parametrize(
    ("name", "value"),
    [("stepz", 2), ("steps", "2"), ("steps", True), ("ffn", 3), ("ffn", [1, "x", 2]), ("kv", "no")],
)
def test_bad_configuration_names_the_field(name: str, value: Any) -> None:
    with pytest.raises(UserError, match=f"^{name}: "):
        load_spec(ModelRef(family="synthetic", config={**SYNTHETIC, name: value}))


def test_bad_device_is_refused() -> None:
    with pytest.raises(UserError, match=r"^device: "):
        checked_device("gpu7")
    with pytest.raises(UserError, match=r"^device: 'cuda:99'"):
        checked_device("cuda:99")
    assert checked_device("cpu") == torch.device("cpu")
