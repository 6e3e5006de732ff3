"""A model that keeps the arm in motion without end.

It is small and its weights are random: the arm moves about its first pose, and never strays from
it. So it moves whenever all is well, and comes back whatever happened to it.
"""

from __future__ import annotations

from pathlib import Path

import torch

from physis_core.model.tiny import checkpoint
from physis_core.model.tiny.config import TinyConfig
from physis_core.model.tiny.network import TinyNetwork
from physis_lab.arm.kinematics import HOME_RAD
from physis_lab.arm.limits import JOINT_NAMES

STEP_S = 0.05


def restless_model(path: Path) -> Path:
    """A tiny checkpoint whose actions are small random motions about the arm's first pose."""
    torch.manual_seed(0)
    config = TinyConfig(
        joint_names=JOINT_NAMES,
        camera_names=("front",),
        position_mean=tuple(HOME_RAD),
        position_std=(0.01,) * len(JOINT_NAMES),
        image_size=(32, 32),
        steps=2,
        blocks=2,
        dim=16,
        heads=2,
        ffn=32,
        keypoints=4,
        image_channels=4,
        window_chunks=2,
        step_s=STEP_S,
    )
    checkpoint.save(path, config, TinyNetwork(config).state_dict(), {})
    return path
