"""Who is started anew when: decisions by numbers alone."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from physis_core.engine.respawn_plan import (
    EDGE_PAUSE_S,
    FIRST_PAUSE_S,
    START_S,
    STEADY_S,
    GiveUp,
    Kill,
    RelinkEdge,
    Respawn,
    RespawnPlan,
)

EDGES = {(0, 1): (0, 1), (1, 0): (1, 0), (2, 3): (1, 2)}


def plan(attempts=3):
    return RespawnPlan(range(3), EDGES, attempts)


def bring_back(one, worker, now_s):
    """Start it, and make its edges anew."""
    (respawn,) = one.due(now_s)
    assert isinstance(respawn, Respawn)
    assert one.worker_ready(worker, respawn.incarnation, now_s)
    relinks = one.due(now_s)
    for relink in relinks:
        for end in one.ends(relink.edge):
            one.edge_linked(relink.edge, relink.generation, end, now_s)
    return respawn, relinks


def test_a_lost_worker_is_started_at_once_and_its_edges_follow():
    one = plan()
    assert one.worker_lost(0, 0, 10.0)
    assert not one.worker_up(0)
    assert one.next_s() == 10.0
    respawn, relinks = bring_back(one, 0, 10.0)
    assert respawn == Respawn(worker=0, incarnation=1)
    assert relinks == [RelinkEdge(edge=(0, 1), generation=1), RelinkEdge(edge=(1, 0), generation=1)]
    assert one.worker_up(0)
    assert all(one.edge_whole(edge) for edge in EDGES)
    assert one.due(1e9) == []
    assert one.next_s() == math.inf


def test_an_edge_waits_for_both_ends():
    one = plan()
    one.worker_lost(0, 0, 0.0)
    one.worker_lost(1, 0, 0.0)
    first, second = one.due(0.0)
    assert one.worker_ready(0, first.incarnation, 1.0)
    assert one.due(1.0) == []
    assert one.worker_ready(1, second.incarnation, 2.0)
    assert {action.edge for action in one.due(2.0)} == set(EDGES)


def test_an_edge_is_whole_when_both_ends_have_its_newest_generation():
    one = plan()
    assert one.edge_lost((0, 1), 0, 0.0)
    assert one.due(0.0) == []
    (relink,) = one.due(EDGE_PAUSE_S)
    one.edge_linked((0, 1), relink.generation, 0, 2.0)
    assert not one.edge_whole((0, 1))
    one.edge_linked((0, 1), relink.generation - 1, 1, 2.0)
    assert not one.edge_whole((0, 1))
    one.edge_linked((0, 1), relink.generation, 1, 2.0)
    assert one.edge_whole((0, 1))


def test_old_news_is_no_news():
    one = plan()
    assert one.worker_lost(0, 0, 0.0)
    assert not one.worker_lost(0, 0, 0.0)
    # Its peer notices the edge later than the front noticed the worker.
    assert not one.edge_lost((0, 1), 0, 0.1)
    bring_back(one, 0, 0.2)
    assert not one.worker_lost(0, 0, 0.3)
    assert not one.edge_lost((0, 1), 0, 0.3)
    assert one.edge_lost((0, 1), 1, 0.4)


def test_the_sign_of_an_edge_before_the_news_of_the_worker_costs_no_extra_pause():
    one = plan()
    assert one.edge_lost((0, 1), 0, 0.0)
    assert one.worker_lost(0, 0, 0.1)
    bring_back(one, 0, 0.1)
    assert one.edge_whole((0, 1))


def test_pauses_grow_and_end_in_giving_up():
    one = plan(attempts=3)
    now_s, pauses = 0.0, []
    for incarnation in range(3):
        assert one.worker_lost(0, incarnation, now_s)
        pauses.append(one.next_s() - now_s)
        now_s = one.next_s()
        bring_back(one, 0, now_s)
    assert pauses == [0.0, FIRST_PAUSE_S, 2 * FIRST_PAUSE_S]
    one.worker_lost(0, 3, now_s)
    assert one.due(one.next_s()) == [GiveUp(worker=0)]
    assert one.given_up([0], [])
    assert not one.given_up([1], [(2, 3)])
    assert one.next_s() == math.inf


def test_who_stayed_up_is_forgiven():
    one = plan(attempts=1)
    now_s = 0.0
    for incarnation in range(10):
        one.worker_lost(0, incarnation, now_s)
        assert one.next_s() == now_s
        bring_back(one, 0, now_s)
        now_s += STEADY_S


def test_a_start_that_takes_too_long_is_ended_once():
    one = plan()
    one.worker_lost(0, 0, 0.0)
    one.due(0.0)
    assert one.due(START_S - 1.0) == []
    assert one.due(START_S) == [Kill(worker=0)]
    assert one.due(START_S + 1.0) == []
    assert one.worker_lost(0, 1, START_S + 2.0)


@settings(deadline=None)
@given(st.data())
def test_whatever_is_lost_all_comes_back_or_is_given_up(data):
    """News in any order, also of what is no more; then a while without losses."""
    one = plan(attempts=data.draw(st.integers(1, 4)))
    incarnation = dict.fromkeys(range(3), 0)
    generation = dict.fromkeys(EDGES, 0)
    asked = []
    now_s = 0.0

    def act():
        for action in one.due(now_s):
            if isinstance(action, Respawn):
                assert action.incarnation == incarnation[action.worker] + 1
                incarnation[action.worker] = action.incarnation
                asked.append(action)
            elif isinstance(action, RelinkEdge):
                assert action.generation == generation[action.edge] + 1
                assert all(one.worker_up(end) for end in one.ends(action.edge))
                generation[action.edge] = action.generation
                asked.append(action)

    def answer(action):
        if isinstance(action, Respawn):
            one.worker_ready(action.worker, action.incarnation, now_s)
        else:
            for end in one.ends(action.edge):
                one.edge_linked(action.edge, action.generation, end, now_s)

    for _ in range(data.draw(st.integers(0, 30))):
        kind = data.draw(st.sampled_from(["worker", "edge", "act", "answer", "pass"]))
        if kind == "worker":
            worker = data.draw(st.integers(0, 2))
            one.worker_lost(worker, data.draw(st.integers(0, incarnation[worker])), now_s)
        elif kind == "edge":
            edge = data.draw(st.sampled_from(sorted(EDGES)))
            one.edge_lost(edge, data.draw(st.integers(0, generation[edge])), now_s)
        elif kind == "act":
            act()
        elif kind == "answer" and asked:
            answer(asked.pop(data.draw(st.integers(0, len(asked) - 1))))
        else:
            now_s += data.draw(st.floats(0.0, 100.0))
    # An answer that never came: in the end its start is killed, or its link times out.
    for _ in range(60):
        act()
        while asked:
            answer(asked.pop())
        now_s = min(max(one.next_s(), now_s), now_s + START_S)
    for worker in range(3):
        assert one.worker_up(worker) or one.given_up([worker], [])
    for edge, ends in EDGES.items():
        assert one.edge_whole(edge) or one.given_up(ends, [edge])
