"""The one line that says why nothing is played."""

from __future__ import annotations

from physis_ros.timeline.stream_figures import StreamReason


def test_nothing_has_come() -> None:
    assert StreamReason(recent_s=0.5).line(7.0) == "no chunk yet"


def test_a_refusal_is_the_reason_until_the_next_chunk_is_overdue() -> None:
    why = StreamReason(recent_s=0.5)
    why.accepted(1.0)
    assert why.line(3.0) == "no chunk for 2.0 s"
    why.refused("chunk refused: it came before", 4.0)
    assert why.line(4.5) == "chunk refused: it came before"
    # A reason from long ago must not hide that nothing comes any more.
    assert why.line(9.0) == "no chunk for 5.0 s; last: chunk refused: it came before"
    why.accepted(10.0)
    assert why.line(10.0) == "no chunk for 0.0 s"


def test_what_was_emptied_is_no_chunk() -> None:
    why = StreamReason(recent_s=0.5)
    why.cleared("ROS time jumped", 2.0)
    assert why.line(2.1) == "ROS time jumped"
    assert why.line(3.0) == "no chunk yet; last: ROS time jumped"
