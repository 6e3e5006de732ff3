import os
import socket
import threading
from multiprocessing import Pipe
from multiprocessing.connection import Client, Connection, Listener

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from physis_core.cluster.messages import PART_BYTES, Channel, Message, Wake, decode, encode

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


@pytest.mark.parametrize("size", [0, 1, PART_BYTES - 200, PART_BYTES, PART_BYTES + 1, 1_000_003])
def test_a_large_message_comes_back_whole(size):
    here, there = (Channel(end) for end in Pipe())
    arrays = {"a": np.arange(size, dtype=np.uint8), "b": np.arange(3.0)}
    sending = threading.Thread(target=here.send_large, args=(Message("saved", {"n": 1}, arrays),))
    sending.start()
    back = there.receive()
    sending.join()
    assert (back.kind, back.fields) == ("saved", {"n": 1})
    for name, array in arrays.items():
        np.testing.assert_array_equal(back.arrays[name], array)


def test_small_messages_pass_between_the_parts_of_large_ones():
    """Two threads with large ones, one with small ones; nothing is mixed up."""
    here, there = (Channel(end) for end in Pipe())

    def large(number):
        for at in range(3):
            array = np.full(5 * PART_BYTES + number, number, np.uint8)
            here.send_large(Message("large", {"at": at}, {"x": array}))

    def small():
        for at in range(50):
            here.send(Message("small", {"at": at}))

    threads = [threading.Thread(target=large, args=(n,)) for n in (1, 2)]
    threads.append(threading.Thread(target=small))
    for thread in threads:
        thread.start()
    came = [there.receive() for _ in range(56)]
    for thread in threads:
        thread.join()
    assert [m.fields["at"] for m in came if m.kind == "small"] == list(range(50))
    for message in came:
        if message.kind == "large":
            x = message.arrays["x"]
            assert x.size == 5 * PART_BYTES + int(x[0])
            assert (x == x[0]).all()


def test_a_channel_whose_other_end_is_gone_says_so():
    here, there = (Channel(end) for end in Pipe())
    there.close()
    message = Message("x", {}, {"x": np.zeros(PART_BYTES)})
    assert not here.send(message)
    assert not here.send_large(message)
    assert here.receive() is None


def test_a_channel_over_tcp_keeps_no_small_message_back() -> None:
    with Listener(("127.0.0.1", 0), authkey=b"key") as listener:
        accepted: list[Connection] = []
        thread = threading.Thread(target=lambda: accepted.append(listener.accept()))
        thread.start()
        near = Client(listener.address, authkey=b"key")
        thread.join()
        for connection in (near, accepted[0]):
            channel = Channel(connection)
            with socket.socket(fileno=os.dup(connection.fileno())) as end:
                assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
            channel.close()
