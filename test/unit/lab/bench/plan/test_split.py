"""Joint scheduling against an even split: the places, the file that runs them, and the counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from physis_core.deployment.file import load_deployment, write_deployment
from physis_core.observe.trace import RunTrace
from physis_core.plan.config import PlanConfig
from physis_core.plan.deployed import deployment_fields
from physis_core.plan.even_split import Split, compare, split
from physis_core.types import UserError
from physis_lab.bench.engine.engine_profile import Measured
from physis_lab.bench.plan.pool import MODELS, plan_of
from physis_lab.bench.plan.split import (
    SETTLE,
    Row,
    Side,
    figures_of,
    row_of,
    side_of,
    stream_configs,
)
from physis_lab.cli.bench import add_arguments, run
from physis_lab.session.engine_run import EngineRun, StreamRun
from physis_ros.cli.main import OneLineParser


@pytest.fixture(scope="module")
def config() -> PlanConfig:
    """Two devices, and streams that take half of one when alone."""
    measured = Measured(
        costs={b: {1: 0.004, 2: 0.005} for b in range(MODELS["deep"]["blocks"])},
        factors=(1.0, 1.05),
        per_batch_s=0.0005,
        per_send_s=0.0,
        per_hop_s=0.0004,
        per_entry_s=0.0002,
        per_message_s=0.0001,
    )
    made = plan_of({"deep": measured}, copies=2, load=0.5)
    return replace(made, device="emulated", runs={})


@pytest.fixture(scope="module")
def found(config: PlanConfig) -> Split:
    return split(config.models["deep"], config.pool, config.streams[0].slo, config.policy)


def test_even_groups_share_no_device_and_the_counts_are_the_places(config, found):
    assert [one.devices for one in found.even] == [(0,), (1,)]
    counts = compare(config.models["deep"], config.pool, config.streams[0].slo, config.policy)
    assert (counts.even, counts.even_devices, counts.joint) == (2, 1, len(found.joint))
    assert len(found.joint) > len(found.even)


@pytest.mark.parametrize("way", ["even", "joint"])
def test_each_stream_runs_at_its_own_place(config, found, tmp_path: Path, way: str):
    admitted = getattr(found, way)
    path = tmp_path / "deployment.yaml"
    fields = deployment_fields(config, {config.streams[0].name: admitted}, tmp_path)
    write_deployment(fields, path, "Written by a test.")
    planned = load_deployment(path)
    streams = stream_configs(planned, admitted)
    routes = [planned.deployment.routes[stream.route] for stream in streams]
    assert [route.device_of_rank for route in routes] == [one.devices for one in admitted]
    assert [r.partition.rank_of for r in routes] == [one.plan.partition.rank_of for one in admitted]
    assert len({stream.stream_id for stream in streams}) == len(admitted)


def test_a_stream_is_kept_if_no_chunk_after_the_fill_is_late():
    deadline_s = np.arange(SETTLE + 4, dtype=float)

    def stream(late: dict[int, float]) -> StreamRun:
        exit_s = deadline_s - 0.1
        for chunk, seconds in late.items():
            exit_s[chunk] = deadline_s[chunk] + seconds
        return StreamRun(
            release_s=deadline_s - 1.0, exit_s=exit_s, deadline_s=deadline_s, outputs=()
        )

    streams = (stream({}), stream({SETTLE - 1: 5.0}), stream({SETTLE + 1: 0.02}))
    nothing = np.zeros(0)
    trace = RunTrace(tasks=nothing, chunks=nothing, edges=(), devices=(), records_lost=0)
    side = side_of(EngineRun(streams=streams, trace=trace, costs_s={}))
    assert (side.planned, side.kept) == (3, 2)
    assert side.late == pytest.approx(1 / 12)
    assert side.excess_s == pytest.approx(0.02)


def test_the_figure_compares_kept_streams_not_planned_ones():
    even = Side(planned=2, kept=2, late=0.0, excess_s=0.0)
    joint = Side(planned=4, kept=1, late=0.3, excess_s=0.1)
    row = Row(model="m", devices="2 emulated", period_s=0.1, even=even, joint=joint)
    figure = figures_of([row])["split.joint_over_even_m"]
    assert figure.value == 0.5
    assert figure.met is False
    assert figures_of([replace(row, joint=even)])["split.joint_over_even_m"].met is True


def test_both_ways_run_in_the_engine(config, found):
    row = row_of(config, chunks=2)
    assert (row.even.planned, row.joint.planned) == (len(found.even), len(found.joint))


def test_an_unknown_model_is_one_line():
    parser = OneLineParser()
    add_arguments(parser)
    with pytest.raises(UserError, match="only.*big"):
        run(parser.parse_args(["split", "--only", "big"]))
