"""Methods' requests to the model outside the decode loop."""

from __future__ import annotations

import pytest
import torch

from methods.ar import AR
from methods.fixed_layers import FixedLayers
from ssd_bench.engine.engine import SCRATCH, Engine
from ssd_bench.engine.probe import ModelProbe
from ssd_bench.engine.sampling import Decoding
from ssd_bench.errors import ConfigError
from ssd_bench.model import decoder as decoder_module
from tests.conftest import CONTEXT
from tests.lossless import Load
from tests.methods.test_knapspec import history
from tests.model.test_model import KERNELS


@pytest.mark.parametrize("n", [2, 60])
@pytest.mark.parametrize("rows", [16, 4096])
@pytest.mark.parametrize("kernels", KERNELS)
def test_predictions_are_those_of_the_whole_vocabulary(
    n: int, kernels: str, rows: int, decoders: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streams may be few or many, in several slices of the LM head or one."""
    monkeypatch.setattr(decoder_module, "HEAD_ROWS", rows)
    decoder = decoders("qwen2", torch.float32, kernels)
    states = torch.randn(3, n, decoder.arch.width, generator=torch.Generator().manual_seed(n))
    tokens, confidence = ModelProbe(decoder, decoder.new_cache(8)).predict_confident(states)
    whole = torch.stack([decoder.logits(some) for some in states])
    assert tokens.shape == confidence.shape == (3, n)
    assert torch.equal(tokens, whole.argmax(-1))
    assert torch.equal(tokens, ModelProbe(decoder, decoder.new_cache(8)).predict(states))
    torch.testing.assert_close(confidence, whole.softmax(-1).amax(-1))


@pytest.mark.parametrize("kernels", KERNELS)
def test_any_part_of_some_states_will_do(kernels: str, decoders: Load) -> None:
    """One column of [exits, n, d] has its rows n * d elements apart."""
    decoder = decoders("llama", torch.float32, kernels)
    probe, states = ModelProbe(decoder, decoder.new_cache(8)), torch.randn(3, 5, decoder.arch.width)
    ids = torch.tensor([4, 9])
    for part in (states[:, :1], states[:, 2:4], states.transpose(0, 1)):
        for ask in (
            probe.predict,
            lambda h: torch.stack(probe.predict_confident(h)),
            probe.logits,
            probe.final_norm,
            lambda h: probe.token_logits(h, ids),
        ):
            assert torch.equal(ask(part), ask(part.clone(memory_format=torch.contiguous_format)))


def test_equal_logits_give_the_lowest_token(decoders: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder_module, "HEAD_ROWS", 7)
    decoder = decoders("llama", torch.float32)
    states = torch.zeros(60, decoder.arch.width)
    assert decoder.predict(states).tolist() == [0] * 60


def test_a_trial_is_a_greedy_run_past_eos(decoders: Load) -> None:
    decoder = decoders("llama")
    cache = decoder.new_cache(CONTEXT)
    probe = ModelProbe(decoder, cache)
    engine = Engine(decoder, cache, Decoding(max_new_tokens=20), frozenset(), probe, CONTEXT - 20)
    expected = engine.generate(AR(), [5, 6, 7]).output[:9]
    method = FixedLayers(skip_attn=[1])
    method.check(decoder.arch.dims("tiny"))
    ending = Engine(decoder, cache, Decoding(max_new_tokens=20), frozenset(expected), probe, CONTEXT - 20)
    for each in (AR(), method):
        assert ending.probe.trial(each, [5, 6, 7], new_tokens=9).output == expected


def test_a_trial_ends_after_the_steps_asked_for(decoders: Load) -> None:
    decoder = decoders()
    probe = ModelProbe(decoder, decoder.new_cache(CONTEXT + SCRATCH))
    whole, part = (probe.trial(AR(), [5, 6, 7], 9, max_steps) for max_steps in (None, 4))
    assert (whole.finish_reason, len(whole.steps)) == ("length", 8)
    assert (part.finish_reason, len(part.steps)) == ("steps", 4) and part.output == whole.output[:5]


@pytest.mark.parametrize(
    ("prompt", "new_tokens", "said"),
    [
        ([], 4, r"probe\.trial prompt=\[\] .*at least one token id"),
        ("abc", 4, r"probe\.trial prompt='abc' .*at least one token id"),
        ([5, 10**6], 4, r"probe\.trial prompt=1000000 .*token ids in \[0, \d+\)"),
        ([5], 0, r"probe\.trial new_tokens=0 .*an integer >= 1"),
    ],
)
def test_a_trial_that_cannot_be_is_refused_by_its_name(
    prompt: list[int], new_tokens: int, said: str, decoders: Load
) -> None:
    decoder = decoders()
    with pytest.raises(ConfigError, match=said):
        ModelProbe(decoder, decoder.new_cache(CONTEXT + SCRATCH)).trial(AR(), prompt, new_tokens)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_sublayers_in_one_pass_are_those_one_after_the_other(family: str, decoders: Load) -> None:
    states, probe = history(decoders(family))
    before = states.clone()
    for sublayers in ((0, 1, 2, 3), (2, 5, 6), (7,), ()):
        stream = states[:1]
        for i in sublayers:
            stream = probe.apply_sublayer(i, stream, 11)
        assert torch.allclose(probe.run_sublayers(sublayers, states[0], 11), stream[0], atol=1e-5)
    assert torch.equal(states, before)
    with pytest.raises(ValueError, match="committed"):
        probe.run_sublayers((0,), states[0], 16)
    with pytest.raises(ValueError, match="free rows"):
        probe.run_sublayers((0,), states[0].repeat(40, 1), 11)
