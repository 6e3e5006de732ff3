"""Capacity is measured with as many processes as there are cores."""

from __future__ import annotations

import time

from physis_lab.session.speed import measure_capacity_cores, work_done


def test_work_is_done_from_the_given_moment_on() -> None:
    begin_s = time.monotonic() + 0.05
    assert work_done(begin_s, 0.05) > 0
    assert time.monotonic() >= begin_s + 0.05


def test_a_machine_has_some_capacity() -> None:
    assert measure_capacity_cores() > 0.0
