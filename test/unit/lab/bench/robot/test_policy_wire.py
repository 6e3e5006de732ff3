import asyncio

from physis_lab.bench.robot.policy_wire import _both, _inputs
from physis_ros.robot.policy_contract import load_policy_contract


def test_both_ends_of_the_wire_are_timed() -> None:
    contract = load_policy_contract("droid")
    times_ms = asyncio.run(_both(contract, _inputs(contract), 1000, 3))
    assert all(time_ms > 0.0 for time_ms in times_ms)
