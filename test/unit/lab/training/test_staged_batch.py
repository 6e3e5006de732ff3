"""Lockstep rows equal the reference, stream by stream."""

from __future__ import annotations

import pytest
import torch

from physis_core.model.reference import ReferenceStream
from physis_core.model.tiny.config import TinyConfig
from physis_core.model.tiny.loading import random_tiny
from physis_core.types import KVMode
from physis_lab.training.staged_batch import StagedBatch

torch.set_num_threads(1)


@pytest.mark.parametrize("kv", ["noisy", "clean"])
def test_rows_equal_reference_streams(kv: KVMode) -> None:
    config = TinyConfig(
        joint_names=("a", "b"),
        camera_names=("front",),
        position_mean=(0.0, 0.5),
        position_std=(1.0, 0.5),
        image_size=(16, 16),
        grid=1,
        keypoints=2,
        action_steps=2,
        steps=2,
        blocks=2,
        dim=16,
        heads=2,
        ffn=16,
        window_chunks=2,
        kv=kv,
    )
    model = random_tiny(config)
    random = torch.Generator().manual_seed(0)
    batch = StagedBatch(model, rows=2, seed=5)
    streams = [ReferenceStream(model, seed=5 + row) for row in range(2)]
    for _ in range(4):
        seen = {
            "image": torch.randint(0, 256, (2, 1, 16, 16, 3), generator=random, dtype=torch.uint8),
            "joint_positions": torch.randn(2, 2, generator=random),
            "lookahead_s": torch.rand(2, 1, generator=random),
        }
        got = batch.run_chunk(seen)["action"]
        for row, stream in enumerate(streams):
            wanted = stream.run_chunk({0: {name: value[row] for name, value in seen.items()}})
            torch.testing.assert_close(got[row], wanted["action"], rtol=1e-4, atol=1e-5)
