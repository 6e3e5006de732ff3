"""The endpoint, and the files that name its metrics."""

from __future__ import annotations

import importlib.util
import json
import re
import socket
import sys
import urllib.request
from pathlib import Path

import pytest

from physis_core.observe.histogram import Histogram
from physis_core.types import UserError
from physis_ros.node.metric_names import FAMILIES, Sample
from physis_ros.node.metrics import LOOPBACK, MetricsEndpoint

ROOT = Path(__file__).resolve().parents[4]
EXPOSED = {name for family in FAMILIES.values() for name in family.exposed}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def test_a_reader_gets_what_was_published_last() -> None:
    histogram = Histogram((0.1, 1.0))
    for age_s in (0.05, 0.5, 5.0):
        histogram.add(age_s)
    port = free_port()
    endpoint = MetricsEndpoint(port)
    try:
        endpoint.publish([Sample(family="physis_safety_trips", value=1)])
        labels = {"stream": "arm", "at": "servo"}
        endpoint.publish(
            [
                Sample(family="physis_safety_trips", value=2),
                Sample(family="physis_action_age_seconds", value=histogram.copy(), labels=labels),
            ]
        )
        request = urllib.request.Request(
            f"http://{LOOPBACK}:{port}/metrics", headers={"Accept": "application/openmetrics-text"}
        )
        with urllib.request.urlopen(request, timeout=10.0) as answer:
            text = answer.read().decode()
    finally:
        endpoint.close()
    assert "physis_safety_trips_total 2.0" in text
    series = 'physis_action_age_seconds_bucket{at="servo",le="%s",stream="arm"} %s'
    for upper, count in (("0.1", "1.0"), ("1", "2.0"), ("+Inf", "3.0")):
        plain = series % (upper, count)
        parts = set(re.findall(r'\w+="[^"]*"', plain))
        lines = [line for line in text.splitlines() if line.startswith(plain.split("{")[0])]
        assert any(
            parts == set(re.findall(r'\w+="[^"]*"', line)) and line.endswith(f"}} {count}")
            for line in lines
        ), lines
    assert "# UNIT physis_action_age_seconds seconds" in text
    assert text.rstrip().endswith("# EOF")
    MetricsEndpoint(port).close()  # the port is free again


def test_a_port_that_is_taken_is_named() -> None:
    with socket.socket() as taken:
        taken.bind((LOOPBACK, 0))
        taken.listen()
        port = int(taken.getsockname()[1])
        with pytest.raises(UserError, match=f"metrics_port: {port}"):
            MetricsEndpoint(port)


def test_a_missing_package_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(UserError, match="prometheus_client") as raised:
        MetricsEndpoint(9999)
    assert "\n" not in str(raised.value)


def test_names_hold_their_unit_and_no_interval_is_a_latency() -> None:
    for family in FAMILIES.values():
        assert family.name.endswith(family.unit)
        assert not ("interval" in family.name and "latency" in family.name)


@pytest.mark.parametrize("name", ["grafana_dashboard.json", "alerts.yaml"])
def test_queries_ask_for_what_is_exposed(name: str) -> None:
    text = (ROOT / "config" / "monitoring" / name).read_text()
    if name.endswith("json"):
        panels = json.loads(text)["panels"]
        text = "\n".join(target["expr"] for panel in panels for target in panel["targets"])
    asked = set(re.findall(r"\bphysis_\w+", text)) - {"physis_ros"}
    assert asked and asked <= EXPOSED


def test_the_page_is_generated() -> None:
    spec = importlib.util.spec_from_file_location("page", ROOT / "scripts" / "metrics_page.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text() == module.page()
