"""What the nodes around an engine share: names that do not fit, workers that are not ready."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from physis_core.engine.engine import Engine
from physis_core.types import UserError
from physis_ros.engine import life
from physis_ros.engine.life import check_stream_names, start_engine
from physis_ros.node.waiting import one_line


class LateEngine:
    """Never ready in time, unless it is told to give up."""

    deployment = SimpleNamespace(workers=2, models={"model": SimpleNamespace(label="tiny")})

    def start(self, timeout_s: float, given_up: Callable[[], bool]) -> None:
        if given_up():
            raise InterruptedError("given up")
        raise TimeoutError("worker 1 of 2 is silent")


def test_streams_with_a_namespace_each_are_taken() -> None:
    check_stream_names(["a", "b"], ["", "left"])


@pytest.mark.parametrize(
    ("ids", "namespaces", "named"),
    [
        (["a", "b"], [""], "stream_namespaces.*needs one for each"),
        (["a", "a"], ["left", "right"], "stream_ids.*twice"),
        (["a", "b"], ["left", "left"], "stream_namespaces.*twice"),
    ],
)
def test_names_that_do_not_fit_are_named(ids: list[str], namespaces: list[str], named: str) -> None:
    with pytest.raises(UserError, match=named):
        check_stream_names(ids, namespaces)


def test_workers_that_are_not_ready_are_a_matter_of_the_timeout() -> None:
    engine = cast(Engine, LateEngine())
    with pytest.raises(TimeoutError, match=r"start_timeout_s: 2\.5.*worker 1 of 2 is silent"):
        start_engine(engine, 2.5, lambda: False, ignore)
    with pytest.raises(InterruptedError):
        start_engine(engine, 2.5, given_up=lambda: True, say=ignore)


def test_workers_that_take_seconds_are_waited_for_aloud(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr(life.time, "monotonic", lambda: now_s[0])

    class SlowEngine(LateEngine):
        def start(self, timeout_s: float, given_up: Callable[[], bool]) -> None:
            for _ in range(100):
                now_s[0] += 0.1
                assert not given_up()

    said: list[str] = []
    start_engine(cast(Engine, SlowEngine()), 60.0, lambda: False, said.append)
    assert said == [
        "starts 2 workers with tiny",
        "waits for 4 s: 2 workers to load the model and warm it up, at most 60 s",
    ]


def test_a_long_reason_is_one_short_line() -> None:
    assert one_line("a\n  b") == "a b"
    assert len(one_line("x" * 5000)) < 200


def ignore(_: str) -> None:
    pass
