"""The decoder against transformers and against itself: prefill, cached decode, trees, branches, skipping, placement."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest
import torch

from ssd_bench.errors import ConfigError
from ssd_bench.model.backend import select
from ssd_bench.model.checkpoint import Checkpoint
from ssd_bench.model.decoder import Decoder, Pass
from ssd_bench.model.rope import frequencies
from ssd_bench.model.weights import Architecture
from tests.conftest import FAMILIES, LAYERS, VOCAB
from tests.lossless import Load

KERNELS = ["torch", "native"]
TOLERANCE = 1e-4  # of a float32 logit


def tokens(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(VOCAB, (n,), generator=torch.Generator().manual_seed(seed))


def all_logits(decoder: Decoder, ids: torch.Tensor) -> torch.Tensor:
    """Logits at every position, from one forward without a cache prefix."""
    hidden, _ = decoder.run(Pass(decoder.all_sublayers, ids, 0), decoder.new_cache(len(ids)))
    return decoder.logits(hidden)


@pytest.mark.parametrize("kernels", KERNELS)
def test_chunked_prefill_equals_one_forward(kernels: str, decoders: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = decoders("qwen3", torch.float32, kernels)
    ids = tokens(100)
    whole = all_logits(decoder, ids)[-1]
    monkeypatch.setattr("ssd_bench.model.decoder.PREFILL_CHUNK", 33)
    last, _ = decoder.prefill(ids, decoder.new_cache(128))
    assert (decoder.logits(last)[0] - whole).abs().max() <= TOLERANCE


def test_the_end_of_a_prompt_is_tapped(decoders: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ssd_bench.model.decoder.PREFILL_CHUNK", 33)
    decoder, ids, taps = decoders("qwen3"), tokens(100), (0, 3, 2 * LAYERS)
    stream, whole = decoder.prefill(ids, decoder.new_cache(128), taps)
    assert whole is not None and whole.shape[1] == 100
    for last in (1, 32, 33, 34, 99, 100, 200):
        alone, end = decoder.prefill(ids, decoder.new_cache(128), taps, last)
        assert end is not None and torch.equal(end, whole[:, -last:]) and torch.equal(alone, stream), last


def test_taps_are_the_stream_at_each_boundary(decoders: Load) -> None:
    decoder = decoders()
    ids, taps = tokens(9), tuple(range(2 * LAYERS + 1))
    cache = decoder.new_cache(16)
    hidden, kept = decoder.run(Pass(decoder.all_sublayers, ids, 0, taps=taps), cache)
    assert kept is not None and torch.equal(kept[0], decoder.embed(ids)) and torch.equal(kept[-1], hidden)
    for i in range(2 * LAYERS):  # each boundary follows from the one before
        after, _ = decoder.run(Pass([i], kept[i].clone(), 0), cache)
        assert torch.allclose(after, kept[i + 1])


def test_branches_equal_separate_forwards(decoders: Load) -> None:
    """A branch gets what it gets alone; permuting or adding branches changes nothing, nor do they change the cache."""
    decoder = decoders("qwen3")
    streams = torch.randn(5, 4, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for prefix, i in product((0, 3, 20), range(2 * LAYERS)):
        cache, stream = decoder.new_cache(40), streams.clone()
        if prefix:
            decoder.prefill(tokens(prefix), cache)
        before = [keys.clone() for keys in cache.keys]
        together = decoder.run_branches(i, stream, cache, prefix)
        assert torch.equal(stream, streams) and all(map(torch.equal, before, cache.keys))
        for b in range(5):
            alone, _ = decoder.run(Pass([i], streams[b].clone(), prefix), cache)
            assert torch.allclose(together[b], alone)
        order = torch.tensor([3, 0, 4])
        assert torch.allclose(decoder.run_branches(i, streams[order], cache, prefix), together[order])


def test_scratch_rows_away_from_a_shorter_prefix(decoders: Load) -> None:
    """Nodes may see a prefix that ends before the committed length (match scores over a past window)."""
    decoder = decoders()
    ids = tokens(20)
    cache = decoder.new_cache(64)
    decoder.prefill(ids, cache)
    hidden, _ = decoder.run(Pass(decoder.all_sublayers, ids[8:13], 8, row=cache.length), cache)
    assert torch.allclose(decoder.logits(hidden), all_logits(decoder, ids)[8:13])


def test_blocks_spread_over_devices(checkpoints: dict[str, Path], decoders: Load) -> None:
    devices = [torch.device("cpu"), torch.device("cpu", 0)]
    spread = select("cpu", torch.float64, "torch").load(Checkpoint(checkpoints["qwen3"]), torch.float64, devices)
    assert len(spread.weights.blocks) == LAYERS
    ids = tokens(12)
    assert torch.equal(all_logits(spread, ids), all_logits(decoders("qwen3"), ids))


def test_rotary_base_of_old_and_new_checkpoints(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    """rope_theta at the top level (transformers 4) and in rope_parameters (5) give the same frequencies."""
    source = checkpoints["llama3_rope"]
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    rope = config.pop("rope_parameters")
    config |= {"rope_theta": rope.pop("rope_theta"), "rope_scaling": rope}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    got, expected = (frequencies(Checkpoint(folder).config)[0] for folder in (tmp_path, source))
    assert torch.equal(got, expected) and not torch.allclose(got[1:], 1e4 ** (-torch.arange(2, 8, 2) / 8))


def test_other_kinds_of_layers_are_refused() -> None:
    config = FAMILIES["qwen2"]()
    config.__dict__["layer_types"] = ["full_attention"] * 3 + ["sliding_attention"]  # past transformers' own checks
    with pytest.raises(ConfigError, match="layer_types"):
        Architecture.of(config)
