"""Families by name: ours, and those of installed packages, whole or broken."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import third_family
import torch

from physis_core.deployment.deployment import simple_deployment
from physis_core.engine.engine import Engine
from physis_core.engine.stream import StreamConfig
from physis_core.model import registry
from physis_core.model.conformance import broken_promises
from physis_core.model.loading import load, load_spec
from physis_core.model.reference import ReferenceStream
from physis_core.model.registry import ModelRef, describe, families, family, find_model
from physis_core.types import FinishedChunk, Observation, ObservationStamp, Refused, UserError

CHECKPOINTS = Path(__file__).parents[4] / "checkpoints"
PATIENCE_S = 60.0


def _forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0].endswith("_models")]:
        del sys.modules[name]
    registry.registrations.cache_clear()
    registry._loaded.cache_clear()


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Install packages, each into a folder of its own on the path."""

    def install(package: str = "hop_models", entries: dict[str, str] | None = None) -> None:
        folder = third_family.install(tmp_path / package, entries, package)
        monkeypatch.syspath_prepend(str(folder))
        _forget()

    yield install
    monkeypatch.undo()
    _forget()


def test_our_families_register_and_recognise_what_we_ship() -> None:
    usable, problems = families()
    assert not problems
    assert set(usable) >= {"synthetic", "tiny", "tiny_world", "wan"}
    policy = find_model(CHECKPOINTS / "physis_tiny_follow.safetensors")
    world = find_model(CHECKPOINTS / "physis_tiny_world.safetensors")
    assert (policy.family, world.family) == ("tiny", "tiny_world")


def test_a_file_describes_itself_as_the_model_is() -> None:
    for path in CHECKPOINTS.glob("physis_tiny_*.safetensors"):
        ref = find_model(path)
        described, spec = describe(ref), load_spec(ref)
        assert (described.steps, described.blocks, described.kv) == (
            spec.steps,
            spec.blocks,
            spec.kv,
        )
        assert described.window_chunks == spec.window_chunks
        if described.actions is not None:
            shape = (described.actions.steps, len(described.joints))
            assert spec.outputs["action"].shape == shape
            cameras = (len(described.cameras), *described.image_size, 3)
            assert spec.observation["image"].shape == cameras
        if described.frames is not None:
            frames = described.frames
            shape = (frames.count, frames.height, frames.width, 3)
            assert spec.outputs["frames"].shape == shape


def test_describing_needs_no_torch() -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from physis_core.model.registry import describe, find_model\n"
        f"describe(find_model(Path({str(CHECKPOINTS / 'physis_tiny_wam.safetensors')!r})))\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_a_package_brings_a_family(packages: Any, tmp_path: Path) -> None:
    packages()
    path = third_family.write_model(tmp_path / "small.hop")
    ref = find_model(path)
    assert ref == ModelRef(family="hop", checkpoint=str(path))
    described = describe(ref)
    assert described.joints == third_family.JOINTS
    assert described.camera_names == (third_family.CAMERA,)
    (registration,) = registry.registrations()["hop"]
    assert registration.source == "hop_models 1.5"
    assert ModelRef.from_json(ref.to_json()) == ref
    assert broken_promises(lambda owned: load(ref, owned)) == []


