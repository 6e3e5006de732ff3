from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from physis_core.pipeline.partition import Partition, make_partition, split_evenly
from physis_core.types import StageGraph, UserError

graphs = st.builds(StageGraph, steps=st.integers(1, 5), blocks=st.integers(1, 6))


@given(graph=graphs, devices=st.integers(1, 40))
def test_each_kind_keeps_its_shape(graph: StageGraph, devices: int) -> None:
    sequential = make_partition("sequential", graph, devices)
    assert sequential.ranks == 1 and sequential.edges() == ()

    step = make_partition("step", graph, devices)
    assert step.ranks == min(devices, graph.steps)
    for s in range(graph.stages):
        assert step.rank_of[s] == step.rank_of[s - s % graph.blocks]

    block = make_partition("block", graph, devices)
    assert block.ranks == min(devices, graph.blocks)
    for s in range(graph.stages):
        assert block.rank_of[s] == block.rank_of[s % graph.blocks]

    stage = make_partition("stage", graph, devices)
    assert stage.ranks == min(devices, graph.stages)
    assert all(b - a in (0, 1) for a, b in pairwise(stage.rank_of))


@given(graph=graphs, devices=st.integers(1, 40), kind=st.sampled_from(["step", "block", "stage"]))
def test_every_stage_has_one_rank_and_edges_are_what_a_chunk_crosses(
    graph: StageGraph, devices: int, kind: str
) -> None:
    partition = make_partition(kind, graph, devices)
    owned = [s for r in range(partition.ranks) for s in partition.stages_of(r)]
    assert sorted(owned) == list(range(graph.stages))
    crossed = {(a, b) for a, b in pairwise(partition.rank_of) if a != b}
    assert set(partition.edges()) == crossed
    for r in range(partition.ranks):
        assert set(partition.blocks_of(r)) == {s % graph.blocks for s in partition.stages_of(r)}


@settings(max_examples=60)
@given(costs=st.lists(st.integers(1, 20), min_size=1, max_size=8), groups=st.integers(1, 8))
def test_the_heaviest_group_is_as_light_as_it_can_be(costs: list[int], groups: int) -> None:
    group_of = split_evenly(costs, groups)
    used = min(groups, len(costs))
    assert sorted(set(group_of)) == list(range(used))
    assert list(group_of) == sorted(group_of)
    heaviest = max(
        sum(c for c, g in zip(costs, group_of, strict=True) if g == i) for i in range(used)
    )
    best = min(
        max(sum(costs[a:b]) for a, b in pairwise((0, *cuts, len(costs))))
        for cuts in combinations(range(1, len(costs)), used - 1)
    )
    assert heaviest == best


def test_clean_kv_keeps_all_steps_of_a_block_together() -> None:
    graph = StageGraph(steps=2, blocks=3, kv="clean")
    assert graph.stages == 9 and graph.exit_index == 5
    assert make_partition("block", graph, 3).ranks == 3
    with pytest.raises(UserError, match="clean KV of block 0"):
        make_partition("step", graph, 2)


def test_bad_input_names_field_and_value() -> None:
    graph = StageGraph(steps=2, blocks=2)
    with pytest.raises(UserError, match="partition: 'rings': one of sequential"):
        make_partition("rings", graph, 2)
    with pytest.raises(UserError, match="devices: 0"):
        make_partition("step", graph, 0)
    with pytest.raises(UserError, match="costs: 1: needs one per block, 2"):
        make_partition("block", graph, 2, costs=[1.0])
    with pytest.raises(UserError, match="needs one rank per stage"):
        Partition(kind="grouped", graph=graph, rank_of=(0, 1))
    with pytest.raises(UserError, match="no gaps"):
        Partition(kind="grouped", graph=graph, rank_of=(0, 0, 2, 2))
