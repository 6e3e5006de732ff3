"""Tensors through a message, whatever their type."""

from __future__ import annotations

import pytest
import torch

from physis_core.cluster.messages import WindowSaved
from physis_core.cluster.transport import encode, engine_decoder
from physis_core.worker.tensor_arrays import (
    payload_arrays,
    payload_tensors,
    to_arrays,
    to_tensors,
)

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (2, 0, 3), (2, 3)])
def test_a_tensor_comes_back_as_it_was(dtype, shape):
    tensor = torch.arange(6)[: torch.Size(shape).numel()].reshape(shape).to(dtype)
    sent = WindowSaved(stream=1, epoch=0, seq=0, chunk=0, stage=0, saved=to_arrays({"kv": tensor}))
    message = engine_decoder().decode(encode(sent))
    assert isinstance(message, WindowSaved)
    (back,) = to_tensors(message.saved).values()
    assert back.dtype == dtype
    assert torch.equal(back, tensor)
    back.zero_()


def test_a_view_of_another_layout_comes_back_too():
    tensor = torch.arange(6, dtype=torch.bfloat16).view(2, 3).t()
    assert torch.equal(to_tensors(to_arrays({"x": tensor}))["x"], tensor)


def test_a_payload_keeps_its_order():
    payload = tuple(torch.full((1, 2), float(i)) for i in range(12))
    back = payload_tensors(payload_arrays(payload))
    assert all(torch.equal(a, b) for a, b in zip(payload, back, strict=True))
