"""Errors and table of the comparison; the runs themselves are for a quiet machine."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from rich.console import Console

from physis_lab.bench.engine.engine_profile import Parts
from physis_lab.bench.plan import fidelity
from physis_lab.bench.plan.fidelity_errors import CaseTimes, Compared, engine_spread


def outcome(interval_s: float, response_s: float, missed: float) -> CaseTimes:
    parts = Parts(compute_s=0.7 * response_s, queue_s=0.2 * response_s, link_s=0.1 * response_s)
    return CaseTimes(interval_s=interval_s, response_s=response_s, missed=missed, parts=parts)


def test_the_worst_case_is_the_figure_and_every_case_is_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def compare(model: object, case: fidelity.Case, chunks: int) -> Compared:
        off = 1.04 if case.partition == "block" else 1.01
        return Compared(
            real=outcome(0.1, 0.2, 0.02),
            simulated=outcome(0.1 * off, 0.2 / off, 0.03),
            as_profiled=outcome(0.12, 0.2, 0.02),
            slowness=0.9 if case.load is None else 1.05,
        )

    monkeypatch.setattr(fidelity, "compare", compare)
    console = Console(record=True, width=140)
    found = fidelity.run(SimpleNamespace(chunks=40, repeat=2, tokens=64), console)  # type: ignore[arg-type]
    figures = found["figures"]
    assert figures["fidelity.interval_error"]["value"] == pytest.approx(0.04)
    assert figures["fidelity.interval_error"]["met"]
    assert figures["fidelity.response_error"]["value"] == pytest.approx(1 - 1 / 1.04)
    assert figures["fidelity.miss_difference_pp"]["value"] == pytest.approx(1.0)
    assert figures["fidelity.engine_response_spread"]["value"] == 0.0
    assert figures["fidelity.interval_error_as_profiled"]["value"] == pytest.approx(0.2)
    assert figures["fidelity.machine_drift"]["value"] == pytest.approx(0.1)
    said = console.export_text()
    for case in fidelity.CASES:
        assert case.name in said
        assert len(found["cases"][case.name]["engine"]) == 2
    assert "compute" in said


def test_the_engine_s_own_spread_is_that_of_its_worst_case() -> None:
    steady = [(outcome(0.1, 0.2, 0.0), outcome(0.1, 0.2, 0.0))] * 2
    # The interval follows the machine's speed, and the response with it: that is no spread.
    slower = [*steady, (outcome(0.2, 0.4, 0.0), outcome(0.2, 0.4, 0.0))]
    uneasy = [*steady, (outcome(0.1, 0.22, 0.0), outcome(0.1, 0.2, 0.0))]
    assert engine_spread({"a": slower}).value == pytest.approx(0.0)
    assert engine_spread({"a": slower, "b": uneasy}).value == pytest.approx(0.05)
