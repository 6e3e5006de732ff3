"""Networks of the meta device: shapes without numbers, and without torch's compiler."""

from __future__ import annotations

import subprocess
import sys

import torch
from torch import nn

from physis_core.model.shapes import shapes_only


def test_modules_have_shapes_and_no_numbers() -> None:
    with shapes_only():
        layer = nn.Linear(3, 5)
        norm = nn.LayerNorm(5)
        table = nn.Embedding(7, 2)
    assert {p.device.type for m in (layer, norm, table) for p in m.parameters()} == {"meta"}
    assert layer.weight.shape == (5, 3) and table.weight.shape == (7, 2)


def test_what_is_made_outside_is_filled_as_always() -> None:
    with shapes_only():
        nn.Linear(3, 5)
    torch.manual_seed(1)
    assert nn.Linear(3, 5).weight.abs().sum() > 0.0


def test_no_compiler_is_imported() -> None:
    code = (
        "import sys\n"
        "from torch import nn\n"
        "from physis_core.model.shapes import shapes_only\n"
        "with shapes_only():\n"
        "    nn.TransformerEncoderLayer(8, 2); nn.Embedding(4, 4); nn.Conv2d(3, 8, 3)\n"
        "print('torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
