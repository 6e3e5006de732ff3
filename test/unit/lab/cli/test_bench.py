import argparse
from pathlib import Path

import pytest

from physis_core.types import UserError
from physis_lab.cli import bench as verb


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser()
    verb.add_arguments(made)
    made.add_argument("--json", type=Path)
    return made


def test_json_may_stand_before_and_behind_the_name() -> None:
    before = parser().parse_args(["--json", "a.json", "links"])
    behind = parser().parse_args(["links", "--json", "a.json"])
    assert before.json == behind.json == Path("a.json")
    assert parser().parse_args(["links"]).json is None


def test_a_benchmark_that_is_not_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verb, "BENCHMARKS", {"gone": ("physis_lab.bench.gone", "not there")})
    with pytest.raises(UserError, match="NAME: 'gone': is not in this installation"):
        parser().parse_args(["gone"])
