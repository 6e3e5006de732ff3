"""Folders as they are downloaded: what is read from them, and what is said of a wrong one."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

pytest.importorskip("diffusers", reason="the wan extra is not installed")

from test_checkpoint import as_original
from wan_folder import RUN, make_pipeline, make_text

from physis_core.files import read_file
from physis_core.model.config import build_config
from physis_core.model.conformance import broken_promises
from physis_core.model.loading import load, load_spec
from physis_core.model.protocol import NoiseKey
from physis_core.model.registry import condition_encoder, describe, find_model
from physis_core.model.wan.config import WanConfig
from physis_core.model.wan.decoder import _renamed
from physis_core.model.wan.folder import read_folder
from physis_core.model.wan.prompt import PromptEncoder
from physis_core.types import UserError

ROOT = Path(__file__).resolve().parents[5]
NOISE = NoiseKey(seed=0, epoch=0, chunk_id=1)
WEIGHTS = "diffusion_pytorch_model.safetensors"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pipeline(tmp_path_factory.mktemp("wan"))


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "copy"))


def test_sizes_shift_and_steps_come_from_the_folder(folder: Path) -> None:
    described = describe(find_model(folder))
    assert (described.steps, described.blocks, described.window_chunks) == (2, 3, 3)
    assert described.missing == () and described.note == "" and described.takes_prompt
    frames = described.frames
    assert frames is not None
    assert (frames.count, frames.height, frames.width, frames.first) == (4, 32, 32, "none")
    model: Any = load(find_model(folder))
    assert model.config.shift == 3.0  # Of the scheduler.
    (folder / "physis.yaml").unlink()
    assert "config/models/" in describe(find_model(folder)).note


@pytest.mark.parametrize("path", sorted((ROOT / "config" / "models").glob("*.yaml")), ids=str)
def test_a_shipped_run_file_fits_the_configuration(path: Path) -> None:
    values = read_file(path)
    assert set(values) <= {"family", "name", "source", "files", "run"}
    config = build_config(WanConfig, values["run"])
    assert config.latents * config.window_chunks in (21, 24, 31)


def shards(folder: Path, part: str = "transformer", count: int = 2) -> None:
    """As diffusers saves a large model: numbered files and an index."""
    file = folder / part / WEIGHTS
    weights = load_file(file)
    file.unlink()
    names, index = list(weights), {}
    for i in range(count):
        shard = f"diffusion_pytorch_model-{i + 1:05}-of-{count:05}.safetensors"
        save_file({n: weights[n] for n in names[i::count]}, folder / part / shard)
        index |= dict.fromkeys(names[i::count], shard)
    text = json.dumps({"metadata": {}, "weight_map": index})
    (folder / part / f"{WEIGHTS}.index.json").write_text(text, encoding="utf-8")


def test_shards_load(folder: Path) -> None:
    whole: Any = load(find_model(folder))
    shards(folder)
    assert describe(find_model(folder)).missing == ()
    again: Any = load(find_model(folder))
    assert torch.equal(whole._shared.proj_out.weight, again._shared.proj_out.weight)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def edit(file: Path, **changes: Any) -> None:
    values = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**values, **changes}), encoding="utf-8")


def drop_shard(folder: Path) -> None:
    shards(folder)
    next((folder / "transformer").glob("*-00002-of-*")).unlink()


def another_weight(folder: Path) -> None:
    file = folder / "transformer" / WEIGHTS
    weights = load_file(file)
    weights["condition_embedder.text_embedder.linear_1.weight"] = torch.zeros(24, 9)
    save_file(weights, file)


def lose_a_block(folder: Path) -> None:
    file = folder / "transformer" / WEIGHTS
    save_file({k: v for k, v in load_file(file).items() if "blocks.1." not in k}, file)


MISSING: dict[str, tuple[Callable[[Path], object], str]] = {
    "half a file": (
        lambda p: cut(p / "transformer" / WEIGHTS),
        r"^transformer: .* is cut off: \d+",
    ),
    "a shard": (drop_shard, r"^transformer: .*00002-of-00002.* is missing"),
    "no weights": (lambda p: (p / "transformer" / WEIGHTS).unlink(), r"^transformer: .* holds no"),
    "a block": (lose_a_block, r"^transformer: .* lacks the weights of block 1 of 2"),
    "text width": (
        another_weight,
        r"^transformer: .*linear_1.weight has shape \[24, 9\]",
    ),
    "encoder": (lambda p: make_text(p, 24), r"^text_encoder: .* is 24 wide, .* reads 16"),
    "VAE": (lambda p: edit(p / "vae/config.json", z_dim=8), r"^vae: .* has 8 latent channels.* 4"),
    "half a VAE": (lambda p: cut(p / "vae" / WEIGHTS), r"^vae: .* is cut off"),
    "tokenizer": (
        lambda p: [f.unlink() for f in (p / "tokenizer").iterdir()],
        r"^tokenizer: .* holds no tokenizer.json",
    ),
}


@pytest.mark.parametrize("kind", MISSING)
def test_what_is_missing_is_a_line_for_its_part(kind: str, folder: Path) -> None:
    spoil, complaint = MISSING[kind]
    spoil(folder)
    (line,) = describe(find_model(folder)).missing
    assert re.search(complaint, line), line
    assert "\n" not in line
    with pytest.raises(UserError) as refused:
        use(folder)
    assert "\n" not in str(refused.value)


def use(folder: Path) -> None:
    """As far as a stream's first prompt."""
    ref = find_model(folder)
    encoder = condition_encoder(ref)
    assert encoder is not None
    load(ref).condition(encoder.encoded({"prompt": "a cup"}))


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config": (lambda p: (p / "transformer/config.json").unlink(), "config.json.*is missing"),
    "two transformers": (
        lambda p: edit(
            p / "model_index.json", transformer_2=["diffusers", "WanTransformer3DModel"]
        ),
        "two transformers",
    ),
    "image to video": (
        lambda p: edit(p / "transformer/config.json", in_channels=36),
        "^in_channels: 36: .*image-to-video",
    ),
    "run field": (
        lambda p: (p / "physis.yaml").write_text("family: wan\nrun: {stepz: 4}\n"),
        "^stepz: 4: unknown",
    ),
    "run value": (
        lambda p: (p / "physis.yaml").write_text("family: wan\nrun: {timesteps: [1, 2]}\n"),
        "^timesteps: ",
    ),
    "run file": (lambda p: (p / "physis.yaml").write_text("run: {steps: 4}\n"), "^family: None"),
    "named file": (
        lambda p: (p / "physis.yaml").write_text("family: wan\nfiles: {transformer: x.pt}\n"),
        "^files.transformer: .*x.pt.*no such file",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_folder_that_cannot_be_read_is_one_line(kind: str, folder: Path) -> None:
    spoil, complaint = REFUSED[kind]
    spoil(folder)
    with pytest.raises(UserError, match=complaint) as refused:
        describe(find_model(folder))
    assert "\n" not in str(refused.value)


def test_a_distilled_pt_file_beside_the_base_model(folder: Path) -> None:
    weights = load_file(folder / "transformer" / WEIGHTS)
    torch.save(
        {"generator_ema": {f"model.{k}": v + 1 for k, v in weights.items()}}, folder / "d.pt"
    )
    (folder / "transformer" / WEIGHTS).unlink()  # Not needed then.
    run = RUN.replace("steps: 2", "steps: 3, timesteps: [1000, 757, 522], kv: clean")
    (folder / "physis.yaml").write_text(run + "files: {transformer: d.pt}\n", encoding="utf-8")
    ref = find_model(folder)
    assert describe(ref).missing == ()
    model: Any = load(ref)
    name = "proj_out.weight"
    assert torch.equal(model._shared.get_parameter(name), weights[name] + 1)
    assert [model._schedule.level(d) for d in range(4)] == [1.0, 0.757, 0.522, 0.0]
    assert model.spec.graph.kv == "clean"


def test_the_original_layout_gives_the_same_weights_and_embeddings(
    folder: Path, tmp_path: Path
) -> None:
    """Names written the other way round here."""
    from diffusers import WanTransformer3DModel
    from transformers import UMT5EncoderModel

    original = tmp_path / "original"
    (original / "google").mkdir(parents=True)
    shutil.copytree(folder / "tokenizer", original / "google" / "umt5-xxl")
    text = UMT5EncoderModel.from_pretrained(folder / "text_encoder").state_dict()
    named = {k: v for k, v in text.items() if k != "encoder.embed_tokens.weight"}
    save = {original_text_name(k): v for k, v in named.items()}
    torch.save(save, original / "models_t5_umt5-xxl-enc-bf16.pth")
    transformer = WanTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=12,
        text_dim=16,
        freq_dim=16,
        ffn_dim=32,
        num_layers=2,
    ).state_dict()
    save_file(as_original(transformer), original / WEIGHTS)
    sizes = {"dim": 24, "ffn_dim": 32, "num_heads": 2, "num_layers": 2, "in_dim": 16, "out_dim": 16}
    config = {"_class_name": "WanModel", "model_type": "t2v", "freq_dim": 16, "text_len": 12}
    (original / "config.json").write_text(json.dumps({**config, **sizes}), encoding="utf-8")
    run = "family: wan\nrun: {height: 2, width: 2, text_dim: 16, dtype: float32, steps: 1}\n"
    (original / "physis.yaml").write_text(run, encoding="utf-8")

    ref = find_model(original)
    described = describe(ref)
    (line,) = described.missing
    assert line.startswith("vae: ") and described.takes_prompt and described.blocks == 2
    model: Any = load(ref)
    assert torch.equal(model._shared.proj_out.weight, transformer["proj_out.weight"])
    prompts = [
        PromptEncoder(model.config, read_folder(path)).encoded({"prompt": "a red cup"})
        for path in (original, folder)
    ]
    made, wanted = (prompt["text_embedding"] for prompt in prompts)
    assert (made == wanted).all()


