"""A model family that an installed package brings: written into a folder, as pip would leave it.

A `.hop` file is JSON that names the joints and the camera. Its model is the synthetic one with the
inputs and outputs of a policy.
"""

from __future__ import annotations

import json
from pathlib import Path

FAMILY = "hop"
JOINTS = ("one", "two")
CAMERA = "eye"
SIZE = (24, 24)
STEPS = 4

_SOURCE = """
import dataclasses
import json
from pathlib import Path

from physis_core.model.description import (
    ACTION, IMAGE, JOINT_POSITIONS, LOOKAHEAD, ActionOutput, CameraInput, ModelDescription,
)
from physis_core.types import UserError


class HopFamily:
    name = "hop"

    def detect(self, path):
        return path.suffix == ".hop"

    def describe(self, ref):
        file = json.loads(Path(ref.checkpoint).read_text())
        height, width = file["size"]
        return ModelDescription(
            family="hop", steps=2, blocks=2, kv="noisy", window_chunks=3, sink_chunks=0,
            period_s=0.1, joints=tuple(file["joints"]),
            cameras=(CameraInput(name=file["camera"], height=height, width=width),),
            actions=ActionOutput(steps=4, step_s=0.05, lookahead_max_s=0.6), packages=("torch",),
        )

    def read_spec(self, ref):
        import torch
        from physis_core.model.protocol import TensorSpec
        from physis_core.model.synthetic.model import synthetic_spec

        height, width = self.describe(ref).image_size
        return dataclasses.replace(
            synthetic_spec(self._config()),
            name="hop",
            observation={
                IMAGE: TensorSpec(shape=(1, height, width, 3), dtype=torch.uint8),
                JOINT_POSITIONS: TensorSpec(shape=(2,)),
                LOOKAHEAD: TensorSpec(shape=(1,)),
            },
        )

    def load(self, ref, *, blocks, device):
        import torch
        from physis_core.model.synthetic.model import SyntheticModel

        class HopModel(SyntheticModel):
            def condition(self, values):
                return super().condition({})

            def _seen(self, observation):
                state = torch.zeros(len(observation[IMAGE]), 4)
                state[:, :2] = observation[JOINT_POSITIONS]
                return state @ self._see

        model = HopModel(self._config(), blocks, device)
        model.spec = self.read_spec(ref)
        return model

    def frame_encoder(self, ref):
        raise UserError("model", "hop", "takes no first frame")

    def _config(self):
        from physis_core.model.synthetic.config import SyntheticConfig

        return SyntheticConfig(steps=2, blocks=2, tokens=4)


FAMILY = HopFamily()
"""


def install(
    folder: Path, entries: dict[str, str] | None = None, package: str = "hop_models"
) -> Path:
    """Write the package and its metadata; returns the folder to put on the path."""
    source = folder / package
    source.mkdir(parents=True)
    (source / "__init__.py").write_text("")
    (source / "family.py").write_text(_SOURCE)
    info = folder / f"{package}-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.5\n")
    given = {FAMILY: f"{package}.family:FAMILY"} if entries is None else entries
    lines = [f"{name} = {value}" for name, value in given.items()]
    (info / "entry_points.txt").write_text("\n".join(["[physis.models]", *lines, ""]))
    return folder


def write_model(path: Path) -> Path:
    values = {"joints": list(JOINTS), "camera": CAMERA, "size": list(SIZE)}
    path.write_text(json.dumps(values))
    return path
