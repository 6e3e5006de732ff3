"""What is kept of the past: what a full window would hold."""

from __future__ import annotations

import numpy as np
import pytest

from physis_core.engine.rebuild import LATENT, PastChunks, split_latent


def latent(number):
    return {f"{LATENT}0": np.array([number])}


def numbers(past):
    return [int(kept[f"{LATENT}0"][0]) for kept in past.kept()]


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


def test_outputs_and_latent_of_one_message_are_told_apart():
    outputs, clean = split_latent({"action": np.zeros(2), **latent(7)})
    assert list(outputs) == ["action"]
    assert list(clean) == [f"{LATENT}0"]
