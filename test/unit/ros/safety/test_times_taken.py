"""What the fault trials read from the arm's record: when each trajectory was taken."""

import numpy as np
import pytest
from arm_stack import times_taken

TICKS_S = np.arange(10) * 0.1


def test_where_all_were_taken_each_has_its_own_tick():
    taken = np.array([0, 0, 1, 1, 3, 3, 3, 3, 3, 4])
    assert times_taken(TICKS_S, taken, [0.15, 0.25, 0.35, 0.36]) == pytest.approx(
        [0.2, 0.4, 0.4, 0.9]
    )


def test_where_some_were_replaced_each_counts_as_taken_with_the_next():
    taken = np.array([0, 0, 1, 1, 1, 1, 2, 2, 2, 2])
    judged_s = [0.15, 0.25, 0.35, 0.85]
    assert times_taken(TICKS_S, taken, judged_s) == pytest.approx([0.2, 0.6, 0.6, 0.9])
