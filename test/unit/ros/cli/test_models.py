"""`physis models`: the list, one model's facts, its promises, and wrong input."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from physis_core.model.synthetic.model import SyntheticModel
from physis_core.types import UserError
from physis_ros.cli import main as program
from physis_ros.cli import models as verb
from physis_ros.node.packages import command_for


def run(*words: str) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    verb.add_arguments(parser)
    return verb.run(parser.parse_args(words))


def test_the_list_names_families_and_shipped_checkpoints(capsys: Any) -> None:
    result = run()
    assert result["ok"] is True
    assert result["families"]["synthetic"] == "built in"
    found = {entry["name"]: entry for entry in result["checkpoints"]}
    assert found["physis_tiny_world"]["purpose"] == "world model"
    assert found["physis_tiny_follow"]["bytes"] > 1e6
    assert "no family knows it" in found["physis_world_probe"]["reason"]
    said = capsys.readouterr().out
    assert "physis_tiny_follow" in said
    assert "built in" in said


def test_a_model_says_what_it_is_and_what_it_needs(capsys: Any, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    assert program.main(["models", "physis_tiny_wam", "--json", str(file)]) == 0
    result = json.loads(file.read_text())
    assert result["purpose"] == "policy that draws its future"
    assert result["description"]["cameras"] == [{"name": "front", "height": 64, "width": 64}]
    assert result["missing"] == []
    said = capsys.readouterr().out
    for words in ("100 ms between chunks", "front 64x64", "elbow_joint", "missing   nothing"):
        assert words in said


def test_joints_that_a_robot_lacks_are_named(capsys: Any) -> None:
    result = run("physis_tiny_follow", "--robot", "panda")
    assert result["ok"] is False
    assert "elbow_joint" in result["missing"][0]
    assert run("physis_tiny_follow", "--robot", "ur5e")["ok"] is True
    assert program.main(["models", "physis_tiny_follow", "--robot", "panda"]) == 1


def test_every_promise_is_printed_kept_or_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path
) -> None:
    model = tmp_path / "small"
    model.mkdir()
    config = {"steps": 2, "blocks": 2, "tokens": 2, "dim": 8}
    (model / "physis.json").write_text(json.dumps({"family": "synthetic", "config": config}))
    result = run(str(model), "--check")
    assert result["ok"] is True
    assert len(result["promises"]) == 7
    assert capsys.readouterr().out.count("\nkept ") == 7

    def fail(self: Any, *rest: Any) -> Any:
        raise RuntimeError("no\nhead")

    monkeypatch.setattr(SyntheticModel, "renoise", fail)
    result = run(str(model), "--check")
    assert result["ok"] is False
    broken = [promise["name"] for promise in result["promises"] if promise["broken"]]
    assert broken == ["refresh_and_noise"]
    assert "refresh_and_noise: raised RuntimeError: no head" in capsys.readouterr().out


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(verb.importlib.util, "find_spec", lambda name: None)
    result = run("synthetic")
    assert result["missing"] == [f"Python package torch: {command_for('torch')}"]
    with pytest.raises(UserError, match="needs torch"):
        run("synthetic", "--check")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing"], "model: 'nothing': no such file"),
        (["physis_world_probe"], "no family knows it"),
        (["tiny"], "joint_names: None: is needed"),
        (["physis_tiny_follow", "--robot", "nobody"], "robot_file: 'nobody'"),
        (["--check"], "check: True: name a model"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(words: list[str], said: str, capsys: Any) -> None:
    assert program.main(["models", *words]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert said in lines[0]
