import argparse
from pathlib import Path

import pytest
import torch

from physis_core.deployment.profile import load_profile
from physis_core.types import UserError
from physis_ros.cli import profile as verb

MODEL = '{"steps": 2, "blocks": 3, "dim": 16, "ffn": [16, 64, 16]}'


def arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    verb.add_arguments(parser)
    return parser.parse_args(["--model", "synthetic", "--config", MODEL, "--repeat", "4", *words])


def test_what_is_written_can_be_planned_with(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    path = tmp_path / "profile.yaml"
    result = verb.run(arguments("--batches", "2,4", "--out", str(path)))
    torch.set_num_threads(threads)
    profile = load_profile(path)
    assert (profile.steps, profile.blocks, profile.kv) == (2, 3, "noisy")
    for cost in profile.block_costs:
        assert sorted(cost.p50_s) == [1, 2, 4], "a planner needs the cost of one task alone"
        assert all(0 < cost.p50_s[n] <= cost.p99_s[n] for n in cost.p50_s)
    assert profile.block_costs[1].weight_bytes > profile.block_costs[0].weight_bytes
    assert result["profile"]["source"] == "measured"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--batches", "1,x"), "batches: '1,x'"),
        (("--batches", "0"), "batches: '0'"),
        (("--repeat", "0"), "repeat: 0"),
        (("--config", "{"), "config: '{': is not JSON"),
        (("--config", '{"dimm": 3}'), "dimm: 3: unknown"),
        (("--device", "cuda:7"), "device: 'cuda:7'"),
        (("--out", "x.txt"), "out: 'x.txt'"),
    ],
)
def test_bad_input_names_field_and_value(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(UserError, match=said.replace("{", r"\{")):
        verb.run(arguments(*words))
