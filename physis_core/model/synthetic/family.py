"""The family `synthetic`: a configuration alone, no file. Imports torch only to load."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from physis_core.model.config import build_config
from physis_core.model.description import ModelDescription
from physis_core.model.registry import FrameEncoder, ModelRef
from physis_core.model.synthetic.config import SyntheticConfig
from physis_core.types import UserError

if TYPE_CHECKING:
    import torch

    from physis_core.model.protocol import ModelSpec
    from physis_core.model.synthetic.model import SyntheticModel


class SyntheticFamily:
    """Implements `ModelFamily`. No robot can use what the model gives."""

    name = "synthetic"

    def detect(self, path: Path) -> bool:
        return False

    def describe(self, ref: ModelRef) -> ModelDescription:
        config = _config(ref)
        return ModelDescription(
            family=self.name,
            steps=config.steps,
            blocks=config.blocks,
            kv=config.kv,
            window_chunks=config.window_chunks,
            sink_chunks=config.sink_chunks,
            packages=("torch",),
        )

    def read_spec(self, ref: ModelRef) -> ModelSpec:
        from physis_core.model.synthetic.model import synthetic_spec

        return synthetic_spec(_config(ref))

    def load(
        self, ref: ModelRef, *, blocks: Iterable[int] | None, device: torch.device
    ) -> SyntheticModel:
        from physis_core.model.synthetic.model import SyntheticModel

        return SyntheticModel(_config(ref), blocks, device)

    def frame_encoder(self, ref: ModelRef) -> FrameEncoder:
        raise UserError("model", self.name, "takes no first frame")


def _config(ref: ModelRef) -> SyntheticConfig:
    if ref.checkpoint is not None:
        raise UserError("model.checkpoint", ref.checkpoint, "a synthetic model has no weights")
    return build_config(SyntheticConfig, ref.config)


FAMILY = SyntheticFamily()
