import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from physis_core.runtime.control import Message, Wake, decode, encode

arrays = st.dictionaries(
    st.text(max_size=8),
    hnp.arrays(
        st.sampled_from([np.float32, np.float64, np.uint8, np.int64, np.bool_]),
        hnp.array_shapes(min_dims=0, max_dims=3, max_side=4),
        elements=None,
    ),
    max_size=3,
)
fields = st.dictionaries(
    st.text(max_size=8), st.one_of(st.integers(), st.text(), st.booleans(), st.none()), max_size=4
)


@given(fields=fields, arrays=arrays)
@settings(max_examples=60, deadline=None)
def test_a_message_comes_back_as_it_was(fields, arrays):
    back = decode(encode(Message("exit", fields, arrays)))
    assert back.kind == "exit"
    assert back.fields == fields
    assert set(back.arrays) == set(arrays)
    for name, array in arrays.items():
        assert back.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(back.arrays[name], array)
        assert back.arrays[name].shape == array.shape


def test_a_frame_that_is_not_whole_is_an_error():
    frame = encode(Message("exit", {}, {"a": np.zeros(3)}))
    with pytest.raises(ValueError):
        decode(frame + b"x")


def test_rings_wake_once_and_are_never_lost():
    wake = Wake()
    wake.ring()
    wake.ring()
    assert wake.wait(0.0)
    assert not wake.wait(0.0)
    wake.ring()
    assert wake.wait(-1.0)
