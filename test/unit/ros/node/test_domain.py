import socket

import pytest

from physis_core.types import UserError
from physis_ros.node.domain import FREE_DOMAINS, choose, domain_from, in_use


@pytest.mark.parametrize("text", ["-1", "233", "x", "1.5", "１"])
def test_refuses_what_is_no_domain(text: str) -> None:
    with pytest.raises(UserError, match="ROS_DOMAIN_ID: .*: must be an integer from 0 to 232"):
        domain_from({"ROS_DOMAIN_ID": text})


def test_no_wish_and_a_wish() -> None:
    assert domain_from({}) is None
    assert domain_from({"ROS_DOMAIN_ID": "7"}) == 7


def test_a_domain_that_a_participant_is_in_is_seen_and_refused() -> None:
    domain = choose({})
    assert domain in FREE_DOMAINS and not in_use(domain)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as participant:
        participant.bind(("127.0.0.1", 7400 + 250 * domain + 10 + 2))
        assert in_use(domain)
        with pytest.raises(UserError, match=f"ROS_DOMAIN_ID: {domain}: other ROS nodes"):
            choose({"ROS_DOMAIN_ID": str(domain)})
        assert choose({}) != domain
