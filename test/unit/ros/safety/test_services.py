"""The services' answers, with the node and the filter's lock replaced."""

from types import SimpleNamespace

import pytest
from std_srvs.srv import SetBool, Trigger

from physis_ros.safety.arming import Answer
from physis_ros.safety.services import SafetyServices


class Node:
    """Keeps the callbacks of the services that were made on it."""

    def __init__(self):
        self.active = True
        self.params = SimpleNamespace(stop_answer_s=1.0)
        self.now_s = 10.0
        self.callbacks = {}

    def steady_s(self):
        return self.now_s

    def create_service(self, _type, name, callback):
        self.callbacks[name] = callback
        return name

    def destroy_service(self, name):
        del self.callbacks[name]


class Guard:
    moving = "elbow moved by 0.1"
    arming = Answer(done=True, reason="armed")

    def __init__(self):
        self.called = []

    def stopping(self):
        return self.moving

    def estop(self, reason):
        self.called.append(reason)

    def disarm(self):
        self.called.append("disarm")

    def arm(self):
        self.called.append("arm")
        return self.arming


class Served:
    def __init__(self, unchecked=""):
        self.node, self.guard = Node(), Guard()
        self.services = SafetyServices(
            self.node,
            self.guard,
            look_around=lambda: self.guard.called.append("look"),
            not_checked=lambda: unchecked,
        )

    def estop(self):
        """The answer that is under way, begun."""
        response = self.node.callbacks["~/estop"](Trigger.Request(), Trigger.Response())
        response.send(None)
        return response

    def enable(self, on):
        return self.node.callbacks["~/enable"](SetBool.Request(data=on), SetBool.Response())


def answer(under_way):
    with pytest.raises(StopIteration) as done:
        under_way.send(None)
    return done.value.value


def test_estop_answers_when_the_robot_rests():
    served = Served()
    under_way = served.estop()
    assert served.guard.called == ["~/estop was called"]
    served.services.answer_stops()
    served.guard.moving, served.node.now_s = "", 10.25
    served.services.answer_stops()
    response = answer(under_way)
    assert response.success
    assert response.message == "STOP is latched; at rest after 0.25 s; ~/reset, then ~/enable"


def test_estop_says_after_its_time_that_the_robot_moves():
    served = Served()
    under_way = served.estop()
    served.node.now_s = 11.0
    served.services.answer_stops()
    response = answer(under_way)
    assert not response.success
    assert response.message == ("STOP is latched; NOT AT REST after 1.0 s: elbow moved by 0.1")


def test_deactivation_answers_at_once():
    served = Served()
    under_way = served.estop()
    served.services.deactivated()
    response = answer(under_way)
    assert not response.success and "safety_node was deactivated" in response.message


def test_enable_looks_first_and_names_what_it_could_not_check():
    served = Served(unchecked="not checked: controller state")
    response = served.enable(True)
    assert served.guard.called == ["look", "arm"]
    assert response.success and response.message == "armed; not checked: controller state"
    served.guard.arming = Answer(done=False, reason="joint_states: never received")
    response = served.enable(True)
    assert (response.success, response.message) == (False, "joint_states: never received")


def test_disabling_brakes():
    served = Served()
    response = served.enable(False)
    assert served.guard.called == ["disarm"]
    assert (response.success, response.message) == (True, "disarmed; braking")


def test_an_inactive_node_refuses_and_does_nothing():
    served = Served()
    served.node.active = False
    response = served.enable(True)
    assert (response.success, response.message) == (False, "safety_node is not active")
    assert served.guard.called == []


def test_closing_destroys_the_services():
    served = Served()
    assert set(served.node.callbacks) == {"~/estop", "~/reset", "~/enable", "~/hand_back"}
    served.services.close()
    assert served.node.callbacks == {}
