"""Published shapes of models, so that a plan needs no checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Backbone:
    """Public shape of a model. `window` counts latents whose KV a stage keeps, sink included."""

    name: str
    blocks: int
    dim: int
    attention_dim: int
    parameters_per_block: float
    tokens_per_latent: int
    window: int
    sink: int
    text_tokens: int
    note: str = ""

    def with_tokens(self, tokens: int | None) -> Backbone:
        """The same shape at another resolution; None keeps it."""
        if tokens is None or tokens == self.tokens_per_latent:
            return self
        return replace(self, tokens_per_latent=tokens, note="tokens as given")


BACKBONES: Mapping[str, Backbone] = {
    b.name: b
    for b in (
        # name, blocks, dim, attention dim, parameters per block, tokens, window, sink, text, note
        Backbone("wan2.1-1.3b", 30, 1536, 1536, 46.4e6, 1560, 21, 0, 512),
        Backbone(
            *("wan2.2-5b", 30, 3072, 3072, 163.7e6, 880, 18, 0, 512),
            note="880 tokens per latent is 704x1280; at 480x832 it is 390",
        ),
        Backbone("wan2.1-14b", 40, 5120, 5120, 351.4e6, 1560, 7, 1, 512),
        Backbone(
            *("ltx-2.5-22b", 48, 4096, 4096, 22e9 / 48, 880, 21, 0, 512),
            note="parameters per block are the total over the blocks, tokens are 704x1280 at 32x32:"
            " neither is public",
        ),
        Backbone("minimax-h3-33b", 50, 5376, 7168, 645.6e6, 1008, 18, 0, 0),
    )
}
