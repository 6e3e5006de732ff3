from __future__ import annotations

import msgspec
import numpy as np
import pytest

from physis_core.types import UserError
from physis_ros.policies.packing import packed, unpacked


def test_arrays_take_the_wire_of_msgpack_numpy_and_come_back() -> None:
    image = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    sent = {
        "observation/front": image,
        "nested": {"q": np.array([0.5, -0.5])},
        "prompt": "hold",
        "step": np.float32(0.25),
    }
    raw = msgspec.msgpack.decode(packed(sent))
    assert raw["observation/front"] == {
        b"__ndarray__": True,
        b"data": image.tobytes(),
        b"dtype": "|u1",
        b"shape": [2, 4, 3],
    }
    back = unpacked(packed(sent))
    assert np.array_equal(back["observation/front"], image)
    assert np.array_equal(back["nested"]["q"], [0.5, -0.5])
    assert back["prompt"] == "hold"
    assert back["step"] == np.float32(0.25)


def test_vllms_older_markers_are_read() -> None:
    rows = np.arange(6, dtype="<f4").reshape(2, 3)
    marked = {b"nd": True, b"type": "<f4", b"kind": b"", b"shape": [2, 3], b"data": rows.tobytes()}
    assert np.array_equal(unpacked(msgspec.msgpack.encode({"actions": marked}))["actions"], rows)


@pytest.mark.parametrize("value", [object(), np.array([object()]), np.array([1j])])
def test_what_has_no_place_on_the_wire_is_refused(value: object) -> None:
    with pytest.raises(NotImplementedError, match="no place"):
        packed({"x": value})


@pytest.mark.parametrize(
    "data",
    [
        b"\xc1",
        msgspec.msgpack.encode({b"__ndarray__": True, b"data": b"123", b"dtype": "<f4"}),
        msgspec.msgpack.encode({b"__ndarray__": True, b"data": b"12345678", b"dtype": "|O"}),
        msgspec.msgpack.encode({b"__ndarray__": True, b"data": b"12", b"dtype": "no"}),
        msgspec.msgpack.encode(
            {b"__ndarray__": True, b"data": b"1234", b"dtype": "<f4", b"shape": [2]}
        ),
    ],
)
def test_a_message_that_is_not_right_is_one_line(data: bytes) -> None:
    with pytest.raises(UserError) as error:
        unpacked(data)
    assert "\n" not in str(error.value)


def test_deep_nesting_is_refused() -> None:
    value: object = 1
    for _ in range(40):
        value = {"x": value}
    with pytest.raises(UserError, match="nested"):
        unpacked(msgspec.msgpack.encode(value))
