"""What fixes a synthetic model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from physis_core.model.config import check_window
from physis_core.types import KVMode, UserError

OBSERVATION_SIZE = 4
DTYPES = ("float32", "float64")


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticConfig:
    """`ffn` is the width of each block's feed-forward layer (2 x dim everywhere when empty): make
    blocks differ in cost by it. With `extra_stream_tokens` above 0 latent and hidden carry a second
    stream of tokens beside the first, as audio beside video. float64 shows equality to many digits.
    """

    steps: int = 4
    blocks: int = 4
    tokens: int = 8
    dim: int = 16
    heads: int = 2
    window_chunks: int = 3
    sink_chunks: int = 0
    kv: KVMode = "noisy"
    extra_stream_tokens: int = 0
    ffn: tuple[int, ...] = ()
    seed: int = 0
    dtype: str = "float32"

    def __post_init__(self) -> None:
        for field in ("steps", "blocks", "tokens", "heads"):
            if getattr(self, field) < 1:
                raise UserError(field, getattr(self, field), "must be at least 1")
        if self.dim % (2 * self.heads) or self.dim < OBSERVATION_SIZE:
            raise UserError(
                "dim",
                self.dim,
                f"must be a multiple of 2 x heads = {2 * self.heads}, at least {OBSERVATION_SIZE}",
            )
        if self.extra_stream_tokens < 0:
            raise UserError("extra_stream_tokens", self.extra_stream_tokens, "must not be below 0")
        if self.kv not in get_args(KVMode):
            raise UserError("kv", self.kv, f"one of {', '.join(get_args(KVMode))}")
        if self.dtype not in DTYPES:
            raise UserError("dtype", self.dtype, f"one of {', '.join(DTYPES)}")
        object.__setattr__(self, "ffn", tuple(self.ffn))
        if self.ffn and (len(self.ffn) != self.blocks or min(self.ffn) < 1):
            raise UserError("ffn", self.ffn, f"needs {self.blocks} widths of at least 1, or none")
        check_window(self.window_chunks, self.sink_chunks)

    @property
    def widths(self) -> tuple[int, ...]:
        return self.ffn or (2 * self.dim,) * self.blocks

    @property
    def all_tokens(self) -> int:
        return self.tokens + self.extra_stream_tokens
