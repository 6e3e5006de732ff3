"""Interpreters that wait for their orders: used first, ended where nobody has orders for them."""

from __future__ import annotations

import threading

import pytest

from physis_core.cluster import spawner as spawner_module
from physis_core.cluster.orders import Orders
from physis_core.cluster.spawner import Spawner

PATIENCE_S = 30.0


@pytest.fixture
def orders() -> Orders:
    return Orders(
        deployment_json="{}",
        worker=0,
        store_host="127.0.0.1",
        store_port=1,
        control_host="127.0.0.1",
        control_port=1,
        key=b"k" * 32,
        link_host="127.0.0.1",
    )


CHILD = """
import json
import sys

line = sys.stdin.readline()
sys.exit(7 if line and json.loads(line)["worker"] == 0 else 0)
"""


@pytest.fixture
def spawner(monkeypatch, tmp_path):
    """Its children end with 7 where they got orders for worker 0."""
    (tmp_path / "reads_orders.py").write_text(CHILD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(spawner_module, "WORKER", "reads_orders")
    failed: list[str] = []
    made = Spawner(2, 1, failed.append)
    yield made
    made.close()
    assert failed == []


def started(spawner: Spawner, orders: Orders, instead_of=None):
    done = threading.Event()
    became = []

    def note(process) -> None:
        became.append(process)
        done.set()

    spawner.start(orders, note, instead_of)
    assert done.wait(PATIENCE_S)
    (process,) = became
    return process


def test_a_prepared_interpreter_is_the_one_that_gets_the_orders(spawner, orders):
    spawner.prepare()
    spawner.prepare()
    first, second = started(spawner, orders), started(spawner, orders)
    third = started(spawner, orders)
    assert len({first.pid, second.pid, third.pid}) == 3
    for process in (first, second, third):
        assert process.wait(PATIENCE_S) == 7, "the child got orders for worker 0"


def test_interpreters_without_orders_end_with_the_spawner(spawner, orders):
    spawner.prepare()
    process = started(spawner, orders)
    (left,) = spawner._waiting
    spawner.close()
    assert left.poll() is not None
    process.wait(PATIENCE_S)


def test_nothing_is_started_after_the_end_of_starts(spawner, orders):
    spawner.prepare()
    spawner.end_starts()
    became = []
    spawner.start(orders, became.append)
    spawner.close()
    assert became == []


def test_the_old_process_is_no_more_before_the_new_one_starts(spawner, orders):
    old = spawner._interpreter()
    new = started(spawner, orders, instead_of=old)
    assert old.poll() is not None
    assert new.pid != old.pid


def test_an_interpreter_that_cannot_be_started_is_said_by_its_reason(spawner, orders, monkeypatch):
    def broken(self):
        raise OSError("no memory")

    spawner.prepare()
    started(spawner, orders), started(spawner, orders)
    monkeypatch.setattr(Spawner, "_interpreter", broken)
    became = started(spawner, orders)
    assert isinstance(became, OSError)
