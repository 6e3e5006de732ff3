"""Random chunks through buffer, safety and controller, with messages that come late or never."""

import pytest

from physis_lab.bench.robot.simulated.random_series import SeriesTotals, play_series


def totals_of(seeds):
    totals = SeriesTotals()
    for seed in seeds:
        totals.add(play_series(seed))
    return totals


def assert_nothing_refused(totals):
    refused = {kind: totals.examples[kind] for kind in totals.judged if kind.startswith("refused")}
    assert refused == {}
    assert totals.violated_seeds == []
    assert totals.restless_seeds == []


def test_what_the_buffer_sends_is_not_refused():
    totals = totals_of(range(40))
    assert totals.judged["OK"] > 100
    assert totals.judged["LIMIT"] > 100
    assert_nothing_refused(totals)


@pytest.mark.parametrize(
    "seed",
    [
        3,  # a tail whose joints stop within microseconds: "acceleration 9.87 above 8"
        237,  # likewise, 8.016
        31,  # fast chunks: the possible motions lie far apart
        79,  # a window of one point, over before it came
        173,
    ],
)
def test_series_that_were_refused_once(seed):
    assert_nothing_refused(totals_of([seed]))
