import argparse
from pathlib import Path

import pytest

from physis_core.deployment.deployment import simple_deployment
from physis_core.model.registry import ModelRef
from physis_core.types import UserError
from physis_lab.session.engine_run import free_stream, run_streams
from physis_ros.cli import trace as verb

BLOCKS = 3


@pytest.fixture(scope="module")
def trace_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = ModelRef(family="synthetic", config={"steps": 2, "blocks": BLOCKS})
    deployment = simple_deployment(
        model,
        partition="stage",
        devices=6,
        device_kind="emulated",
        costs={block: {1: 0.001} for block in range(BLOCKS)},
    )
    run = run_streams(deployment, [free_stream()], chunks=20, timeout_s=60.0)
    path = tmp_path_factory.mktemp("trace") / "run.npz"
    run.trace.save(path)
    return path


def arguments(file: Path, *words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    verb.add_arguments(parser)
    return parser.parse_args([str(file), "--blocks", str(BLOCKS), *words])


def test_one_chunk_id_goes_through_every_stage(trace_file: Path, tmp_path: Path) -> None:
    picture = tmp_path / "front.png"
    result = verb.run(arguments(trace_file, "--chunk", "7", "--plot", str(picture)))
    way = result["visits"]
    assert [visit["stage"] for visit in way] == list(range(2 * BLOCKS))
    assert [visit["device"] for visit in way] == list(range(2 * BLOCKS))
    done = [visit["done_ms"] for visit in way]
    assert done == sorted(done)
    assert all(visit["queue_ms"] >= 0 and visit["compute_ms"] > 0 for visit in way)
    assert picture.stat().st_size > 5_000


def test_the_five_groups_are_there(trace_file: Path) -> None:
    result = verb.run(arguments(trace_file))
    for group in ("stages", "edges", "devices", "batches", "streams"):
        assert result[group], group
    assert len(result["stages"]) == 2 * BLOCKS


def test_bad_input_names_field_and_value(trace_file: Path, tmp_path: Path) -> None:
    for words, said in (
        (("--chunk", "999"), "chunk: 999: is not in the trace"),
        (("--stream", "77"), "stream: 77"),
        (("--epoch", "5"), "epoch: 5"),
    ):
        with pytest.raises(UserError, match=said):
            verb.run(arguments(trace_file, *words))
    other = tmp_path / "no.npz"
    other.write_bytes(b"nothing")
    with pytest.raises(UserError, match="is not a trace"):
        verb.run(arguments(other))
