from hypothesis import given, settings
from hypothesis import strategies as st

from physis_ros.timeline.chunk_order import ChunkOrder
from physis_ros.timeline.timed_chunk import ChunkRefusal


def why(refused):
    return None if refused is None else refused.why


def test_a_gap_is_counted_and_taken_back_when_the_chunk_comes_late():
    order = ChunkOrder()
    assert why(order.check(3, 10)) is None
    assert order.gaps == 0
    assert why(order.check(3, 14)) is None
    assert order.gaps == 3
    assert why(order.check(3, 12)) is ChunkRefusal.REORDERED
    assert order.gaps == 2
    assert why(order.check(3, 12)) is ChunkRefusal.REPEATED
    assert why(order.check(2, 99)) is ChunkRefusal.OLD_EPOCH
    assert why(order.check(4, 0)) is None
    assert order.epoch == 4


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20)), max_size=60))
def test_what_passes_only_ever_goes_up(sequence):
    order = ChunkOrder()
    passed = [pair for pair in sequence if order.check(*pair) is None]
    assert passed == sorted(set(passed))
