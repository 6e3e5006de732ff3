from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from physis_core.cluster.cores import own_cores
from physis_core.types import UserError


@given(
    workers=st.integers(1, 6),
    threads=st.integers(1, 4),
    spare=st.integers(0, 5),
    data=st.data(),
)
def test_every_worker_has_its_threads_and_no_two_share_a_core(
    workers: int, threads: int, spare: int, data: st.DataObject
) -> None:
    count = workers * threads + spare
    allowed = data.draw(st.sets(st.integers(0, 200), min_size=count, max_size=count))
    shares = [
        own_cores(allowed, worker=worker, workers=workers, threads=threads)
        for worker in range(workers)
    ]
    assert all(len(share) == threads for share in shares)
    assert len(set().union(*shares)) == workers * threads
    assert set().union(*shares) <= allowed


def test_too_few_cores_are_refused_by_number() -> None:
    with pytest.raises(UserError, match=r"bind_cores.*need 4 cores, there are 3"):
        own_cores({0, 1, 5}, worker=0, workers=2, threads=2)