def original_text_name(name: str) -> str:
    for ours, theirs in (
        ("shared", "token_embedding"),
        ("encoder.final_layer_norm", "norm"),
        ("encoder.block", "blocks"),
        ("layer.0.layer_norm", "norm1"),
        ("layer.0.SelfAttention.relative_attention_bias", "pos_embedding.embedding"),
        ("layer.0.SelfAttention", "attn"),
        ("layer.1.layer_norm", "norm2"),
        ("layer.1.DenseReluDense.wi_0", "ffn.gate.0"),
        ("layer.1.DenseReluDense.wi_1", "ffn.fc1"),
        ("layer.1.DenseReluDense.wo", "ffn.fc2"),
    ):
        name = name.replace(ours, theirs)
    return name


def test_the_original_vae_file_has_every_name_of_the_decoder_and_encoder() -> None:
    from diffusers import AutoencoderKLWan

    with torch.device("meta"):
        names = list(AutoencoderKLWan().state_dict())
    assert set(_renamed({original_vae_name(name): name for name in names})) == set(names)
    for original, name in _renamed({original_vae_name(name): name for name in names}).items():
        assert original == name


def original_vae_name(name: str) -> str:
    """Of Wan2.1's own VAE file: convolutions and blocks by their place in a sequence."""
    name = name.replace("post_quant_conv", "conv2").replace("quant_conv", "conv1")
    name = name.replace("conv_in", "conv1").replace("mid_block.attentions.0", "middle.1")
    name = name.replace("norm_out", "head.0").replace("conv_out", "head.2")
    name = name.replace("mid_block.resnets.0", "middle.0").replace(
        "mid_block.resnets.1", "middle.2"
    )

    def in_sequence(match: re.Match[str]) -> str:
        block, kind, number = int(match[1]), match[2], int(match[3])
        return f"upsamples.{4 * block + (3 if kind == 'upsamplers' else number)}"

    name = re.sub(r"up_blocks\.(\d)\.(resnets|upsamplers)\.(\d)", in_sequence, name)
    name = name.replace("down_blocks", "downsamples").replace("conv_shortcut", "shortcut")
    if "samples." in name or "middle.0" in name or "middle.2" in name:
        for ours, place in (("norm1", 0), ("conv1", 2), ("norm2", 3), ("conv2", 6)):
            name = name.replace(f".{ours}.", f".residual.{place}.")
    return name


