"""What the nodes around an engine share: names that do not fit, workers that are not ready."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from physis_core.engine.engine import Engine
from physis_core.types import UserError
from physis_ros.engine.life import check_stream_names, start_engine


class LateEngine:
    """Never ready in time, unless it is told to give up."""

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
        start_engine(engine, 2.5, lambda: False)
    with pytest.raises(InterruptedError):
        start_engine(engine, 2.5, given_up=lambda: True)
