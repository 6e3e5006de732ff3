from hypothesis import given, settings
from hypothesis import strategies as st

from physis_core.worker.links.envelope import (
    ENVELOPE_BYTES,
    MAX_TOUCHES,
    InFlight,
    pack_into,
    unpack_from,
)

u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
time_s = st.floats(allow_nan=False)


@given(
    chunk=st.builds(
        InFlight,
        stream=u32,
        epoch=u32,
        seq=u64,
        stage=st.just(0),
        block=st.just(-1),
        step=st.just(-1),
        deadline_s=time_s,
        ready_s=st.just(0.0),
        priority=st.integers(-(2**31), 2**31 - 1),
        chunk_id=st.integers(-(2**63), 2**63 - 1),
        seed=st.integers(0, 2**63 - 1),
        version=u32,
        release_s=time_s,
        entry_s=time_s,
        touches=st.lists(u64, max_size=MAX_TOUCHES).map(tuple),
        sent_s=time_s,
    ),
    stage=u32,
)
@settings(max_examples=100, deadline=None)
def test_an_envelope_comes_back_as_it_was(chunk, stage):
    buffer = bytearray(ENVELOPE_BYTES)
    pack_into(buffer, chunk, stage)
    back = unpack_from(buffer)
    assert back.stage == stage
    names = (
        "stream epoch seq deadline_s priority chunk_id seed version release_s entry_s touches"
        " sent_s"
    )
    for name in names.split():
        assert getattr(back, name) == getattr(chunk, name), name


def test_a_payload_behind_an_envelope_starts_aligned():
    assert ENVELOPE_BYTES % 64 == 0
