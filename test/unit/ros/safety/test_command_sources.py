import pytest
from hypothesis import given
from hypothesis import strategies as st

from physis_core.types import UserError
from physis_ros.safety.command_sources import CommandSources, Source


def sources():
    return CommandSources(
        {
            "teleop": Source(priority=10, timeout_s=0.5),
            "model": Source(priority=0, timeout_s=0.2),
        }
    )


def test_any_message_of_a_higher_priority_takes_control():
    s = sources()
    assert not s.heard("model", 0.0)
    assert s.holder == "model"
    assert not s.taken_over
    assert s.heard("teleop", 0.1)
    assert not s.heard("teleop", 0.2)
    assert s.preempted_by("model") == "teleop"
    assert s.preempted_by("teleop") == ""


def test_silence_never_gives_control_back():
    s = sources()
    s.heard("teleop", 0.0)
    s.heard("model", 3600.0)
    assert s.preempted_by("model") == "teleop"
    assert s.silent_s(0.4) == 0.0
    assert s.silent_s(3600.0) == 3600.0
    assert s.hand_back() == "teleop"
    assert s.hand_back() == ""
    assert s.preempted_by("model") == ""
    assert s.silent_s(7200.0) == 0.0


@given(st.lists(st.sampled_from(["model", "teleop", "hand_back"])))
def test_the_model_commands_only_where_no_teleoperator_spoke_since_the_hand_back(events):
    s, taken = sources(), False
    for number, event in enumerate(events):
        if event == "hand_back":
            s.hand_back()
            taken = False
        else:
            s.heard(event, float(number))
            taken = taken or event == "teleop"
        assert bool(s.preempted_by("model")) is taken


def test_two_sources_of_one_priority_are_refused():
    with pytest.raises(UserError, match="own priority"):
        CommandSources({"a": Source(priority=1, timeout_s=1), "b": Source(priority=1, timeout_s=1)})
