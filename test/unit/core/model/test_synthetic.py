from __future__ import annotations

import pytest
import torch

from physis_core.model.protocol import NoiseKey
from physis_core.model.synthetic.config import SyntheticConfig
from physis_core.model.synthetic.model import SyntheticModel
from physis_core.types import UserError

torch.set_num_threads(1)


def test_blocks_have_the_same_weights_whatever_else_a_rank_owns() -> None:
    config = SyntheticConfig(extra_stream_tokens=3)
    whole, part = SyntheticModel(config), SyntheticModel(config, blocks=[2])
    noise = [NoiseKey(seed=1, epoch=0, chunk_id=0)]
    observation = {"state": torch.ones(1, 4)}
    condition = [whole.condition({"bias": 0.5})]
    with torch.inference_mode():
        hidden = whole.embed(whole.inject(observation, noise), [0])
        outs = [
            model.block(2, hidden, [0], [model.new_kv(2)], condition, [True])
            for model in (whole, part)
        ]
    for a, b in zip(*outs, strict=True):
        assert torch.equal(a, b)
    with pytest.raises(KeyError):
        part.block(1, hidden, [0], [part.new_kv(1)], condition, [True])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("steps", 0),
        ("dim", 6),
        ("kv", "dirty"),
        ("dtype", "float8"),
        ("ffn", (3, 3)),
        ("sink_chunks", 3),
        ("extra_stream_tokens", -1),
    ],
)
def test_bad_configuration_names_the_field(field: str, value: object) -> None:
    with pytest.raises(UserError, match=f"^{field}: "):
        SyntheticConfig(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("values", [{"prompt": "x"}, {"bias": "x"}, {"bias": float("nan")}])
def test_bad_condition_names_the_field(values: dict[str, object]) -> None:
    with pytest.raises(UserError, match=f"^{next(iter(values))}: "):
        SyntheticModel(SyntheticConfig()).condition(values)
