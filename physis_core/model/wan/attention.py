"""Attention processors: diffusers' official place to change what a block attends to.

Both are stateless. What a call needs comes through arguments that diffusers hands on unread: the
self-attention's `rotary_emb` is a `WindowContext`, the cross-attention's `encoder_hidden_states` is
the prompt's `TextKV`. So one block may serve many streams at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import functional

from physis_core.model.attention import windowed_attention
from physis_core.model.protocol import KVWindow
from physis_core.model.rope import ChunkRope


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowContext:
    """Row i of the batch attends over windows[i], and is kept there where write[i]."""

    windows: Sequence[KVWindow]
    write: Sequence[bool]
    rope: ChunkRope


@dataclass(frozen=True, slots=True, kw_only=True)
class TextKV:
    """K and V of each row's prompt in one block, [B, text_tokens, heads, head_dim]."""

    k: Tensor
    v: Tensor


class WindowedSelfAttention:
    """diffusers' processor interface; hidden_states [B, tokens, dim]."""

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: None,
        attention_mask: None,
        rotary_emb: WindowContext,
    ) -> Tensor:
        q = attn.norm_q(attn.to_q(hidden_states))
        k = attn.norm_k(attn.to_k(hidden_states))
        v = attn.to_v(hidden_states)
        q, k, v = (x.view(*x.shape[:2], attn.heads, -1) for x in (q, k, v))
        out = windowed_attention(q, k, v, rotary_emb.windows, rotary_emb.write, rotary_emb.rope)
        projected: Tensor = attn.to_out[0](out.flatten(2))
        return projected


class CachedTextAttention:
    """Cross-attention to K and V that were computed once for the prompt."""

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: TextKV,
        attention_mask: None,
        rotary_emb: None,
    ) -> Tensor:
        q = attn.norm_q(attn.to_q(hidden_states))
        q = q.view(*q.shape[:2], attn.heads, -1).transpose(1, 2)
        k, v = encoder_hidden_states.k.transpose(1, 2), encoder_hidden_states.v.transpose(1, 2)
        out = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        projected: Tensor = attn.to_out[0](out.flatten(2))
        return projected


def text_kv(attn: Any, text: Tensor) -> tuple[Tensor, Tensor]:
    """K and V [text_tokens, heads, head_dim] of embedded text [text_tokens, dim]."""
    k = attn.norm_k(attn.to_k(text))
    v = attn.to_v(text)
    return k.view(len(text), attn.heads, -1), v.view(len(text), attn.heads, -1)
