"""What lies in a folder with a Wan checkpoint: its parts, its sizes, and what is missing.

Two layouts, both as they are downloaded:

    diffusers    model_index.json, transformer/, vae/, text_encoder/, tokenizer/, scheduler/
    original     config.json, diffusion_pytorch_model*.safetensors, Wan2.1_VAE.pth,
                 models_t5_umt5-xxl-enc-bf16.pth, google/umt5-xxl/

A transformer's folder alone will do, too; its outputs stay latents. `physis.yaml` in the folder
says what no configuration file says (`RunFile`). Imports no torch, and reads no weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from physis_core.files import read_file
from physis_core.model.config import build_config
from physis_core.model.registry import RUN_FILE
from physis_core.types import UserError

INDEX = "model_index.json"
CONFIG = "config.json"
TRANSFORMER = "WanTransformer3DModel"
AUTOENCODER = "AutoencoderKLWan"
ORIGINAL = "WanModel"
_ORIGINAL_VAE = "*_VAE.pth"
_ORIGINAL_TEXT = "models_t5_umt5-xxl-enc-*.pth"
_ORIGINAL_TOKENIZER = "google/umt5-xxl"
_FROM_DIFFUSERS = {
    "num_attention_heads": "heads",
    "attention_head_dim": "head_dim",
    "ffn_dim": "ffn",
    "num_layers": "blocks",
    "out_channels": "channels",
    "text_dim": "text_dim",
    "freq_dim": "freq_dim",
    "patch_size": "patch",
    "cross_attn_norm": "cross_attn_norm",
    "eps": "eps",
}
"""The field of `WanConfig` for each field of diffusers' configuration that has one."""
_FROM_ORIGINAL = {
    "num_heads": "heads",
    "ffn_dim": "ffn",
    "num_layers": "blocks",
    "out_dim": "channels",
    "text_len": "text_tokens",
    "freq_dim": "freq_dim",
    "eps": "eps",
}
_PARTS = ("transformer", "vae", "text_encoder", "tokenizer", "action_adapter")


