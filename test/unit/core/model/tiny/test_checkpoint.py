"""Checkpoints: only owned blocks are read, and what does not fit is named in one line."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from physis_core.model.header import METADATA_KEY
from physis_core.model.loading import load, load_spec
from physis_core.model.registry import ModelRef
from physis_core.model.tiny import checkpoint
from physis_core.model.tiny.config import TinyConfig
from physis_core.model.tiny.loading import random_tiny
from physis_core.types import UserError

torch.set_num_threads(1)
CONFIG = TinyConfig(
    joint_names=("a", "b"),
    camera_names=("front",),
    position_mean=(0.0, 0.5),
    position_std=(1.0, 0.5),
    image_size=(16, 16),
    grid=1,
    keypoints=2,
    blocks=3,
    dim=16,
    heads=2,
    ffn=16,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    out = tmp_path / "tiny.safetensors"
    checkpoint.save(out, CONFIG, random_tiny(CONFIG).network.state_dict(), {"step": 3})
    return out


def test_configuration_weights_and_provenance_come_back(path: Path) -> None:
    config, weights = checkpoint.load(path)
    assert config == CONFIG
    assert checkpoint.read_training(path) == {"step": 3}
    for name, value in random_tiny(CONFIG).network.state_dict().items():
        torch.testing.assert_close(weights[name], value, rtol=1e-3, atol=1e-4)


def test_only_owned_blocks_are_read(path: Path) -> None:
    _, weights = checkpoint.load(path, owned=[1])
    assert {name.split(".")[1] for name in weights if name.startswith("blocks.")} == {"1"}
    with pytest.raises(UserError, match="block: 3"):
        checkpoint.load(path, owned=[3])


def test_the_general_loader_builds_it(path: Path) -> None:
    ref = ModelRef(family="tiny", checkpoint=str(path))
    assert load(ref, [0, 2]).spec == load_spec(ref) == random_tiny(CONFIG).spec
    with pytest.raises(UserError, match=r"model\.config\.dim"):
        load(ModelRef(family="tiny", checkpoint=str(path), config={"dim": 8}))


def rewritten(path: Path, **changes: object) -> Path:
    config, weights = checkpoint.load(path)
    header = {"format": TinyConfig.FORMAT, "config": {**asdict(config), **changes}}
    save_file(weights, path, metadata={METADATA_KEY: json.dumps(header)})
    return path


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"dim": 32}, r"(16|48|96)"),
        ({"blocks": 4}, r"blocks\.3.*missing"),
        ({"blocks": 2}, r"blocks\.2.*does not have"),
        ({"colour": "red"}, "colour"),
        ({"step_s": "fast"}, "step_s"),
        ({"position_std": [0.0, 1.0]}, "position_std"),
    ],
)
def test_what_does_not_fit_is_named(path: Path, changes: dict[str, object], named: str) -> None:
    with pytest.raises(UserError, match=named) as caught:
        checkpoint.load(rewritten(path, **changes))
    assert "\n" not in str(caught.value)


def test_other_files_are_refused(tmp_path: Path) -> None:
    missing, text, foreign = (tmp_path / name for name in ("none", "text", "foreign"))
    text.write_text("hello")
    save_file({"x": torch.zeros(1)}, foreign)
    for file, reason in ((missing, "no such file"), (text, "safetensors"), (foreign, "physis")):
        with pytest.raises(UserError, match=reason):
            checkpoint.load(file)
