"""The family `wan`: a folder as it is downloaded, or a manifest beside a file of weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from physis_core.model.config import build_config
from physis_core.model.description import CommandInput, FrameOutput, ModelDescription
from physis_core.model.registry import RUN_FILE, ConditionEncoder, FrameEncoder, ModelRef
from physis_core.model.wan.config import WanConfig
from physis_core.model.wan.folder import WanFolder, is_wan_folder, read_folder
from physis_core.model.wan.folder_check import problems
from physis_core.types import Array, UserError

if TYPE_CHECKING:
    import torch

    from physis_core.model.protocol import ModelSpec
    from physis_core.model.wan.model import WanModel


class WanFamily:
    """Implements `ModelFamily` and `EncodesConditions`."""

    name = "wan"

    def detect(self, path: Path) -> bool:
        return is_wan_folder(path)

    def describe(self, ref: ModelRef) -> ModelDescription:
        config, folder = _setup(ref)
        step_s = 1.0 / config.fps
        prompt = folder is not None and folder.text_encoder is not None
        return ModelDescription(
            family=self.name,
            steps=config.steps,
            blocks=config.stages_per_step,
            kv=config.kv,
            window_chunks=config.window_chunks,
            sink_chunks=config.sink_chunks,
            period_s=config.frames * step_s if config.decode else None,
            joints=config.action_joints,
            commands=CommandInput(steps=config.frames, step_s=step_s)
            if config.action_joints
            else None,
            frames=FrameOutput(
                count=config.frames,
                height=config.height * config.pixels_per_cell,
                width=config.width * config.pixels_per_cell,
                fovy_deg=config.camera_fovy_deg or None,
                step_s=step_s,
                first="optional" if config.observation == "first_frame" else "none",
            )
            if config.decode
            else None,
            takes_prompt=prompt,
            packages=("torch", "diffusers", "transformers") if prompt else ("torch", "diffusers"),
            missing=() if folder is None else tuple(problems(folder, config)),
            note=_note(folder),
        )

    def read_spec(self, ref: ModelRef) -> ModelSpec:
        """Sizes follow from the configuration; `load` checks the checkpoint against it."""
        from physis_core.model.wan.loading import decoder_size
        from physis_core.model.wan.spec import wan_spec

        config, folder = _setup(ref)
        return wan_spec(config, None if folder is None else decoder_size(config, folder))

    def load(
        self, ref: ModelRef, *, blocks: Iterable[int] | None, device: torch.device
    ) -> WanModel:
        from physis_core.model.wan.loading import build_wan, load_wan

        config, folder = _setup(ref)
        if folder is None:
            return build_wan(config, ref.checkpoint, blocks, device)
        return load_wan(config, folder, blocks, device)

    def frame_encoder(self, ref: ModelRef) -> FrameEncoder:
        """Takes a frame of the model's own size."""
        config, folder = _setup(ref)
        if config.observation != "first_frame" or folder is None:
            raise UserError("model", ref.label, "takes no first frame")
        import torch

        from physis_core.model.wan.decoder import load_encoder
        from physis_core.model.wan.spec import FIRST, HAS_FIRST

        coder = load_encoder(folder)

        def encode(frame: Array) -> Mapping[str, Array]:
            coder.reset()
            with torch.inference_mode():
                latent = coder.encode(torch.tensor(frame)[None])
            return {FIRST: latent[:, None].numpy(), HAS_FIRST: torch.ones(1).numpy()}

        return encode

    def condition_encoder(self, ref: ModelRef) -> ConditionEncoder:
        from physis_core.model.wan.prompt import PromptEncoder

        config, folder = _setup(ref)
        return PromptEncoder(config, folder)


def _setup(ref: ModelRef) -> tuple[WanConfig, WanFolder | None]:
    """The checkpoint's own sizes where it names them; the reference's fields come before those."""
    if ref.checkpoint is None or not Path(ref.checkpoint).is_dir():
        return build_config(WanConfig, ref.config), None
    if "heads" in ref.config and not is_wan_folder(Path(ref.checkpoint)):
        # Bare weights whose sizes a manifest names.
        return build_config(WanConfig, ref.config), None
    folder = read_folder(Path(ref.checkpoint))
    values: dict[str, Any] = {}
    if folder.autoencoder is not None:
        values = {
            "decode": True,
            "frames_per_latent": folder.autoencoder.frames_per_latent,
            "pixels_per_cell": folder.autoencoder.pixels_per_cell,
        }
    return build_config(WanConfig, {**values, **folder.sizes, **ref.config}), folder


def _note(folder: WanFolder | None) -> str:
    if folder is None or folder.has_run_file:
        return ""
    return (
        f"no {RUN_FILE}: steps, window and chunk are defaults, not what the checkpoint was trained"
        " for; config/models/ has one for each public checkpoint"
    )


FAMILY = WanFamily()
