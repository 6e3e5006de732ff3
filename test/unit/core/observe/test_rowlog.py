from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from physis_core.observe.rowlog import RowLog, read_rows
from physis_core.types import UserError

COLUMNS = {"t": "s", "age": "ms"}


@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(st.tuples(st.floats(width=64), st.floats(width=64)), max_size=20),
    cut=st.integers(0, 40),
)
def test_what_was_flushed_is_read_back_whatever_was_cut_off(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[float, float]], cut: int
) -> None:
    path = tmp_path_factory.mktemp("log") / "x.rows"
    log = RowLog(path, COLUMNS, meta={"who": "test"})
    for row in rows:
        log.append(*row)
    log.close()
    cut = min(cut, 16 * len(rows))
    if cut:
        path.write_bytes(path.read_bytes()[:-cut])
    table = read_rows(path)
    expected = np.array(rows[: len(rows) - -(-cut // 16)], dtype=np.float64).reshape(-1, 2)
    np.testing.assert_array_equal(table["t"], expected[:, 0])
    np.testing.assert_array_equal(table["age"], expected[:, 1])
    assert table.meta == {"who": "test"}
    assert table.units == COLUMNS


def test_is_bounded_and_counts_what_it_did_not_take(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = RowLog(tmp_path / "x", COLUMNS, max_rows=2)
    for i in range(5):
        log.append(i, i)
    log.close()
    assert log.overflow == 3
    assert caplog.messages == [f"{tmp_path / 'x'}: full at 2 rows; later rows are dropped"]
    assert read_rows(tmp_path / "x").rows == 2


def test_names_the_file_that_is_no_log(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"hello\nworld")
    with pytest.raises(UserError, match="not a row log"):
        read_rows(tmp_path / "x")
    with pytest.raises(UserError, match="No such file"):
        read_rows(tmp_path / "y")
    with pytest.raises(UserError, match="record_path"):
        RowLog(tmp_path / "x" / "below-a-file", COLUMNS)