def test_actions_steer_a_folder_with_an_adapter(folder: Path) -> None:
    """Two joints, four frames a latent: the commands of a frame reach its chunk and no other."""
    generator = torch.Generator().manual_seed(0)
    sizes = {"0.weight": (6, 8), "0.bias": (6,), "2.weight": (24, 6), "2.bias": (24,)}
    adapter = folder / "action_adapter"
    adapter.mkdir()
    weights = {k: torch.randn(*v, generator=generator) for k, v in sizes.items()}
    save_file(weights, adapter / "model.safetensors")
    (adapter / "config.json").write_text('{"joint_names": ["a", "b"], "hidden": 6}', "utf-8")
    ref = find_model(folder)
    described = describe(ref)
    assert described.joints == ("a", "b") and described.missing == ()
    assert described.commands is not None and described.commands.steps == 4
    assert load_spec(ref).observation["actions"].shape == (4, 2)
    assert broken_promises(lambda blocks: load(ref, blocks), rows=3) == []
    model: Any = load(ref)
    parts = (model._shared, *model._blocks.values())
    held = sum(p.numel() * p.element_size() for part in parts for p in part.parameters())
    spec = model.spec
    decoder = sum(p.nbytes for p in model._decoder._vae.parameters() if not p.is_meta)
    assert held + decoder == sum(spec.block_weight_bytes) + spec.shared_weight_bytes
    latent = model.inject({"actions": torch.zeros(1, 4, 2)}, [NOISE])
    moved = model.refresh(latent, {"actions": torch.ones(1, 4, 2)})
    time = [model.embed(x, [0])[2] for x in (latent, moved)]
    first, second = (model._shared.action_adapter(x) for x in (torch.zeros(1, 8), torch.ones(1, 8)))
    torch.testing.assert_close((time[1] - time[0])[0], second - first, rtol=1e-4, atol=1e-5)


def test_an_embedding_is_what_transformers_gives(folder: Path) -> None:
    from transformers import AutoTokenizer, UMT5EncoderModel

    ref = find_model(folder)
    model: Any = load(ref, [0])
    encoder = PromptEncoder(model.config, read_folder(folder))
    made = encoder.encoded({"instruction": "a  red cup &amp; table"})["text_embedding"]
    tokens = AutoTokenizer.from_pretrained(folder / "tokenizer")("a red cup & table")["input_ids"]
    whole = UMT5EncoderModel.from_pretrained(folder / "text_encoder").eval()
    # diffusers pads to a fixed length, masks the rest and sets it to zero.
    padded = torch.tensor([tokens + [0] * (12 - len(tokens))])
    mask = (torch.arange(12) < len(tokens)).long()[None]
    with torch.inference_mode():
        wanted = whole(padded, mask).last_hidden_state[0, : len(tokens)]
    torch.testing.assert_close(torch.tensor(made), wanted, rtol=1e-5, atol=1e-5)
    for wrong in ({"prompt": 3}, {"prompt": "cup", "instruction": "cup"}):
        with pytest.raises(UserError, match=r"^prompt: "):
            encoder.encoded(wrong)
    assert encoder.encoded({}) == {}