@dataclass(frozen=True, slots=True, kw_only=True)
class Autoencoder:
    """The part of the VAE's configuration that sizes follow from; names as in diffusers."""

    z_dim: int = 16
    base_dim: int = 96
    decoder_base_dim: int | None = None
    dim_mult: tuple[int, ...] = (1, 2, 4, 4)
    num_res_blocks: int = 2
    temperal_downsample: tuple[bool, ...] = (False, True, True)
    out_channels: int = 3
    patch_size: int | None = None
    is_residual: bool = False

    @property
    def frames_per_latent(self) -> int:
        """All but a stream's first latent stand for this many frames."""
        return int(2 ** sum(self.temperal_downsample))

    @property
    def pixels_per_cell(self) -> int:
        """Along one side."""
        return int(2 ** len(self.temperal_downsample)) * (self.patch_size or 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class WanFolder:
    """Where the parts lie; None: there is none. `sizes` are fields of `WanConfig`."""

    path: Path
    layout: str
    transformer: Path
    vae: Path | None = None
    text_encoder: Path | None = None
    tokenizer: Path | None = None
    action_adapter: Path | None = None
    sizes: Mapping[str, Any] = field(default_factory=dict)
    autoencoder: Autoencoder | None = None
    has_run_file: bool = False
    name: str = ""


def is_wan_folder(path: Path) -> bool:
    """Whether a family's first look recognises it."""
    index = read_object(path / INDEX)
    if index:
        return _class_of(index.get("transformer")) == TRANSFORMER
    return read_object(path / CONFIG).get("_class_name") in (TRANSFORMER, ORIGINAL)


def read_folder(path: Path) -> WanFolder:
    """Raises UserError where the folder holds no Wan transformer, or `physis.yaml` is wrong."""
    run = _run_file(path)
    index = read_object(path / INDEX)
    if index:
        found = _diffusers(path, index)
    else:
        config = read_object(path / CONFIG)
        if config.get("_class_name") == ORIGINAL:
            found = _original(path, config)
        elif config.get("_class_name") == TRANSFORMER:
            found = WanFolder(
                path=path, layout="transformer", transformer=path, sizes=_sizes(config)
            )
        else:
            raise UserError(
                "model",
                str(path),
                f"holds neither {INDEX} nor a {CONFIG} of a Wan transformer; is it downloaded?",
            )
    parts = {part: getattr(found, part) for part in _PARTS}
    for part, place in run.get("files", {}).items():
        if part not in _PARTS:
            raise UserError(f"files.{part}", place, f"one of {', '.join(_PARTS)}")
        parts[part] = path / str(place)
        if not parts[part].exists():
            raise UserError(f"files.{part}", str(parts[part]), f"{RUN_FILE}: there is no such file")
    sizes = {**found.sizes, **run.get("run", {})}
    if parts["action_adapter"] is not None:
        sizes |= _adapter(parts["action_adapter"])
    return WanFolder(
        path=path,
        layout=found.layout,
        **parts,
        sizes=sizes,
        autoencoder=_autoencoder(parts["vae"]),
        has_run_file=bool(run),
        name=str(run.get("name", path.name)),
    )


def _diffusers(path: Path, index: Mapping[str, Any]) -> WanFolder:
    if _class_of(index.get("transformer")) != TRANSFORMER:
        raise UserError("model", str(path), f"{INDEX} names no {TRANSFORMER}")
    if _class_of(index.get("transformer_2")) is not None:
        raise UserError(
            "model", str(path), "has two transformers (high and low noise); the engine runs one"
        )
    transformer = path / "transformer"
    config = read_object(transformer / CONFIG)
    if not config:
        raise UserError("model", str(transformer / CONFIG), "is missing: download it")
    sizes = _sizes(config)
    scheduler = read_object(path / "scheduler" / "scheduler_config.json")
    shift = scheduler.get("flow_shift", scheduler.get("shift"))
    if isinstance(shift, (int, float)):
        sizes["shift"] = float(shift)
    if index.get("expand_timesteps"):
        sizes["observation"] = "first_frame"

    def part(name: str) -> Path | None:
        return path / name if _class_of(index.get(name)) is not None else None

    adapter = path / "action_adapter"
    return WanFolder(
        path=path,
        layout="diffusers",
        transformer=transformer,
        vae=part("vae"),
        text_encoder=part("text_encoder"),
        tokenizer=part("tokenizer"),
        action_adapter=adapter if adapter.exists() else None,
        sizes=sizes,
    )


def _original(path: Path, config: Mapping[str, Any]) -> WanFolder:
    sizes = {ours: config[theirs] for theirs, ours in _FROM_ORIGINAL.items() if theirs in config}
    try:
        sizes["head_dim"] = config["dim"] // config["num_heads"]
    except (KeyError, TypeError, ZeroDivisionError):
        raise UserError("model", str(path / CONFIG), "names no dim and num_heads") from None
    _check_inputs(config.get("in_dim"), config.get("out_dim"), path / CONFIG)
    if config.get("model_type") == "ti2v":
        sizes["observation"] = "first_frame"
    tokenizer = path / _ORIGINAL_TOKENIZER
    return WanFolder(
        path=path,
        layout="original",
        transformer=path,
        vae=next(iter(sorted(path.glob(_ORIGINAL_VAE))), None),
        text_encoder=next(iter(sorted(path.glob(_ORIGINAL_TEXT))), None),
        tokenizer=tokenizer if tokenizer.is_dir() else None,
        sizes=sizes,
    )


def _sizes(config: Mapping[str, Any]) -> dict[str, Any]:
    _check_inputs(config.get("in_channels"), config.get("out_channels"), Path(CONFIG))
    if config.get("image_dim") is not None:
        raise UserError(
            "image_dim", config["image_dim"], "a transformer with an image encoder is not supported"
        )
    return {ours: config[theirs] for theirs, ours in _FROM_DIFFUSERS.items() if theirs in config}


def _check_inputs(given: object, made: object, where: Path) -> None:
    """Image-to-video of Wan2.1 takes mask and first frame as channels beside the noise."""
    if given != made:
        raise UserError(
            "in_channels",
            given,
            f"{where}: the engine runs transformers that take as many channels as they give,"
            f" {made}; image-to-video of Wan2.1 takes more",
        )


def _adapter(place: Path) -> dict[str, Any]:
    config = read_object(place / CONFIG)
    names, hidden = config.get("joint_names"), config.get("hidden")
    if not isinstance(names, list) or type(hidden) is not int:
        raise UserError("action_adapter", str(place / CONFIG), "must name joint_names and hidden")
    return {"action_joints": names, "action_hidden": hidden}


def _autoencoder(place: Path | None) -> Autoencoder | None:
    if place is None:
        return None
    if place.is_file():
        if place.name.startswith("Wan2.1"):
            return Autoencoder()
        raise UserError(
            "vae", str(place), "of original VAE files only Wan2.1's; use diffusers' vae/ folder"
        )
    config = read_object(place / CONFIG)
    if not config:
        return None
    names = [f.name for f in fields(Autoencoder)]
    return build_config(Autoencoder, {name: config[name] for name in names if name in config})


def _run_file(path: Path) -> Mapping[str, Any]:
    file = path / RUN_FILE
    if not file.is_file():
        return {}
    values = read_file(file, "model")
    known = ("family", "name", "source", "files", "run")
    if not isinstance(values, Mapping):
        raise UserError("model", str(file), "must be a mapping")
    for name, value in values.items():
        if name not in known:
            raise UserError(str(name), value, f"{file}: one of {', '.join(known)}")
    for name in ("files", "run"):
        if not isinstance(values.get(name, {}), Mapping):
            raise UserError(name, values[name], f"{file}: must be a mapping")
    return values


def _class_of(entry: object) -> str | None:
    """Of an entry of model_index.json: [library, class], both null where there is none."""
    if isinstance(entry, list) and len(entry) == 2 and isinstance(entry[1], str):
        return entry[1]
    return None


def read_object(path: Path) -> Mapping[str, Any]:
    """Empty where there is no such file, or it is no JSON object."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, Mapping) else {}
