"""What the last command adds to a verdict, and when silence takes its place."""

from physis_ros.safety.last_command import LastCommand
from physis_ros.safety.types import FINE, Verdict

SILENT_S = 0.5


def reasons(last: LastCommand, now_s: float) -> list[str]:
    return [finding.reason for finding in last.findings(now_s)]


def test_before_the_first_command_it_holds():
    last = LastCommand(SILENT_S)
    assert last.age_s(1.0) is None and last.source == ""
    assert [finding.verdict for finding in last.findings(1.0)] == [Verdict.HOLD]
    assert reasons(last, 1.0) == ["no command yet"]


def test_an_accepted_command_is_fine_until_it_is_too_old():
    last = LastCommand(SILENT_S)
    assert last.accepted("model", 1.0, limited="") is FINE
    assert last.findings(1.5) == (FINE,)
    assert reasons(last, 1.6) == ["", "model: no command for 0.6 s, limit 0.5 s"]
    assert last.age_s(1.25) == 0.25 and last.source == "model"


def test_a_slowed_command_is_a_limit():
    last = LastCommand(SILENT_S)
    finding = last.accepted("model", 1.0, limited="acceleration: elbow")
    assert finding.verdict is Verdict.LIMIT
    assert finding.reason == "model: slowed down: acceleration: elbow"


def test_a_rejection_is_named_and_later_its_silence():
    last = LastCommand(SILENT_S)
    last.accepted("model", 1.0, limited="")
    last.rejected("teleop", 1.2, reason="jump: elbow")
    assert reasons(last, 1.4) == ["teleop: rejected: jump: elbow"]
    named, silence = reasons(last, 1.8)
    assert named == (
        "teleop: no command for 0.6 s, limit 0.5 s; last: teleop: rejected: jump: elbow"
    )
    assert silence == "model: no command for 0.8 s, limit 0.5 s"
    # A rejection does not change whose motion is under way.
    assert last.source == "model"


def test_waiting_forgets_a_rejection():
    last = LastCommand(SILENT_S)
    last.rejected("model", 1.0, reason="age")
    last.wait("no command since arming")
    assert reasons(last, 9.0) == ["no command since arming"]