def test_the_engine_runs_a_packages_family_as_the_reference_does(
    packages: Any, tmp_path: Path
) -> None:
    packages()
    torch.set_num_threads(1)
    ref = find_model(third_family.write_model(tmp_path / "small.hop"))
    seen = {
        "image": np.zeros((1, *third_family.SIZE, 3), dtype=np.uint8),
        "joint_positions": np.float32([0.25, -0.5]),
        "lookahead_s": np.float32([0.1]),
    }
    chunks: list[FinishedChunk] = []
    delivered = threading.Event()

    def keep(chunk: FinishedChunk) -> None:
        chunks.append(chunk)
        delivered.set()

    engine = Engine(simple_deployment(ref, partition="block", devices=2), on_chunk=keep)
    engine.start(PATIENCE_S)
    try:
        config = StreamConfig(stream_id="a", release="on_observation", seed=4)
        assert not isinstance(engine.open_stream(config), Refused)
        stamp = ObservationStamp(
            observation_id=0, capture_oldest_ns=1, capture_newest_ns=1, receipt_ns=1
        )
        assert engine.observe("a", Observation(stamp=stamp, tensors=seen)) is None
        assert delivered.wait(PATIENCE_S)
    finally:
        engine.close()
    wanted = ReferenceStream(load(ref), seed=4).run_chunk({0: seen})
    assert len(chunks) == 1
    np.testing.assert_array_equal(chunks[0].outputs["action"], wanted["action"].numpy())


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("bad_models.nowhere:FAMILY", "No module named 'bad_models.nowhere'"),
        ("bad_models.family:NOTHING", "NOTHING"),
        ("json:dumps", "is no model family of this name"),
        ("bad_models.family:FAMILY", "is no model family of this name"),
    ],
)
def test_a_broken_entry_point_gets_one_line_and_stops_no_other(
    packages: Any, tmp_path: Path, caplog: Any, value: str, said: str
) -> None:
    packages("bad_models", {"broken": value})
    packages()
    usable, problems = families()
    assert "hop" in usable
    assert "tiny" in usable
    assert "broken" not in usable
    (line,) = problems
    assert line.startswith("model.family: 'broken': bad_models 1.5: ")
    assert said in line
    assert "\n" not in line
    assert find_model(third_family.write_model(tmp_path / "small.hop")).family == "hop"
    assert line in caplog.text
    with pytest.raises(UserError, match="bad_models"):
        describe(ModelRef(family="broken"))


def test_a_name_that_two_packages_claim_is_refused_by_name(packages: Any) -> None:
    packages()
    packages("other_models", {"hop": "other_models.family:FAMILY"})
    with pytest.raises(UserError, match=r"'hop'.*registered twice.*(hop|other)_models 1\.5 and"):
        family("hop")
    assert family("tiny").name == "tiny"
    _, problems = families()
    assert len(problems) == 1


def test_a_package_cannot_take_a_name_of_ours_in_silence(packages: Any) -> None:
    packages("other_models", {"tiny": "other_models.family:FAMILY"})
    with pytest.raises(UserError, match=r"'tiny'.*built in and other_models 1\.5"):
        family("tiny")


def test_a_family_that_fails_to_look_stops_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    def fail(path: Path) -> bool:
        raise RuntimeError("cannot\nlook")

    monkeypatch.setattr(type(family("wan")), "detect", lambda self, path: fail(path))
    assert find_model(CHECKPOINTS / "physis_tiny_follow.safetensors").family == "tiny"
    assert "'wan': RuntimeError: cannot look" in caplog.text


def test_a_manifest_says_what_a_folder_is(tmp_path: Path) -> None:
    (tmp_path / "weights.pt").write_bytes(b"")
    values = {"family": "synthetic", "config": {"steps": 2}}
    (tmp_path / "physis.json").write_text(json.dumps(values))
    ref = find_model(tmp_path)
    assert describe(ref).steps == 2
    (tmp_path / "physis.json").write_text(json.dumps({"family": "wan", "checkpoint": "weights.pt"}))
    assert find_model(tmp_path).checkpoint == str(tmp_path / "weights.pt")


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        ("{", "cannot be read"),
        ("[]", "must be a mapping"),
        ('{"config": {}}', "model.family: None: one of "),
        ('{"family": "large"}', "model.family: 'large': one of "),
        ('{"family": "synthetic", "checkpoint": "none"}', "there is no such file"),
    ],
)
def test_a_wrong_manifest_is_refused_in_one_line(tmp_path: Path, manifest: str, said: str) -> None:
    (tmp_path / "physis.json").write_text(manifest)
    with pytest.raises(UserError, match=said) as caught:
        find_model(tmp_path)
    assert "\n" not in str(caught.value)


def test_what_no_family_knows_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, CHECKPOINTS / "physis_world_probe.safetensors"):
        with pytest.raises(UserError, match="no family knows it"):
            find_model(path)
    with pytest.raises(UserError, match="no such file"):
        find_model(tmp_path / "none")


def test_diffusers_configuration_names_the_sizes(tmp_path: Path) -> None:
    values = {"_class_name": "WanTransformer3DModel", "num_layers": 40, "num_attention_heads": 40}
    (tmp_path / "config.json").write_text(json.dumps({**values, "patch_size": [1, 2, 2]}))
    ref = find_model(tmp_path)
    assert (ref.family, describe(ref).blocks) == ("wan", 40)
