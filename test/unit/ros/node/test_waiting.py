"""Nothing is said of a short wait; a long one is named, seldom, and its end too."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from physis_ros.node.waiting import WaitNotice


def test_a_wait_is_named_after_a_while_then_seldom_and_so_is_its_end() -> None:
    notice = WaitNotice(after_s=4.0, again_s=30.0)
    said = {s: notice.look("camera/front", float(s)) for s in range(36)}
    assert {s: line for s, line in said.items() if line} == {
        4: "waits for 4 s: camera/front",
        34: "waits for 34 s: camera/front",
    }
    assert notice.look("", 36.0) == "goes on after 36 s"
    assert notice.look("", 37.0) == ""


def test_a_short_wait_is_not_worth_a_line() -> None:
    notice = WaitNotice(after_s=4.0)
    assert [notice.look("x" if s % 3 else "", float(s)) for s in range(30)] == [""] * 30


@given(st.lists(st.tuples(st.booleans(), st.floats(0.01, 5.0)), max_size=200))
def test_lines_never_come_more_often_than_they_may(steps: list[tuple[bool, float]]) -> None:
    notice = WaitNotice(after_s=4.0, again_s=30.0)
    now_s, spoke_s = 0.0, -1e9
    for waits, step_s in steps:
        now_s += step_s
        line = notice.look("x" if waits else "", now_s)
        if line.startswith("waits"):
            assert now_s - spoke_s >= 4.0
            spoke_s = now_s
