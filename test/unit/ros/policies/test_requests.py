from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from physis_ros.policies.requests import Dropped, Request, RequestConfig, Requests, retry_s


def config(**changes: float) -> RequestConfig:
    values = {
        "period_s": 0.1,
        "max_age_s": 0.5,
        "timeout_s": 2.0,
        "first_timeout_s": 60.0,
        "expected_response_s": 0.05,
        "margin_s": 0.01,
        "max_action_age_s": 2.0,
    }
    return RequestConfig(**{**values, **changes})


def requests(*places: int, **changes: float) -> Requests[str]:
    made: Requests[str] = Requests(config(**changes))
    for connection, in_flight in enumerate(places):
        made.connect(connection, in_flight)
    return made


def sent(made: Requests[str], now_s: float) -> Request[str]:
    found = made.poll(now_s)
    assert found is not None
    return found


def test_the_newest_observation_is_sent_once_a_period() -> None:
    made = requests(2)
    made.offer("a", 0.0)
    made.offer("b", 0.01)
    first = sent(made, 0.02)
    assert (first.observation, first.chunk_id, first.entry_s) == ("b", 0, 0.01)
    made.offer("c", 0.05)
    assert made.poll(0.06) is None
    assert made.next_s() == pytest.approx(0.12)
    second = sent(made, 0.12)
    assert (second.observation, second.chunk_id) == ("c", 1)


def test_a_server_that_takes_one_at_a_time_leaves_gaps_and_gets_the_newest() -> None:
    made = requests(1)
    made.offer("a", 0.0)
    sent(made, 0.0)
    for number in range(1, 4):
        made.offer(f"{number}", 0.1 * number)
        assert made.poll(0.1 * number) is None
    answered = made.answer(0, None, 0.35)
    assert isinstance(answered, Request) and answered.observation == "a"
    second = sent(made, 0.35)
    assert (second.observation, second.chunk_id, made.dropped) == ("3", 3, 2)


def test_a_delayed_reply_is_never_taken_for_the_newest() -> None:
    made = requests(1, 1)
    made.offer("a", 0.0)
    old = sent(made, 0.0)
    made.offer("b", 0.1)
    new = sent(made, 0.1)
    assert {old.connection, new.connection} == {0, 1}
    answered = made.answer(new.connection, None, 0.2)
    assert isinstance(answered, Request) and answered.observation == "b"
    late = made.answer(old.connection, None, 0.3)
    assert isinstance(late, Dropped) and "overtaken" in late.reason
    assert made.stale == 1


def test_a_reply_that_names_its_request_may_come_out_of_order() -> None:
    made = requests(2)
    made.offer("a", 0.0)
    old = sent(made, 0.0)
    made.offer("b", 0.1)
    new = sent(made, 0.1)
    answered = made.answer(0, new.request_id, 0.2)
    assert isinstance(answered, Request) and answered.observation == "b"
    assert isinstance(made.answer(0, old.request_id, 0.3), Dropped)
    assert isinstance(made.answer(0, 99, 0.3), Dropped)
    assert made.in_flight == 0


def test_a_reply_from_before_a_restart_is_dropped_and_ids_begin_anew() -> None:
    made = requests(1)
    made.offer("a", 0.0)
    sent(made, 0.0)
    made.restart()
    assert made.poll(0.2) is None, "no observation of the new epoch"
    assert isinstance(made.answer(0, None, 0.3), Dropped)
    made.offer("b", 0.3)
    assert sent(made, 0.3).chunk_id == 0


def test_an_old_observation_starts_no_request() -> None:
    made = requests(1)
    made.offer("a", 0.0)
    sent(made, 0.0)
    made.answer(0, None, 0.05)
    assert made.poll(0.9) is None
    made.offer("b", 0.95)
    assert sent(made, 1.0).observation == "b"


def test_the_first_reply_of_a_connection_may_take_long_and_no_later_one() -> None:
    made = requests(1)
    made.offer("a", 0.0)
    sent(made, 0.0)
    assert made.overdue(59.0) == []
    assert made.next_s() == 60.0
    made.answer(0, None, 59.0)
    made.offer("b", 59.0)
    sent(made, 59.1)
    assert made.overdue(61.0) == []
    assert made.overdue(61.2) == [0]
    assert made.lose(0)
    assert (made.lost_requests, made.in_flight, made.connected) == (1, 0, 0)
    made.connect(0, 1)
    made.offer("c", 62.0)
    sent(made, 62.0)
    assert made.overdue(100.0) == [], "cold again"


def test_a_refused_request_frees_its_place() -> None:
    made = requests(1)
    made.offer("a", 0.0)
    sent(made, 0.0)
    made.refuse(0)
    made.offer("b", 0.1)
    assert sent(made, 0.1).observation == "b"
    assert made.refused == 1


def test_only_the_last_connection_takes_the_stream_with_it() -> None:
    made = requests(1, 1)
    assert not made.lose(0)
    assert not made.lose(0)
    assert made.lose(1)


def test_a_late_reply_is_a_miss() -> None:
    made = requests(1)
    made.offer("a", 0.0)
    request = sent(made, 0.0)
    assert request.deadline_s == pytest.approx(0.05)
    made.answer(0, None, 0.2)
    assert made.misses == 1


def test_a_retry_waits_longer_each_time_up_to_a_limit() -> None:
    assert [retry_s(n) for n in (1, 2, 3)] == [0.25, 0.5, 1.0]
    assert retry_s(1000) == 5.0


@given(
    events=st.lists(
        st.tuples(
            st.sampled_from(["offer", "poll", "answer", "named", "lose", "restart"]),
            st.integers(0, 2),
        ),
        max_size=60,
    )
)
@settings(max_examples=200, deadline=None)
def test_answers_only_ever_get_newer_and_places_are_never_exceeded(
    events: list[tuple[str, int]],
) -> None:
    made = requests(1, 2, 3)
    limit = {0: 1, 1: 2, 2: 3}
    under_way: dict[int, list[Request[str]]] = {0: [], 1: [], 2: []}
    newest, now_s = -math.inf, 0.0
    for number, (kind, connection) in enumerate(events):
        now_s += 0.07
        if kind == "offer":
            made.offer(f"{number}", now_s)
        elif kind == "poll":
            while (request := made.poll(now_s)) is not None:
                under_way[request.connection].append(request)
        elif kind == "restart":
            made.restart()
            newest = -math.inf
        elif kind == "lose":
            made.lose(connection)
            under_way[connection].clear()
            made.connect(connection, limit[connection])
        elif under_way[connection]:
            waiting = under_way[connection]
            expected = waiting.pop(-1 if kind == "named" else 0)
            named = expected.request_id if kind == "named" else None
            found = made.answer(connection, named, now_s)
            if isinstance(found, Request):
                assert found == expected
                assert found.entry_s >= newest
                newest = found.entry_s
        for place, waiting in under_way.items():
            assert len(waiting) <= limit[place]
        assert made.in_flight == sum(map(len, under_way.values()))
