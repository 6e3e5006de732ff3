"""The one loader of YAML and JSON: what it refuses, and in which words."""

from __future__ import annotations

from pathlib import Path

import pytest

from physis_core.files import nearest, parse_yaml, read_file
from physis_core.types import UserError


def test_yaml_and_json_are_read_as_plain_data(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("rate: 1e9\nsmall: -2.5E-3\nword: 12e\nsize: {1: 2}\n")
    assert read_file(tmp_path / "a.yaml") == {
        "rate": 1e9,
        "small": -2.5e-3,
        "word": "12e",
        "size": {1: 2},
    }
    (tmp_path / "a.json").write_text('{"a": [1]}')
    assert read_file(tmp_path / "a.json") == {"a": [1]}


def test_merge_keys_may_repeat() -> None:
    text = "a: &a {x: 1}\nb: &b {y: 2}\nc:\n  <<: *a\n  <<: *b\n  x: 3\n"
    assert parse_yaml(text, "t")["c"] == {"x": 3, "y": 2}


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.yaml", "a: 1\nb: {c: 1, c: 2}\n", "line 2: key 'c' appears twice"),
        ("a.yaml", "a: 1\nb: [1, 2\nc: 3\n", "line 3: "),
        ("a.yaml", "a: !!python/object/apply:os.getcwd []", "line 1: "),
        ("a.yaml", "\x00", "is not YAML"),
        ("a.yaml", "a: 2026-13-45", "is not YAML: month must be in"),
        ("a.yaml", "[" * 5000, "is nested too deeply"),
        ("a.json", '{"a": 1,\n', "line 2: "),
    ],
)
def test_what_cannot_be_read_is_one_line_with_file_and_line(
    name: str, text: str, says: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(UserError) as error:
        read_file(path, "stack")
    assert str(error.value).startswith(f"stack: {str(path)!r}: {says}")
    assert "\n" not in str(error.value)


def test_files_that_are_not_there_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        read_file(tmp_path / "none.yaml")
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="is not UTF-8 text"):
        read_file(tmp_path / "b.yaml")


def test_the_nearest_name_or_all() -> None:
    assert nearest("devces", ["devices", "pool"]) == "; did you mean 'devices'?"
    assert nearest("zzz", ["devices", "pool"]) == "; known: devices, pool"
    assert nearest("zzz", []) == ""
