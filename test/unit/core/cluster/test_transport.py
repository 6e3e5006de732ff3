"""Messages over a connection: whole, typed, and refused where they are neither."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from multiprocessing import Pipe
from multiprocessing.connection import Client, Connection, Listener
from typing import get_args

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from physis_core.cluster.messages import (
    ChunkExit,
    ChunkRetired,
    CloseStream,
    Observe,
    Release,
    SetCondition,
    ToEngine,
    ToWorker,
    WindowSaved,
)
from physis_core.cluster.threads import Wake
from physis_core.cluster.transport import (
    MOST_QUEUED_BYTES,
    PART_BYTES,
    BadMessageError,
    Channel,
    encode,
    engine_decoder,
    worker_decoder,
)

KINDS = st.sampled_from([np.float32, np.float64, np.uint8, np.int64, np.bool_, np.complex64])
one_array = hnp.arrays(KINDS, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
arrays = st.dictionaries(st.text(max_size=8), one_array, max_size=3)
numbers = st.integers(0, 2**63 - 1)
plain = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=8)
conditions = st.dictionaries(
    st.text(max_size=8),
    st.recursive(plain | one_array, lambda inner: st.lists(inner, max_size=3), max_leaves=5),
    max_size=4,
)


def saved(arrays, stage=1):
    return WindowSaved(stream=1, epoch=0, seq=0, chunk=0, stage=stage, saved=arrays)


def channels():
    ends = Pipe()
    return Channel(ends[0], worker_decoder()), Channel(ends[1], engine_decoder())


def assert_same_arrays(back, wanted):
    assert set(back) == set(wanted)
    for name, array in wanted.items():
        assert back[name].dtype == array.dtype
        assert back[name].shape == array.shape
        np.testing.assert_array_equal(back[name], array)


@given(outputs=arrays, latent=arrays, seq=numbers, touches=st.lists(numbers, max_size=4))
@settings(max_examples=60, deadline=None)
def test_a_message_comes_back_as_it_was(outputs, latent, seq, touches):
    sent = ChunkExit(
        stream=3, epoch=1, seq=seq, touches=touches, exit_s=1.5, outputs=outputs, latent=latent
    )
    back = engine_decoder().decode(encode(sent))
    assert isinstance(back, ChunkExit)
    assert (back.stream, back.epoch, back.seq, back.exit_s) == (3, 1, seq, 1.5)
    assert list(back.touches) == touches
    assert_same_arrays(back.outputs, outputs)
    assert_same_arrays(back.latent, latent)


@given(condition=conditions)
@settings(max_examples=60, deadline=None)
def test_a_condition_holds_arrays_wherever_they_stand(condition):
    sent = SetCondition(request=1, stream=1, version=2, condition=condition, oldest_in_use=0)
    back = worker_decoder().decode(encode(sent))
    assert isinstance(back, SetCondition)
    np.testing.assert_equal(back.condition, condition)


def test_every_kind_of_message_has_a_name_of_its_own():
    kinds = (*get_args(ToWorker), *get_args(ToEngine))
    assert len({kind.__struct_config__.tag for kind in kinds}) == len(kinds)


def some_frames():
    release = Release(
        stream=1,
        epoch=0,
        seq=4,
        chunk=-1,
        version=0,
        number=7,
        deadline_s=1.0,
        release_s=0.5,
        entry_s=0.25,
        sent_s=0.5,
        observation={"state": np.zeros(3, np.float32)},
    )
    return [encode(release), encode(ChunkRetired(stream=1, epoch=0, seq=4)), encode(saved({}))]


@given(frame=st.binary(max_size=200))
@example(frame=struct.pack("<I", 2**32 - 1))
@settings(max_examples=200, deadline=None)
def test_random_bytes_are_refused(frame):
    for decoder in (worker_decoder(), engine_decoder()):
        with pytest.raises(BadMessageError):
            decoder.decode(frame)


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_a_frame_that_was_cut_or_changed_is_refused_or_another_message(data):
    frame = data.draw(st.sampled_from(some_frames()))
    cut = frame[: data.draw(st.integers(0, len(frame) - 1))]
    at = data.draw(st.integers(0, len(frame) - 1))
    changed = frame[:at] + bytes([data.draw(st.integers(0, 255))]) + frame[at + 1 :]
    for decoder in (worker_decoder(), engine_decoder()):
        with pytest.raises(BadMessageError):
            decoder.decode(cut)
        with contextlib.suppress(BadMessageError):
            decoder.decode(changed)
        # It reads on as if nothing had been.
    assert isinstance(worker_decoder().decode(some_frames()[0]), Release)


@pytest.mark.parametrize(
    ("dtype", "shape", "words"),
    [
        ("<f8", (2**62, 2**62), "not whole"),
        ("<f8", (0, 2**62, 2**62), "."),
        ("<f8", (-1,), "below 0"),
        ("<f8", (4,), "not whole"),
        ("|O", (1,), "do not travel"),
        ("<U9", (1,), "do not travel"),
        ("(1000,1000)f8", (1,), "do not travel"),
        ("<f3", (1,), "."),
    ],
)
def test_an_array_that_is_not_what_it_says_is_refused(dtype, shape, words):
    text = msgspec.msgpack.encode(
        {
            "kind": "windowsaved",
            **dict.fromkeys(("stream", "epoch", "seq", "chunk", "stage"), 0),
            "saved": {
                "x": msgspec.msgpack.Ext(1, msgspec.msgpack.encode((dtype, shape))),
            },
        }
    )
    with pytest.raises(BadMessageError, match=words):
        engine_decoder().decode(struct.pack("<I", len(text)) + text + bytes(8))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"kind": "chunkretired", "stream": 1, "epoch": 0}, "seq"),
        ({"kind": "chunkretired", "stream": 1, "epoch": 0, "seq": "4"}, "seq"),
        ({"kind": "chunkretired", "stream": -1, "epoch": 0, "seq": 4}, "stream"),
        ({"kind": "chunkretired", "stream": 1, "epoch": 0, "seq": 4, "x": 1}, "x"),
        ({"kind": "release"}, "release"),
        ({"stream": 1}, "kind"),
        ([1, 2], "object"),
    ],
)
def test_what_does_not_fit_is_named(fields, words):
    text = msgspec.msgpack.encode(fields)
    with pytest.raises(BadMessageError, match=words):
        engine_decoder().decode(struct.pack("<I", len(text)) + text)


def test_a_frame_with_more_than_its_message_is_refused():
    with pytest.raises(BadMessageError, match="1 bytes too many"):
        engine_decoder().decode(encode(saved({"a": np.zeros(3)})) + b"x")


@pytest.mark.parametrize("value", [np.array(["a"]), np.array([None]), object(), {1, 2}])
def test_what_no_message_can_hold_is_an_error_of_its_sender(value):
    message = SetCondition(stream=1, version=1, condition={"x": value}, oldest_in_use=0, request=1)
    if isinstance(value, set):
        encode(message)  # as a list
        return
    with pytest.raises(TypeError, match="SetCondition: a value of type .* cannot be sent"):
        encode(message)


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
    here, there = channels()
    arrays = {"a": np.arange(size, dtype=np.uint8), "b": np.arange(3.0)}
    sending = threading.Thread(target=here.send_large, args=(saved(arrays),))
    sending.start()
    back = there.receive()
    sending.join()
    assert isinstance(back, WindowSaved)
    assert_same_arrays(back.saved, arrays)


def test_small_messages_pass_between_the_parts_of_large_ones():
    """Two threads with large ones, one with small ones; nothing is mixed up."""
    here, there = channels()

    def large(number):
        for at in range(3):
            array = np.full(5 * PART_BYTES + number, number, np.uint8)
            here.send_large(saved({"x": array}, stage=at))

    def small():
        for at in range(50):
            here.send(ChunkRetired(stream=1, epoch=0, seq=at))

    threads = [threading.Thread(target=large, args=(n,)) for n in (1, 2)]
    threads.append(threading.Thread(target=small))
    for thread in threads:
        thread.start()
    came = [there.receive() for _ in range(56)]
    for thread in threads:
        thread.join()
    assert [m.seq for m in came if isinstance(m, ChunkRetired)] == list(range(50))
    for message in came:
        if isinstance(message, WindowSaved):
            x = message.saved["x"]
            assert x.size == 5 * PART_BYTES + int(x[0])
            assert (x == x[0]).all()


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"w",
        b"x",
        b"p",
        b"w\xff\xff\xff\xff",
        b"p" + struct.pack("<Q", 2**63) + b"abc",
        b"p" + struct.pack("<Q", 1) + b"abc",
    ],
)
def test_a_channel_refuses_what_is_no_message_and_takes_the_next_one(frame):
    ends = Pipe()
    there = Channel(ends[1], engine_decoder())
    ends[0].send_bytes(frame)
    with pytest.raises(BadMessageError):
        there.receive()
    ends[0].send_bytes(b"w" + encode(ChunkRetired(stream=1, epoch=0, seq=9)))
    back = there.receive()
    assert isinstance(back, ChunkRetired)
    assert back.seq == 9


def test_a_frame_that_announces_more_than_any_message_has_ends_the_connection():
    ends = Pipe()
    there = Channel(ends[1], engine_decoder())
    os.write(ends[0].fileno(), struct.pack("!iQ", -1, 2**62))
    assert there.receive() is None


def test_a_channel_whose_other_end_is_gone_says_so():
    here, there = channels()
    there.close()
    message = saved({"x": np.zeros(PART_BYTES)})
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
            channel = Channel(connection, engine_decoder())
            with socket.socket(fileno=os.dup(connection.fileno())) as end:
                assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
            channel.close()


def observed(stream: int, number: int, size: int = 1 << 20) -> Observe:
    image = np.full(size, number % 256, np.uint8)
    return Observe(stream=stream, epoch=0, number=number, observation={"image": image})


def test_a_peer_that_does_not_read_never_holds_up_the_sender() -> None:
    """And of each stream it then gets the newest observation, all else in order."""
    ends = Pipe()
    here, there = Channel(ends[0], engine_decoder()), Channel(ends[1], worker_decoder())
    begun_s = time.monotonic()
    for number in range(1, 201):
        for stream in (1, 2):
            assert here.send(observed(stream, number))
        if number % 50 == 0:
            assert here.send(CloseStream(request=number, stream=number))
    # 400 MiB were given; a blocking send would wait for ever.
    assert time.monotonic() - begun_s < 10.0
    observations, closed = [], []
    while closed[-1:] != [200]:
        message = there.receive()
        if isinstance(message, Observe):
            observations.append((message.stream, message.number))
            assert (message.observation["image"] == message.number % 256).all()
        else:
            closed.append(message.request)
    assert closed == [50, 100, 150, 200]
    assert observations[-2:] == [(1, 200), (2, 200)]
    assert len(observations) < 10
    assert observations == sorted(observations, key=lambda seen: seen[1])
    here.close()
    assert there.receive() is None


def test_a_peer_for_which_too_much_waits_is_lost() -> None:
    ends = Pipe()
    here = Channel(ends[0], engine_decoder())
    large = saved({"x": np.zeros(MOST_QUEUED_BYTES // 4, np.uint8)})
    assert [here.send(large) for _ in range(6)] == [True] * 4 + [False] * 2
    assert here.receive() is None
    assert not here.send(CloseStream(request=1, stream=1))


def test_who_sends_in_parts_to_a_peer_that_does_not_read_is_freed_by_the_end() -> None:
    ends = Pipe()
    here = Channel(ends[0], engine_decoder())
    sent: list[bool] = []
    message = saved({"x": np.zeros(64 * PART_BYTES, np.uint8)})
    thread = threading.Thread(target=lambda: sent.append(here.send_large(message)))
    thread.start()
    begun_s = time.monotonic()
    here.close()
    thread.join(10.0)
    assert sent == [False]
    assert time.monotonic() - begun_s < 5.0


def test_what_is_queued_is_sent_before_the_end() -> None:
    ends = Pipe()
    here, there = Channel(ends[0], engine_decoder()), Channel(ends[1], engine_decoder())
    large = saved({"x": np.zeros(1 << 22, np.uint8)})
    assert here.send(large)
    assert here.send(ChunkRetired(stream=1, epoch=0, seq=1))
    closing = threading.Thread(target=here.close)
    closing.start()
    assert isinstance(there.receive(), WindowSaved)
    assert isinstance(there.receive(), ChunkRetired)
    assert there.receive() is None
    closing.join()
