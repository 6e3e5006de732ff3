"""A prompt becomes a text embedding: UMT5 through transformers, once for all devices."""

from __future__ import annotations

import html
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from physis_core.model.shapes import shapes_only
from physis_core.model.wan.checkpoint import open_weights
from physis_core.model.wan.config import WanConfig
from physis_core.model.wan.folder import WanFolder
from physis_core.model.wan.folder_check import checked_files
from physis_core.types import UserError

MOST_BYTES = 16 * 1024
"""Of a prompt; what is longer cannot fit the model's tokens, and is not even split into them."""
FIELDS = ("prompt", "instruction")


class PromptEncoder:
    """Implements `ConditionEncoder`. Any thread; one prompt at a time.

    The encoder's weights are read with the first prompt, and kept.
    """

    def __init__(self, config: WanConfig, folder: WanFolder | None) -> None:
        self._config = config
        self._folder = folder
        self._lock = threading.Lock()
        self._loaded: tuple[Any, Any] | None = None

    def encoded(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """`prompt` or `instruction` replaced by `text_embedding` [n <= text_tokens, text_dim].

        Raises:
            UserError: no encoder, transformers missing, or the prompt is empty or too long.
        """
        given = {name: values[name] for name in FIELDS if name in values}
        rest = {name: value for name, value in values.items() if name not in FIELDS}
        if not given:
            return rest
        name, prompt = next(iter(given.items()))
        if len(given) > 1 or "text_embedding" in rest:
            raise UserError(name, _short(prompt), "give one of prompt and text_embedding")
        if not isinstance(prompt, str):
            raise UserError(name, type(prompt).__name__, "must be text")
        size = len(prompt.encode())
        if size > MOST_BYTES:
            raise UserError(name, _short(prompt), f"has {size} bytes, at most {MOST_BYTES}")
        with self._lock, torch.inference_mode():
            return {
                **rest,
                "text_embedding": self._embed(name, " ".join(html.unescape(prompt).split())),
            }

    def _embed(self, name: str, prompt: str) -> Any:
        """float32 [n, text_dim], n the tokens of the prompt with its end mark."""
        if self._loaded is None:
            self._loaded = _load(self._folder)
        tokenizer, model = self._loaded
        tokens = tokenizer(prompt, return_tensors="pt", add_special_tokens=True).input_ids
        most = self._config.text_tokens
        if tokens.shape[1] > most:
            raise UserError(
                name, _short(prompt), f"has {tokens.shape[1]} tokens, the model reads {most}"
            )
        embedding = model(tokens).last_hidden_state[0].float().numpy()
        return np.array(embedding, dtype=np.float32)


def _load(folder: WanFolder | None) -> tuple[Any, Any]:
    """(tokenizer, encoder), on the CPU in bfloat16 where it is stored so."""
    if folder is None or folder.text_encoder is None or folder.tokenizer is None:
        raise UserError(
            "prompt", "", "the model's folder has no text encoder; give text_embedding instead"
        )
    try:
        from transformers import AutoTokenizer
        from transformers.utils import logging
    except ImportError as error:
        raise UserError(
            "prompt", "", f"needs transformers: pip install transformers ({error})"
        ) from None
    place: Path = folder.text_encoder
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(folder.tokenizer, local_files_only=True)
        model = _from_original(place) if place.is_file() else _from_transformers(place)
    except (OSError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise UserError("text_encoder", str(place), f"cannot be loaded ({reason})") from None
    return tokenizer, model.eval().requires_grad_(False)


def _from_transformers(place: Path) -> Any:
    from transformers import UMT5EncoderModel

    checked_files(place, "text_encoder")
    return UMT5EncoderModel.from_pretrained(
        place, local_files_only=True, dtype="auto", use_safetensors=True
    )


def _from_original(file: Path) -> Any:
    """From Wan's own file, whose tensors say the sizes; transformers' model with its names."""
    from transformers import UMT5Config, UMT5EncoderModel

    stored = {umt5_name(name): tensor for name, tensor in open_weights(file).items()}
    try:
        vocabulary, width = stored["shared.weight"].shape
        buckets, heads = stored[f"{_FIRST}.relative_attention_bias.weight"].shape
        inner = stored[f"{_FIRST}.q.weight"].shape[0]
        feed = stored["encoder.block.0.layer.1.DenseReluDense.wo.weight"].shape[1]
    except KeyError as error:
        raise UserError("text_encoder", str(file), f"lacks {error.args[0]}") from None
    config = UMT5Config(
        vocab_size=vocabulary,
        d_model=width,
        d_kv=inner // heads,
        d_ff=feed,
        num_layers=len({name.split(".")[2] for name in stored if ".block." in name}),
        num_heads=heads,
        relative_attention_num_buckets=buckets,
    )
    with shapes_only():
        model: Any = UMT5EncoderModel(config)
    weights = {name: tensor.read() for name, tensor in stored.items()}
    weights["encoder.embed_tokens.weight"] = weights["shared.weight"]
    model.load_state_dict(weights, strict=True, assign=True)
    return model


_FIRST = "encoder.block.0.layer.0.SelfAttention"
_IN_BLOCK = {
    "norm1": "layer.0.layer_norm",
    "attn.q": "layer.0.SelfAttention.q",
    "attn.k": "layer.0.SelfAttention.k",
    "attn.v": "layer.0.SelfAttention.v",
    "attn.o": "layer.0.SelfAttention.o",
    "pos_embedding.embedding": "layer.0.SelfAttention.relative_attention_bias",
    "norm2": "layer.1.layer_norm",
    "ffn.gate.0": "layer.1.DenseReluDense.wi_0",
    "ffn.fc1": "layer.1.DenseReluDense.wi_1",
    "ffn.fc2": "layer.1.DenseReluDense.wo",
}


def umt5_name(original: str) -> str:
    """transformers' name of a tensor of Wan's text encoder; others come back as they are."""
    stem, _, leaf = original.rpartition(".")
    if stem == "token_embedding":
        return "shared.weight"
    if stem == "norm":
        return f"encoder.final_layer_norm.{leaf}"
    parts = stem.split(".", 2)
    if len(parts) == 3 and parts[0] == "blocks" and parts[2] in _IN_BLOCK:
        return f"encoder.block.{parts[1]}.{_IN_BLOCK[parts[2]]}.{leaf}"
    return original


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 40 else text[:40] + "..."
