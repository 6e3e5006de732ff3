"""A prompt becomes a text embedding: UMT5 through transformers, once for all devices."""

from __future__ import annotations

import html
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

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
    if folder.text_encoder.is_file():
        raise UserError(
            "text_encoder", str(folder.text_encoder), "use diffusers' text_encoder/ folder"
        )
    checked_files(folder.text_encoder, "text_encoder")
    try:
        from transformers import AutoTokenizer, UMT5EncoderModel
        from transformers.utils import logging
    except ImportError as error:
        raise UserError(
            "prompt", "", f"needs transformers: pip install transformers ({error})"
        ) from None
    place: Path = folder.text_encoder
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(folder.tokenizer, local_files_only=True)
        model: Any = UMT5EncoderModel.from_pretrained(
            place, local_files_only=True, dtype="auto", use_safetensors=True
        )
    except (OSError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise UserError("text_encoder", str(place), f"cannot be loaded ({reason})") from None
    return tokenizer, model.eval().requires_grad_(False)


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 40 else text[:40] + "..."
