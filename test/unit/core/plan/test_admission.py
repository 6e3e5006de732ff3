from __future__ import annotations

import re

import pytest

from physis_core.deployment.profile import BlockCost, ModelProfile
from physis_core.deployment.slo import Slo
from physis_core.deployment.topology import Pool
from physis_core.plan.admission import Admission
from physis_core.plan.requests import AdmissionPolicy, Admitted, Place, StreamRequest
from physis_core.plan.slo_check import SloCheck
from physis_core.types import Refused, UserError


def model(name: str = "m", kv: float = 1.0, weight: float = 10.0) -> ModelProfile:
    row = {1: 0.010, 2: 0.012, 4: 0.016, 8: 0.030}
    cost = BlockCost(weight_bytes=weight, p50_s=row, p99_s={n: 1.05 * s for n, s in row.items()})
    return ModelProfile(
        name=name,
        source="measured",
        device="",
        steps=2,
        blocks=4,
        kv="noisy",
        window_chunks=2,
        sink_chunks=0,
        kv_bytes=kv,
        hidden_bytes=1.0,
        activation_bytes=0.0,
        shared_weight_bytes=0.0,
        block_costs=(cost,) * 4,
    )


def admission(devices: int = 2, memory: float = 60.0, **policy: object) -> Admission:
    pool = Pool(devices=devices, memory_bytes=memory, devices_per_host=8)
    return Admission(pool, {"m": model()}, AdmissionPolicy(**policy))  # type: ignore[arg-type]


def ask(name: str, period_s: float = 1.0, **slo: float) -> StreamRequest:
    return StreamRequest(
        stream_id=name,
        model="m",
        slo=Slo(count="latents", per_chunk=1, rate_hz=1 / period_s, **slo),
    )


def test_streams_enter_until_memory_is_full_and_the_refusal_says_so() -> None:
    door = admission()
    outcomes = [door.request(ask(f"s{i}")) for i in range(12)]
    admitted = [o for o in outcomes if isinstance(o, Admitted)]
    # Each device: 40 bytes of weights, and 8 for each stream. One stream takes both remainders.
    assert sorted(len(one.devices) for one in admitted) == [1, 1, 1, 1, 2]
    refused = outcomes[-1]
    assert isinstance(refused, Refused)
    assert refused.short_resource == "memory"
    assert refused.device.startswith("device")
    assert "3 devices" in refused.nearest


def test_time_is_a_resource_and_a_longer_period_is_offered() -> None:
    door = admission(devices=1, memory=1e9)
    count = 0
    while isinstance(outcome := door.request(ask(f"s{count}", period_s=0.15)), Admitted):
        count += 1
        assert count < 50
    assert count >= 1
    assert outcome.short_resource == "time"
    assert "ms" in outcome.nearest


def test_an_impossible_slo_is_refused_with_the_nearest_one() -> None:
    outcome = admission().request(ask("s", period_s=0.001))
    assert isinstance(outcome, Refused)
    assert outcome.short_resource == "time"
    assert "ms" in outcome.nearest


def test_an_impossible_response_is_refused() -> None:
    outcome = admission().request(ask("s", period_s=1.0, max_response_s=0.01))
    assert isinstance(outcome, Refused)
    assert "response" in outcome.reason


def test_a_model_too_large_for_any_device() -> None:
    outcome = admission(memory=5.0).request(ask("s"))
    assert isinstance(outcome, Refused)
    assert outcome.short_resource == "memory"


def test_nothing_moves_and_what_leaves_makes_room() -> None:
    door = admission()
    for i in range(5):
        door.request(ask(f"s{i}"))
    before = {name: one.devices for name, one in door.admitted.items()}
    assert isinstance(door.request(ask("late")), Refused)
    door.leave("s1")
    assert isinstance(door.request(ask("late")), Admitted)
    for name, one in door.admitted.items():
        if name != "late":
            assert one.devices == before[name]


def test_names_are_checked() -> None:
    door = admission()
    with pytest.raises(UserError, match="one of m"):
        door.request(StreamRequest(stream_id="x", model="other", slo=ask("x").slo))
    door.request(ask("x"))
    with pytest.raises(UserError, match="open already"):
        door.request(ask("x"))


@pytest.mark.parametrize("memory", [60.0, 1e9])
@pytest.mark.parametrize("period_s", [0.12, 0.15, 0.4])
def test_what_a_refusal_offers_is_admitted(memory: float, period_s: float) -> None:
    door = admission(memory=memory)
    count = 0
    while isinstance(outcome := door.request(ask(f"s{count}", period_s=period_s)), Admitted):
        count += 1
        assert count < 60
    offers = re.findall(r"([\d.]+) (ms|devices)", outcome.nearest)
    assert offers
    for number, unit in offers:
        if unit == "ms":
            longer = ask("late", period_s=float(number) / 1e3)
            assert isinstance(door.decide(longer, door.placement), Place)
            assert float(number) / 1e3 > period_s
        else:
            wider = door.placement.widened(int(number) - 2)
            assert isinstance(door.decide(ask("late", period_s=period_s), wider), Place)


@pytest.mark.parametrize("slo", [{"period_s": 0.001}, {"period_s": 1.0, "max_response_s": 0.01}])
def test_what_is_offered_for_an_impossible_slo_is_admitted(slo: dict[str, float]) -> None:
    door = admission()
    refused = door.request(ask("s", **slo))
    assert isinstance(refused, Refused)
    found = re.search(r"(period|response) ([\d.]+) ms", refused.nearest)
    assert found is not None
    field = {"period": "period_s", "response": "max_response_s"}[found[1]]
    offered = ask("s", **{**slo, field: float(found[2]) / 1e3})
    assert isinstance(door.request(offered), Admitted)


def test_where_sharing_fails_in_simulation_empty_devices_are_taken() -> None:
    door = admission(devices=3, memory=1e9)
    assert isinstance(door.request(ask("first")), Admitted)
    # Full devices come first; here nobody may share one.
    verify = Admission._verify

    def alone_only(self: Admission, newcomer: Admitted, pool: Pool) -> SloCheck | None:
        taken = {g for one in self.admitted.values() for g in one.devices}
        if taken & set(newcomer.devices):
            return SloCheck(kept=False, stream_id="first", reason="shares")
        return verify(self, newcomer, pool)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Admission, "_verify", alone_only)
        second = door.request(ask("second"))
        assert isinstance(second, Admitted)
        assert not set(second.devices) & set(door.admitted["first"].devices)
