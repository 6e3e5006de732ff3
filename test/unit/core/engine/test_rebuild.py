"""What is kept of the past: what a full window would hold."""

from __future__ import annotations

import numpy as np
import pytest

from physis_core.engine.way_back import PastChunks


def latent(number):
    return {"0": np.array([number])}


def numbers(past):
    return [int(kept["0"][0]) for kept in past.kept()]


@pytest.mark.parametrize(
    ("window", "sink", "chunks", "wanted"),
    [
        (4, 0, 2, [0, 1]),
        (4, 0, 10, [6, 7, 8, 9]),
        (4, 1, 10, [0, 7, 8, 9]),
        (4, 3, 10, [0, 1, 2, 9]),
        (1, 0, 10, [9]),
    ],
)
def test_the_sinks_and_the_last_are_kept(window, sink, chunks, wanted):
    past = PastChunks(window, sink)
    for number in range(chunks):
        past.add(latent(number))
    assert numbers(past) == wanted
    past.forget()
    assert numbers(past) == []
