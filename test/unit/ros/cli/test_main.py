"""The `physis` program: verbs, exit codes, results, refusals in one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from physis_lab.cli.bench import BENCHMARKS
from physis_ros.cli import main as program

GOOD = """
import argparse
import numpy as np
SUMMARY = "a verb for a test"
def add_arguments(parser):
    parser.add_argument("--number", type=int, default=0)
def run(args):
    print("working")
    return {"ok": args.number == 0, "value": np.float64(1.5), "array": np.arange(2)}
"""
REFUSING = """
from physis_core.types import UserError
SUMMARY: str = "refuses"
def add_arguments(parser):
    pass
def run(args):
    raise UserError("speed", "fast\\nest", "must be a number")
"""
NEEDY = """
SUMMARY = "needs what is not there"
import no_such_module_anywhere
"""
INTERRUPTED = """
SUMMARY = "interrupted"
def add_arguments(parser):
    pass
def run(args):
    raise KeyboardInterrupt
"""


@pytest.fixture(autouse=True)
def verbs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "verbs_of_test"
    package.mkdir()
    (package / "__init__.py").write_text("")
    sources = {"good": GOOD, "refusing": REFUSING, "needy": NEEDY, "interrupted": INTERRUPTED}
    for name, text in sources.items():
        (package / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [*sources, "absent"]:
        monkeypatch.setitem(program.VERBS, name, f"verbs_of_test.{name}")
    for name in [name for name in sys.modules if name.startswith("verbs_of_test")]:
        monkeypatch.delitem(sys.modules, name)


def test_a_verb_that_went_well(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    assert program.main(["good", "--json", str(out)]) == 0
    assert json.loads(out.read_text()) == {"ok": True, "value": 1.5, "array": [0, 1]}
    assert capsys.readouterr().out == "working\n"


def test_a_verb_that_did_not_is_1_and_still_writes_its_result(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    assert program.main(["good", "--number", "3", "--json", str(out)]) == 1
    assert json.loads(out.read_text())["ok"] is False


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["refusing"], "physis refusing: speed: 'fast\\\\nest': must be a number"),
        (["absent"], "physis absent: verb: 'absent': is not in this installation"),
        (["needy"], "physis needy: verb: 'needy': the Python package 'no_such_module"),
        (["goood"], "physis goood: verb: 'goood': unknown; did you mean 'good'?"),
        (["--nonsense"], "physis --nonsense: verb: '--nonsense': unknown"),
    ],
)
def test_bad_input_is_one_line_and_2(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.main(words) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert told.startswith(line.replace("\\\\", "\\"))


@pytest.mark.parametrize(
    "words", [["good", "--number", "x"], ["good", "--nubmer", "1"], ["good", "extra"]]
)
def test_wrong_arguments_are_one_line_and_2(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        program.main(words)
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ["plan"],
        ["plan", "a.yaml", "--nonsense"],
        ["simulate", "a.yaml", "--seconds", "x"],
        ["profile", "--repeat", "x"],
        ["trace", "a.npz"],
        ["up", "--nonsense"],
        ["serve", "--nonsense"],
        ["doctor", "--nonsense"],
        ["demo", "--seconds", "x"],
        ["eval", "--nonsense"],
        ["bench"],
        ["bench", "nonsense"],
        *(["bench", name, "--nonsense", "1"] for name in BENCHMARKS),
    ],
)
def test_wrong_arguments_of_every_verb_are_one_line_and_2(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        program.main(words)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith(f"physis {words[0]}")
    assert "usage" not in said


@pytest.mark.parametrize("verb", ["demo", "bench", "eval"])
def test_without_the_lab_its_verbs_say_how_to_get_it(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "physis_lab"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "physis_lab", None)
    assert program.main([verb]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "colcon build --cmake-args -DPHYSIS_LAB=ON" in said
    assert program.main(["--help"]) == 0
    assert f"  {verb}" in capsys.readouterr().out


@pytest.mark.parametrize("target", ["no/such/folder/r.json", "."])
def test_a_result_that_cannot_be_written_is_refused_before_the_work(
    target: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert program.main(["good", "--json", target]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith(f"physis good: json: '{target}': ")
    assert told.err.count("\n") == 1


def test_a_refused_run_leaves_an_older_result_as_it_was(tmp_path: Path) -> None:
    out = tmp_path / "old.json"
    out.write_text("old")
    assert program.main(["refusing", "--json", str(out)]) == 2
    assert out.read_text() == "old"
    assert program.main(["refusing", "--json", str(tmp_path / "new.json")]) == 2
    assert not (tmp_path / "new.json").exists()


def test_interrupted(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["interrupted"]) == 130
    assert capsys.readouterr().err == "physis interrupted: interrupted\n"


def test_help_lists_every_verb_without_importing_any(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--help"]) == 0
    told = capsys.readouterr().out
    assert "good         a verb for a test" in told
    assert "refusing     refuses" in told
    assert "needs what is not there" in told
    assert "(not in this installation)" in told
    assert "verbs_of_test.good" not in sys.modules
    assert program.main([]) == 2


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--version"]) == 0
    assert capsys.readouterr().out == f"physis {program.VERSION}\n"


def test_the_version_is_that_of_the_package() -> None:
    root = Path(__file__).resolve().parents[4]
    assert f"<version>{program.VERSION}</version>" in (root / "package.xml").read_text()
    assert f'version="{program.VERSION}"' in (root / "setup.py").read_text()


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    root = Path(__file__).resolve().parents[4]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "physis_ros.cli.main", "--help"],
        cwd=root,
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(write)
    assert "Traceback" not in done.stderr
