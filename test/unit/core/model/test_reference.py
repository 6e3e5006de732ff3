from __future__ import annotations

import numpy as np
import torch

from physis_core.model.reference import ReferenceStream, run_stream
from physis_core.model.synthetic.config import SyntheticConfig
from physis_core.model.synthetic.model import SyntheticModel

torch.set_num_threads(1)


def observed(value: float) -> dict[str, np.ndarray]:
    return {"state": np.full(4, value, dtype=np.float32)}


def actions(model: SyntheticModel, chunks: list[dict[int, dict[str, np.ndarray]]], **kw: object):
    return torch.stack([out["action"] for out in run_stream(model, chunks, seed=3, **kw)])


def test_a_chunk_remembers_the_window_and_nothing_before_it() -> None:
    """With one step and block, noisy KV depends on a chunk's own input: H - 1 chunks back."""
    model = SyntheticModel(SyntheticConfig(steps=1, blocks=1, window_chunks=3))
    plain = actions(model, [{0: observed(0.0)}] * 5)
    changed = actions(model, [{0: observed(1.0)}] + [{0: observed(0.0)}] * 4)
    differs = [bool((a != b).any()) for a, b in zip(plain, changed, strict=True)]
    assert differs == [True, True, True, False, False]


def test_clean_kv_comes_from_the_finished_chunk() -> None:
    """What the first chunk saw at step 0 reaches the second one through the clean pass."""
    model = SyntheticModel(SyntheticConfig(steps=1, blocks=1, window_chunks=2, kv="clean"))
    noisy = SyntheticModel(SyntheticConfig(steps=1, blocks=1, window_chunks=2))
    seen = [[{0: observed(v)}, {0: observed(0.0)}] for v in (0.0, 1.0)]
    assert not torch.equal(*(actions(model, chunks)[1] for chunks in seen))
    assert not torch.equal(actions(model, seen[0])[1], actions(noisy, seen[0])[1])


def test_a_sink_is_remembered_for_ever() -> None:
    model = SyntheticModel(SyntheticConfig(steps=1, blocks=1, window_chunks=3, sink_chunks=1))
    plain = actions(model, [{0: observed(0.0)}] * 9)
    changed = actions(model, [{0: observed(1.0)}] + [{0: observed(0.0)}] * 8)
    assert all(bool((a != b).any()) for a, b in zip(plain, changed, strict=True))


def test_a_refresh_is_seen_from_its_step_on() -> None:
    model = SyntheticModel(SyntheticConfig(steps=3))
    entry = actions(model, [{0: observed(0.0)}])
    same = actions(model, [{0: observed(0.0), 2: observed(0.0)}])
    newer = actions(model, [{0: observed(0.0), 2: observed(1.0)}])
    assert torch.equal(entry, same)
    assert not torch.equal(entry, newer)


def test_seed_epoch_and_chunk_id_name_the_noise() -> None:
    model = SyntheticModel(SyntheticConfig())
    chunk = {0: observed(0.0)}

    def first(**kw: int) -> torch.Tensor:
        chunk_id = kw.pop("chunk_id", None)
        stream = ReferenceStream(model, seed=kw.pop("seed", 3), **kw)
        return stream.run_chunk(chunk, chunk_id=chunk_id)["action"]

    assert torch.equal(first(), first())
    for other in (first(seed=4), first(epoch=1), first(chunk_id=1)):
        assert not torch.equal(first(), other)


def test_condition_holds_from_the_next_chunk() -> None:
    model = SyntheticModel(SyntheticConfig())
    streams = [ReferenceStream(model, seed=0, condition={"bias": 0.1}) for _ in range(2)]
    for stream in streams:
        stream.run_chunk({0: observed(0.0)})
    streams[1].set_condition({"bias": 0.9})
    a, b = (stream.run_chunk({0: observed(0.0)})["action"] for stream in streams)
    assert not torch.equal(a, b)


def test_clean_kv_keeps_one_window_a_block_and_noisy_one_a_stage() -> None:
    for kv, windows in (("noisy", 4 * 2), ("clean", 2)):
        model = SyntheticModel(SyntheticConfig(steps=4, blocks=2, kv=kv))
        assert ReferenceStream(model, seed=0).kv_bytes == windows * model.spec.kv_bytes


def test_many_chunks_neither_grow_nor_blow_up() -> None:
    config = SyntheticConfig(steps=1, blocks=1, tokens=2, dim=4, heads=1, sink_chunks=1)
    stream = ReferenceStream(SyntheticModel(config), seed=0)
    before = stream.kv_bytes
    largest = 0.0
    for _ in range(2_000):
        largest = max(largest, float(stream.run_chunk({0: observed(0.5)})["action"].abs().max()))
    assert stream.kv_bytes == before
    assert largest < 100.0


def test_a_stream_goes_on_from_a_snapshot_as_if_nothing_had_been() -> None:
    for kv in ("noisy", "clean"):
        config = SyntheticConfig(steps=2, blocks=2, window_chunks=4, sink_chunks=1, kv=kv)
        model = SyntheticModel(config)
        chunks = [{0: observed(0.1 * n)} for n in range(12)]
        whole = run_stream(model, chunks, seed=3)
        first = ReferenceStream(model, seed=3)
        for chunk in chunks[:7]:
            first.run_chunk(chunk)
        second = ReferenceStream(model, seed=3)
        second.restore(first.snapshot())
        for at in range(7, 12):
            assert torch.equal(second.run_chunk(chunks[at], at)["action"], whole[at]["action"])


def test_a_rebuilt_window_is_full_and_depends_on_the_outputs() -> None:
    model = SyntheticModel(SyntheticConfig(steps=2, blocks=2, window_chunks=4))
    past = []
    stream = ReferenceStream(model, seed=3)
    for _ in range(6):
        stream.run_chunk({0: observed(1.0)})
        past.append(stream.clean)

    def first_after(latents: list[tuple[torch.Tensor, ...]]) -> torch.Tensor:
        one = ReferenceStream(model, seed=3, epoch=1)
        one.rebuild(latents)
        assert {int(kv["kept"]) for kv in one.snapshot().values()} == {len(latents)}
        return one.run_chunk({0: observed(1.0)})["action"]

    rebuilt = first_after(past[-4:])
    assert torch.equal(rebuilt, first_after(past[-4:]))
    assert not torch.equal(rebuilt, first_after(past[:4]))
    assert not torch.equal(rebuilt, first_after([]))
