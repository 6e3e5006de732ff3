"""What results look like as JSON."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from physis_core.observe.result_file import result_text, write_result


def strict(text: str) -> Any:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_numbers_that_are_not_defined_become_null_wherever_they_stand(tmp_path: Path) -> None:
    result = {
        "p99": math.nan,
        "bound": {"s": math.inf, "list": [1.0, -math.inf, np.float32("nan")]},
        "array": np.array([[1.0, np.nan]]),
        "scalar": np.float64("inf"),
        "count": np.int64(3),
        "path": Path("a/b"),
        4: (True, None),
        np.int64(5): "x",
    }
    write_result(tmp_path / "r.json", result)
    assert strict((tmp_path / "r.json").read_text()) == {
        "p99": None,
        "bound": {"s": None, "list": [1.0, None, None]},
        "array": [[1.0, None]],
        "scalar": None,
        "count": 3,
        "path": "a/b",
        "4": [True, None],
        "5": "x",
    }
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]


def test_what_json_does_not_know_is_said_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="object"):
        write_result(tmp_path / "r.json", {"a": object()})
    assert not list(tmp_path.iterdir())


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_every_result_is_json(value: Any) -> None:
    strict(result_text({"value": value}))
