from physis_ros.safety.types import FINE, Finding, StopLatch, Verdict, most_severe


def test_the_most_severe_wins_and_the_first_among_equals():
    found = [
        Finding(verdict=Verdict.LIMIT, reason="a"),
        Finding(verdict=Verdict.HOLD, reason="b"),
        Finding(verdict=Verdict.HOLD, reason="c"),
    ]
    assert most_severe(found).reason == "b"
    assert most_severe([]) is FINE
    assert Verdict.OK < Verdict.LIMIT < Verdict.HOLD < Verdict.STOP


def test_a_latch_opens_only_by_reset_without_cause_and_after_the_cooldown():
    latch = StopLatch(cooldown_s=1.0)
    assert latch.reset(0.0, present_cause="").reason == "nothing to reset"
    assert latch.trip("first", 10.0)
    assert not latch.trip("second", 10.5)
    assert latch.finding.reason == "first"
    assert "persists: hot" in latch.reset(20.0, present_cause="hot").reason
    assert "0.50 s of 1.00 s left" in latch.reset(11.0, present_cause="").reason
    assert latch.finding is not None
    answer = latch.reset(11.5, present_cause="")
    assert answer.done
    assert answer.reason == "reset after: first"
    assert latch.finding is None
