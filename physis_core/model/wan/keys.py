"""Names of weights: from what public Wan checkpoints use to diffusers' names.

Taken off first: wrappers left by sharded or checkpointed training, then a prefix of the whole file.
The affine norm of the cross-attention is `norm3` in the original and `norm2` in diffusers.
"""

from __future__ import annotations

import re

WRAPPERS = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod.")
PREFIXES = ("model.diffusion_model.", "diffusion_model.", "model.")
ENTRIES = ("generator_ema", "generator")
"""Where training files keep the weights; the averaged ones are what their authors run."""

_TOP = {
    "text_embedding.0": "condition_embedder.text_embedder.linear_1",
    "text_embedding.2": "condition_embedder.text_embedder.linear_2",
    "time_embedding.0": "condition_embedder.time_embedder.linear_1",
    "time_embedding.2": "condition_embedder.time_embedder.linear_2",
    "time_projection.1": "condition_embedder.time_proj",
    "head.head": "proj_out",
}
_IN_BLOCK = {
    "norm3": "norm2",
    "ffn.0": "ffn.net.0.proj",
    "ffn.2": "ffn.net.2",
}
_ATTENTION = {"self_attn": "attn1", "cross_attn": "attn2"}
_PROJECTION = {"q": "to_q", "k": "to_k", "v": "to_v", "o": "to_out.0"}
_BLOCK = re.compile(r"blocks\.(\d+)\.(.+)")


def strip(name: str) -> str:
    """The name inside its file without wrappers and prefix."""
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    for prefix in PREFIXES:
        if name.startswith(prefix):
            return name[len(prefix) :]
    return name


def is_original(names: list[str]) -> bool:
    """True where the stripped names are those of Wan's own code rather than diffusers'."""
    marks = ("self_attn.", "text_embedding.", "time_embedding.", "head.head.")
    return any(mark in name for name in names for mark in marks)


def from_original(name: str) -> str:
    """diffusers' name of an original one; names without a counterpart come back as they are."""
    if name == "head.modulation":
        return "scale_shift_table"
    match = _BLOCK.fullmatch(name)
    if match is None:
        stem, _, leaf = name.rpartition(".")
        return f"{_TOP.get(stem, stem)}.{leaf}" if stem else name
    number, inside = match.groups()
    if inside == "modulation":
        return f"blocks.{number}.scale_shift_table"
    stem, _, leaf = inside.rpartition(".")
    attention, _, projection = stem.partition(".")
    if attention in _ATTENTION:
        stem = f"{_ATTENTION[attention]}.{_PROJECTION.get(projection, projection)}"
    else:
        stem = _IN_BLOCK.get(stem, stem)
    return f"blocks.{number}.{stem}.{leaf}"


def canonical(names: list[str]) -> dict[str, str]:
    """diffusers' name -> name in the file."""
    stripped = {strip(name): name for name in names}
    if not is_original(list(stripped)):
        return stripped
    return {from_original(name): raw for name, raw in stripped.items()}
