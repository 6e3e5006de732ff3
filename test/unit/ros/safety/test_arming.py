from hypothesis import given
from hypothesis import strategies as st

from physis_ros.safety.arming import Arming


def test_it_starts_disarmed_and_arms_only_by_a_call_to_which_nothing_objects():
    arming = Arming(at_start=False)
    arming.update(())
    assert not arming.armed
    assert arming.refusal() == "disarmed: ~/enable arms"
    answer = arming.arm(("joint_states: lift: never received", "no subscriber"))
    assert not answer.done
    assert answer.reason == "not armed: joint_states: lift: never received; no subscriber"
    assert arming.arm(()).done
    assert arming.refusal() == ""


def test_a_simulated_arm_is_armed_once_when_nothing_stands_against_it():
    arming = Arming(at_start=True)
    arming.update(("joint_states: never received",))
    assert arming.refusal(("joint_states: never received",)) == (
        "disarmed: waits for: joint_states: never received"
    )
    arming.update(())
    assert arming.armed
    arming.disarm("a STOP came")
    arming.update(())
    assert arming.refusal() == "disarmed: a STOP came"
    arming.begin()
    arming.update(())
    assert arming.armed


@given(
    st.booleans(),
    st.lists(st.sampled_from(["update", "update against", "arm", "arm against", "disarm"])),
)
def test_after_a_disarm_only_a_call_arms(at_start, events):
    arming, disarmed = Arming(at_start=at_start), False
    for event in events:
        if event.startswith("update"):
            arming.update(("x",) if "against" in event else ())
        elif event.startswith("arm"):
            done = arming.arm(("x",) if "against" in event else ()).done
            disarmed = disarmed and not done
        else:
            arming.disarm("why")
            disarmed = True
        assert not (disarmed and arming.armed)
        assert bool(arming.refusal()) is not arming.armed
