"""What is missing in a Wan folder, or does not fit: from headers and configurations, no weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from physis_core.model.header import TensorHeader, tensor_headers
from physis_core.model.wan.config import WanConfig
from physis_core.model.wan.folder import CONFIG, WanFolder, read_object
from physis_core.model.wan.keys import canonical
from physis_core.types import UserError


def problems(folder: WanFolder, config: WanConfig) -> list[str]:
    """What is missing or does not fit, a line for each part: by the first thing in it."""
    checks: tuple[tuple[str, Callable[[], None]], ...] = (
        ("transformer", lambda: _check_transformer(folder.transformer, config)),
        ("vae", lambda: check_vae(folder, config.channels)),
        ("text_encoder", lambda: _check_text_encoder(folder, config.text_dim)),
        ("tokenizer", lambda: _check_tokenizer(folder)),
        ("action_adapter", lambda: _check_part(folder.action_adapter)),
    )
    found = []
    for part, check in checks:
        try:
            check()
        except UserError as error:
            found.append(f"{part}: {error.value} {error.reason}")
    return found


def checked_files(place: Path, field: str = "model") -> list[Path]:
    """The files of one part: itself, or all shards of a folder.

    Raises:
        UserError: by the first that is missing.
    """
    if place.is_file():
        return [place]
    files = sorted(place.glob("*.safetensors"))
    for index in sorted(place.glob("*.safetensors.index.json")):
        named = read_object(index).get("weight_map")
        if not isinstance(named, Mapping):
            raise UserError(field, str(index), "is no index of shards; download it anew")
        for shard in sorted(set(named.values())):
            if not (place / shard).is_file():
                raise UserError(field, str(place / shard), "is missing: download this shard")
        files = [place / shard for shard in sorted(set(named.values()))]
    if not files:
        raise UserError(field, str(place), "holds no .safetensors file; is it downloaded?")
    return files


def headers_of(place: Path) -> dict[str, TensorHeader]:
    """By the names in the files. Raises UserError as `checked_files`, or where one is cut off."""
    found: dict[str, TensorHeader] = {}
    for file in checked_files(place):
        found.update(tensor_headers(file))
    return found


def _check_transformer(place: Path, config: WanConfig) -> None:
    if place.is_file() and place.suffix != ".safetensors":
        return  # Read whole when it is loaded: it has no header.
    headers = headers_of(place)
    names = canonical(list(headers))
    wanted = {
        "patch_embedding.weight": (0, config.dim),
        "condition_embedder.text_embedder.linear_1.weight": (1, config.text_dim),
        "proj_out.weight": (1, config.dim),
    }
    for name, (axis, size) in wanted.items():
        if name not in names:
            raise UserError("model", str(place), f"lacks {name}")
        shape = headers[names[name]].shape
        if shape[axis] != size:
            raise UserError(
                "model", str(place), f"{names[name]} has shape {list(shape)}, needs {size}"
            )
    if headers[names["patch_embedding.weight"]].shape[1] != config.channels:
        raise UserError(
            "model", str(place), f"patch_embedding.weight takes no {config.channels} channels"
        )
    held = {int(name.split(".")[1]) for name in names if name.startswith("blocks.")}
    for block in range(config.blocks):
        if block not in held:
            raise UserError(
                "model", str(place), f"lacks the weights of block {block} of {config.blocks}"
            )


def check_vae(folder: WanFolder, channels: int) -> None:
    """Raises UserError where there is none, a file is missing, or its channels do not fit."""
    if folder.vae is None:
        raise UserError("model", str(folder.path), "has none: outputs stay latents")
    if folder.autoencoder is None:
        raise UserError("model", str(folder.vae / CONFIG), "is missing: download it")
    if folder.autoencoder.z_dim != channels:
        raise UserError(
            "model",
            str(folder.vae),
            f"has {folder.autoencoder.z_dim} latent channels, the transformer {channels}",
        )
    if folder.vae.is_dir():
        headers_of(folder.vae)


def _check_text_encoder(folder: WanFolder, text_dim: int) -> None:
    if folder.text_encoder is None:
        raise UserError("model", str(folder.path), "has none: prompts are refused")
    if folder.text_encoder.is_file():
        return
    width = read_object(folder.text_encoder / CONFIG).get("d_model")
    if width is None:
        raise UserError("model", str(folder.text_encoder / CONFIG), "is missing: download it")
    if width != text_dim:
        raise UserError(
            "model", str(folder.text_encoder), f"is {width} wide, the transformer reads {text_dim}"
        )
    headers_of(folder.text_encoder)


def _check_tokenizer(folder: WanFolder) -> None:
    place = folder.tokenizer
    if place is None:
        raise UserError("model", str(folder.path), "has none: prompts are refused")
    if not any((place / name).is_file() for name in ("tokenizer.json", "spiece.model")):
        raise UserError("model", str(place), "holds no tokenizer.json; is it downloaded?")


def _check_part(place: Path | None) -> None:
    if place is not None:
        headers_of(place)
