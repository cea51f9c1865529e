"""LayerSkip: a fixed exit and length, verification on the drafts' states, the ends of outputs, losslessness."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from hydra.utils import instantiate

from methods.ar import AR
from methods.layerskip import LayerSkip
from ssd_bench.core.layer_set import LayerSet
from ssd_bench.core.method import Estimate, LayerDraft, Probe, Verification
from ssd_bench.errors import ConfigError
from ssd_bench.model.decoder import Decoder
from ssd_bench.model.shape import ModelDims
from tests.conftest import LAYERS
from tests.lossless import DIMS, check_greedy, check_sampled, decode
from tests.runs import config

Load = Callable[..., Decoder]
PROMPT = [5, 6, 7]


class Watched(LayerSkip):
    """LayerSkip that keeps every step's verification."""

    def observe(self, verification: Verification, probe: Probe) -> Estimate | None:
        self.seen = [*getattr(self, "seen", []), verification]
        return super().observe(verification, probe)


def preset(*options: str) -> LayerSkip:
    return instantiate(config("layerskip", *options))


def drafts(method: LayerSkip, n_layers: int) -> LayerDraft:
    method.check(ModelDims("some", n_layers, 7 * 10**9, 4096, 32000))
    return method.propose(None)  # type: ignore[arg-type]


def test_preset_is_the_readme_example() -> None:
    method = preset()
    draft = drafts(method, 32)
    assert (method.name, method.reuse_prefix) == ("layerskip", True)
    assert draft.layer_set.kept == tuple(range(16)) and (draft.max_len, draft.stop_below) == (6, 0.0)


@pytest.mark.parametrize(
    ("options", "exits"),
    [((), {1: 1, 2: 1, 4: 1, 16: 4, 30: 8, 32: 8, 40: 10, 80: 20}), (("method.exit_ratio=0.2",), {2: 1, 16: 3, 40: 8}),
     (("method.exit_ratio=1",), {1: 1, 16: 16}), (("method.exit_ratio=1e-9",), {1: 1, 80: 1}),
     (("method.exit_layer=8",), {8: 8, 16: 8, 40: 8}), (("method.exit_layer=3", "method.exit_ratio=null"), {80: 3})],
)  # fmt: skip
def test_the_exit_by_share_or_by_number(options: tuple[str, ...], exits: dict[int, int]) -> None:
    method = preset(*options)
    for n_layers, blocks in exits.items():
        assert drafts(method, n_layers).layer_set == LayerSet.exit(n_layers, blocks)


def test_the_exit_is_given_once() -> None:
    with pytest.raises(ConfigError, match=r"method\.exit_ratio=0\.25 .*null, since .*exit_layer=8"):
        LayerSkip(exit_layer=8, exit_ratio=0.25)


def test_greedy_equals_ar_with_any_settings(decoders: Load) -> None:
    def make(rng: random.Random) -> LayerSkip:
        exits = rng.choice([{"exit_layer": rng.randint(1, LAYERS)}, {"exit_ratio": rng.uniform(0.01, 1)}, {}])
        return LayerSkip(draft_len=rng.randint(1, 8), reuse_prefix=rng.random() < 0.7, **exits)  # type: ignore[arg-type]

    assert check_greedy(make, decoders) > 200


def test_samples_are_distributed_as_ar_s(decoders: Load) -> None:
    check_sampled(lambda: LayerSkip(exit_layer=2, draft_len=2), decoders)


def test_the_last_exit_is_the_model_itself(decoders: Load, rests: list[int]) -> None:
    """E = L: every draft is accepted (α = 1); all blocks draft, so there is no rest to verify on saved states."""
    made = decode(decoders(), LayerSkip(exit_layer=LAYERS, draft_len=3), PROMPT, 24)
    assert made.output == decode(decoders(), AR(), PROMPT, 24).output
    assert all(step.accepted_len == step.draft_len for step in made.steps)
    assert [step.draft_len for step in made.steps[:-1]] == [3] * (len(made.steps) - 1) and not rests


@pytest.mark.parametrize("exit_layer", range(1, LAYERS))
def test_saved_states_verify_as_a_whole_pass_does(exit_layer: int, decoders: Load, rests: list[int]) -> None:
    """Reuse on or off: the same tokens, and the same logits at every node (float32)."""
    decoder = decoders("qwen3", torch.float32)
    outputs, logits = [], []
    for reuse in (True, False):
        method = Watched(exit_layer=exit_layer, draft_len=4, reuse_prefix=reuse)
        outputs.append(decode(decoder, method, PROMPT, 30).output)
        logits.append([seen.logits for seen in method.seen])
        steps = sum(len(seen.tree) > 1 for seen in method.seen)
        assert rests == [2 * exit_layer] * steps  # each step with a draft, and none of the run without reuse
    assert outputs[0] == outputs[1]
    for saved, whole in zip(*logits):
        torch.testing.assert_close(saved, whole, atol=1e-4, rtol=1e-4)


def test_no_room_for_a_draft(decoders: Load) -> None:
    """d' = 0 where one token is left: a plain pass of the root, which α does not count; nothing left: no step."""
    only = decode(decoders(), LayerSkip(exit_layer=2), PROMPT, 2)
    assert [(s.draft_len, s.tree_nodes, s.emitted, s.stop_reason) for s in only.steps] == [(0, 1, 1, "budget")]
    assert only.output == decode(decoders(), AR(), PROMPT, 2).output
    assert decode(decoders(), LayerSkip(exit_layer=2), PROMPT, 1).steps == []


def test_cache_holds_all_tokens_but_the_root_after_every_step(decoders: Load) -> None:
    method = Watched(exit_layer=2, draft_len=4)
    made = decode(decoders(), method, PROMPT, 30)
    emitted = 1
    for seen in method.seen:
        emitted += len(seen.emitted)
        assert seen.length == len(PROMPT) + emitted - 1 or seen is method.seen[-1]
    assert emitted == len(made.output)


@pytest.mark.parametrize("exit_layer", range(1, LAYERS + 1))
def test_eos_drafted_first_ends_the_draft(exit_layer: int, decoders: Load) -> None:
    """Nothing is drafted after it; accepted it ends the output, rejected it leaves no trace."""
    method = Watched(exit_layer=exit_layer, draft_len=4)
    decode(decoders(), method, PROMPT, 12)
    drafted = method.seen[0].tree.tokens[1]
    eos = frozenset([drafted])
    made = decode(decoders(), LayerSkip(exit_layer=exit_layer, draft_len=4), PROMPT, 12, eos)
    expected = decode(decoders(), AR(), PROMPT, 12, eos)
    assert (made.output, made.finish_reason) == (expected.output, expected.finish_reason)
    if made.steps:  # none where the prompt's own token is EOS
        assert (made.steps[0].draft_len, made.steps[0].stop_reason) == (1, "eos")
    if exit_layer == LAYERS:
        assert made.steps[0].accepted_len == 1 and made.output[1:] == [drafted] and made.finish_reason == "eos"


def test_an_exit_after_more_blocks_than_there_are_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"method\.exit_layer"):
        LayerSkip(exit_layer=LAYERS + 1).check(DIMS)
