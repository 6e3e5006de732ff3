"""`physis up`: what it says without starting anything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from physis_ros.cli.main import main
from physis_ros.node.share import share_directory
from physis_ros.stack.description import stack_names


def test_the_help_names_every_stack_and_choice(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["up", "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert {"acwm", "wam"} <= set(stack_names(share_directory()))
    for word in (*stack_names(share_directory()), "--controller-topic", "--print-parameters"):
        assert word in shown


@pytest.mark.parametrize("seconds", ["-3", "nan", "inf"])
def test_a_duration_out_of_range_is_one_line(
    capsys: pytest.CaptureFixture[str], seconds: str
) -> None:
    assert main(["up", "wam", "--duration-s", seconds]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("physis up: duration_s: ")
    assert said.err.count("\n") == 1


def test_parameters_are_printed_with_what_set_them(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    params, result = tmp_path / "p.yaml", tmp_path / "r.json"
    params.write_text("safety_node: {ros__parameters: {rate_hz: 100.0, late_s: 0.3}}")
    words = ["up", "robot", "--params-file", str(params), "--set", "safety_node.rate_hz=150"]
    assert main([*words, "--print-parameters", "--json", str(result)]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["rate_hz", "150.0", "command", "line", "set"] in rows
    assert ["late_s", "0.3", "params", "file", f"{params}:", "safety_node"] in rows
    assert ["status_hz", "20.0", "built-in", "safety_node.param.yaml"] in rows
    found = json.loads(result.read_text())["parameters"]["safety_node"]
    assert found["rate_hz"] == {"value": 150.0, "origin": "command line", "where": "set"}
    assert found["robot_file"]["origin"] == "robot"
    assert found["clock_jump_s"]["origin"] == "built-in"
