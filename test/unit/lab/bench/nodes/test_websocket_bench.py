import msgspec
import numpy as np
import pytest

from physis_lab.bench.nodes.websocket_bench import packed, unpacked


def test_arrays_take_the_wire_of_msgpack_numpy_and_come_back() -> None:
    image = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    sent = {"observation/front": image, "nested": {"q": np.array([0.5, -0.5])}, "prompt": "hold"}
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


def test_what_has_no_place_on_the_wire_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="object"):
        packed({"x": object()})
