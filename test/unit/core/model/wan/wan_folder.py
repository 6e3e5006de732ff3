"""A tiny Wan pipeline in diffusers' layout, made by diffusers, transformers and tokenizers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

TEXT_DIM = 16
WORDS = ("a", "red", "cup", "robot", "arm", "moves", "the", "to", "left", "of", "table", "stands")
RUN = """\
family: wan
run: {steps: 2, latents: 1, window_chunks: 3, height: 4, width: 4, text_tokens: 12, dtype: float32}
"""


def make_pipeline(
    folder: Path,
    *,
    first_frame: bool = False,
    channels: int = 4,
    heads: int = 2,
    head_dim: int = 12,
    run: str = RUN,
    residual_vae: bool = False,
) -> Path:
    """The folder, as `from_pretrained` and `snapshot_download` know it; weights are random."""
    from diffusers import AutoencoderKLWan, UniPCMultistepScheduler, WanTransformer3DModel

    torch.manual_seed(0)
    WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=heads,
        attention_head_dim=head_dim,
        in_channels=channels,
        out_channels=channels,
        text_dim=TEXT_DIM,
        freq_dim=16,
        ffn_dim=32,
        num_layers=2,
    ).save_pretrained(folder / "transformer")
    more: dict[str, Any] = {}
    if residual_vae:  # As Wan2.2's: 16 pixels a cell.
        more = {"is_residual": True, "patch_size": 2, "in_channels": 12, "out_channels": 12}
        more |= {"decoder_base_dim": 8, "scale_factor_spatial": 16}
    AutoencoderKLWan(
        base_dim=4,
        z_dim=channels,
        num_res_blocks=1,
        latents_mean=[0.1 * i for i in range(channels)],
        latents_std=[1.0 + 0.1 * i for i in range(channels)],
        **more,
    ).save_pretrained(folder / "vae")
    UniPCMultistepScheduler(flow_shift=3.0, use_flow_sigmas=True).save_pretrained(
        folder / "scheduler"
    )
    make_text(folder)
    index = {
        "_class_name": "WanPipeline",
        "_diffusers_version": "0.42.1",
        "scheduler": ["diffusers", "UniPCMultistepScheduler"],
        "text_encoder": ["transformers", "UMT5EncoderModel"],
        "tokenizer": ["transformers", "T5TokenizerFast"],
        "transformer": ["diffusers", "WanTransformer3DModel"],
        "transformer_2": [None, None],
        "vae": ["diffusers", "AutoencoderKLWan"],
        "expand_timesteps": first_frame,
    }
    (folder / "model_index.json").write_text(json.dumps(index), encoding="utf-8")
    if run:
        (folder / "physis.yaml").write_text(run, encoding="utf-8")
    return folder


def make_text(folder: Path, width: int = TEXT_DIM) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast, UMT5Config, UMT5EncoderModel

    vocabulary = {word: i for i, word in enumerate(["<pad>", "</s>", "<unk>", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(folder / "tokenizer")
    config = UMT5Config(
        vocab_size=len(vocabulary),
        d_model=width,
        d_kv=8,
        d_ff=24,
        num_layers=2,
        num_heads=2,
    )
    UMT5EncoderModel(config).eval().save_pretrained(folder / "text_encoder")
