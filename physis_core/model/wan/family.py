"""The family `wan`: diffusers' format, or a manifest beside any other file of weights."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from physis_core.model.config import build_config
from physis_core.model.description import ModelDescription
from physis_core.model.registry import FrameEncoder, ModelRef
from physis_core.model.wan.config import WanConfig
from physis_core.types import UserError

if TYPE_CHECKING:
    import torch

    from physis_core.model.protocol import ModelSpec
    from physis_core.model.wan.model import WanModel

DIFFUSERS_CONFIG = "config.json"
DIFFUSERS_CLASS = "WanTransformer3DModel"
_DIFFUSERS_FIELDS = {
    "num_attention_heads": "heads",
    "attention_head_dim": "head_dim",
    "ffn_dim": "ffn",
    "num_layers": "blocks",
    "in_channels": "channels",
    "text_dim": "text_dim",
    "freq_dim": "freq_dim",
    "patch_size": "patch",
    "cross_attn_norm": "cross_attn_norm",
    "eps": "eps",
}
"""The field of `WanConfig` for each field of diffusers' configuration that has one."""


class WanFamily:
    """Implements `ModelFamily`. Other formats than diffusers' do not name their sizes."""

    name = "wan"

    def detect(self, path: Path) -> bool:
        return _diffusers_config(path).get("_class_name") == DIFFUSERS_CLASS

    def describe(self, ref: ModelRef) -> ModelDescription:
        config = _config(ref)
        return ModelDescription(
            family=self.name,
            steps=config.steps,
            blocks=config.blocks,
            kv=config.kv,
            window_chunks=config.window_chunks,
            sink_chunks=config.sink_chunks,
            packages=("torch", "diffusers"),
        )

    def read_spec(self, ref: ModelRef) -> ModelSpec:
        """Sizes follow from the configuration; `load` checks the checkpoint against it."""
        from physis_core.model.wan.spec import wan_spec

        return wan_spec(_config(ref))

    def load(
        self, ref: ModelRef, *, blocks: Iterable[int] | None, device: torch.device
    ) -> WanModel:
        from physis_core.model.wan.loading import build_wan

        return build_wan(_config(ref), ref.checkpoint, blocks, device)

    def frame_encoder(self, ref: ModelRef) -> FrameEncoder:
        raise UserError("model", self.name, "takes no first frame: its VAE is not part of it")


def _config(ref: ModelRef) -> WanConfig:
    """The checkpoint's own sizes where it names them; the reference's fields come before those."""
    stored = {} if ref.checkpoint is None else _diffusers_config(Path(ref.checkpoint))
    named = {ours: stored[theirs] for theirs, ours in _DIFFUSERS_FIELDS.items() if theirs in stored}
    return build_config(WanConfig, {**named, **ref.config})


def _diffusers_config(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads((path / DIFFUSERS_CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, Mapping) else {}


FAMILY = WanFamily()
