"""The families `tiny` (policies) and `tiny_world`, recognised by the format in a file's header."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from physis_core.model.description import (
    ActionOutput,
    CameraInput,
    CommandInput,
    FrameOutput,
    ModelDescription,
)
from physis_core.model.header import file_format
from physis_core.model.registry import FrameEncoder, ModelRef
from physis_core.model.tiny.config import (
    TinyConfig,
    TransformerConfig,
    WorldConfig,
    configured,
)
from physis_core.types import Array, UserError

if TYPE_CHECKING:
    import torch

    from physis_core.model.protocol import ModelSpec
    from physis_core.model.tiny.model import TinyModel
    from physis_core.model.tiny.world_model import WorldModel

PACKAGES = ("torch", "safetensors")


def common_description(
    family: str, config: TransformerConfig, *, period_s: float
) -> ModelDescription:
    """The part of the description that policies and world models share."""
    return ModelDescription(
        family=family,
        steps=config.steps,
        blocks=config.blocks,
        kv=config.kv,
        window_chunks=config.window_chunks,
        sink_chunks=config.sink_chunks,
        period_s=period_s,
        joints=config.joint_names,
        packages=PACKAGES,
    )


class PolicyFamily:
    """Implements `ModelFamily`. Its models move joints by what cameras show."""

    name = "tiny"

    def detect(self, path: Path) -> bool:
        return file_format(path) == TinyConfig.FORMAT

    def describe(self, ref: ModelRef) -> ModelDescription:
        config = configured(TinyConfig, ref.config, ref.checkpoint)
        height, width = config.image_size
        frames = None
        if config.draws:
            frame_height, frame_width = config.frame_size
            frames = FrameOutput(
                count=len(config.frame_times_s), height=frame_height, width=frame_width
            )
        return replace(
            common_description(self.name, config, period_s=config.period_s),
            cameras=tuple(
                CameraInput(name=name, height=height, width=width) for name in config.camera_names
            ),
            actions=ActionOutput(
                steps=config.action_steps,
                step_s=config.step_s,
                lookahead_max_s=config.lookahead_max_s,
            ),
            frames=frames,
        )

    def read_spec(self, ref: ModelRef) -> ModelSpec:
        from physis_core.model.tiny.model import tiny_spec

        return tiny_spec(configured(TinyConfig, ref.config, ref.checkpoint))

    def load(
        self, ref: ModelRef, *, blocks: Iterable[int] | None, device: torch.device
    ) -> TinyModel:
        from physis_core.model.tiny.loading import load_tiny

        return load_tiny(ref.config, ref.checkpoint, blocks, device)

    def frame_encoder(self, ref: ModelRef) -> FrameEncoder:
        raise UserError("model", ref.checkpoint or self.name, "a policy takes no first frame")


class WorldFamily:
    """Implements `ModelFamily`. Its models draw what commanded actions lead to."""

    name = "tiny_world"

    def detect(self, path: Path) -> bool:
        return file_format(path) == WorldConfig.FORMAT

    def describe(self, ref: ModelRef) -> ModelDescription:
        config = configured(WorldConfig, ref.config, ref.checkpoint)
        frames = None
        if config.decode:
            height, width = config.frame_size
            frames = FrameOutput(
                count=config.frames, height=height, width=width, fovy_deg=config.camera_fovy_deg
            )
        return replace(
            common_description(self.name, config, period_s=config.period_s),
            commands=CommandInput(steps=config.frames, step_s=config.step_s),
            frames=frames,
        )

    def read_spec(self, ref: ModelRef) -> ModelSpec:
        from physis_core.model.tiny.world_model import world_spec

        return world_spec(configured(WorldConfig, ref.config, ref.checkpoint))

    def load(
        self, ref: ModelRef, *, blocks: Iterable[int] | None, device: torch.device
    ) -> WorldModel:
        from physis_core.model.tiny.loading import load_world

        return load_world(ref.config, ref.checkpoint, blocks, device)

    def frame_encoder(self, ref: ModelRef) -> FrameEncoder:
        import numpy as np
        import torch

        from physis_core.model.tiny.loading import load_frame_coder
        from physis_core.model.tiny.world_model import FIRST

        if ref.checkpoint is None:
            raise UserError("model", self.name, "has no checkpoint to encode a first frame with")
        coder = load_frame_coder(ref.checkpoint)

        def encode(frame: Array) -> Mapping[str, Array]:
            """uint8 [H, W, 3] -> latents float32 [tokens, channels]."""
            with torch.inference_mode():
                latents = coder.encode(torch.from_numpy(np.array(frame)).unsqueeze(0))
            return {FIRST: latents[0].numpy()}

        return encode


POLICY = PolicyFamily()
WORLD = WorldFamily()
