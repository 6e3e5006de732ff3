import pytest
from hypothesis import given
from hypothesis import strategies as st

from physis_core.cluster.host_clock import ClockWatch, Exchange, HostClock, clock_error_s

way = st.floats(1e-5, 0.05)


@given(
    offset=st.floats(-1e6, 1e6),
    ways=st.lists(st.tuples(way, way), min_size=1, max_size=10),
)
def test_the_error_found_is_right_within_half_the_quickest_round_trip(offset, ways):
    now, exchanges = 100.0, []
    for there, back in ways:
        exchanges.append(
            Exchange(asked_s=now, remote_s=now + there + offset, heard_s=now + there + back)
        )
        now += 1.0
    quickest = min(e.round_trip_s for e in exchanges)
    assert abs(clock_error_s(exchanges) - offset) <= quickest + 1e-9


@given(ways=st.lists(st.tuples(way, way), min_size=1, max_size=10))
def test_one_shared_clock_is_never_corrected(ways):
    exchanges = [
        Exchange(asked_s=1.0, remote_s=1.0 + there, heard_s=1.0 + there + back)
        for there, back in ways
    ]
    assert clock_error_s(exchanges) == 0.0


def test_a_watch_speaks_after_so_many_exchanges():
    watch = ClockWatch(every=3)
    late = Exchange(asked_s=0.0, remote_s=0.51, heard_s=0.02)
    assert [watch.add(late) for _ in range(3)] == [0.0, 0.0, pytest.approx(0.5)]


def test_a_shifted_clock():
    clock = HostClock()
    before = clock.now_s()
    clock.shift(100.0)
    assert clock.now_s() < before - 90.0
