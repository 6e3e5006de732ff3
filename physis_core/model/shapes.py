"""Networks without numbers: what a model's shapes and bytes are, before any weight is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

_FILLS: frozenset[Callable[..., Any]] = frozenset(
    getattr(nn.init, name) for name in dir(nn.init) if name.endswith("_") and name[0] != "_"
) | {torch.Tensor.normal_, torch.Tensor.uniform_}


class _NoFills(TorchFunctionMode):
    """Leaves out what would fill a tensor with random numbers.

    On the meta device these run as Python decompositions, for which torch imports its compiler:
    more than a second at the start of each process, to fill nothing.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in _FILLS:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


@contextmanager
def shapes_only() -> Iterator[None]:
    """Modules made inside hold tensors of the meta device: shapes and dtypes, no numbers."""
    with torch.device("meta"), _NoFills():
        yield
