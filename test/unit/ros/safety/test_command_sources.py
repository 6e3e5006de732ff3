import pytest

from physis_core.types import UserError
from physis_ros.safety.command_sources import CommandSources, Source


def sources():
    return CommandSources(
        {
            "teleop": Source(priority=10, timeout_s=0.5),
            "model": Source(priority=0, timeout_s=0.2),
        }
    )


def test_a_higher_priority_holds_until_it_falls_silent():
    s = sources()
    assert s.active(0.0) is None
    s.heard("model", 0.0)
    assert s.active(0.1) == "model"
    assert s.preempted_by("teleop", 0.1) == ""
    s.heard("teleop", 0.1)
    assert s.preempted_by("model", 0.3) == "teleop"
    assert s.active(0.3) == "teleop"
    assert s.preempted_by("model", 0.7) == ""
    assert s.active(0.7) is None


def test_silencing_all_forgets_who_spoke():
    s = sources()
    s.heard("teleop", 0.0)
    s.forget_all()
    assert s.preempted_by("model", 0.1) == ""


def test_two_sources_of_one_priority_are_refused():
    with pytest.raises(UserError, match="own priority"):
        CommandSources({"a": Source(priority=1, timeout_s=1), "b": Source(priority=1, timeout_s=1)})
