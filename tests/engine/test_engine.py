"""The decode loop: lossless for any layer set and tree, length and EOS rules, distribution under sampling; and the
audit of outputs: identical, a tie within rounding, or a bug.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from methods.ar import AR
from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.contract.method import Context, LayerDraft
from ssd_bench.contract.tree import TokenTree, comb
from ssd_bench.engine.engine import SCRATCH
from ssd_bench.engine.lossless import LOGIT_TOLERANCE, Verdict, classify, tolerance
from ssd_bench.engine.sampling import LOWEST_TEMPERATURE, Decoding, verify_greedy, verify_sampled, warp
from ssd_bench.errors import ConfigError
from tests.conftest import LAYERS, VOCAB
from tests.lossless import FAMILIES, Drafting, Load, check_greedy, check_sampled, decode, engine_for, loaded

NO_EOS: frozenset[int] = frozenset()
FULL = LayerSet.full(LAYERS)


def drafts(
    layer_set: LayerSet = FULL, max_len: int = 5, stop_below: float = 0.0, widths: tuple[tuple[float, int], ...] = ()
) -> Drafting:
    return Drafting(LayerDraft(layer_set, max_len, stop_below, widths))


class RandomTrees(AR):
    """Verifies random trees, some of whose nodes hold AR's tokens, so that paths of all lengths are accepted."""

    def __init__(self, answer: Sequence[int], seed: int):
        super().__init__("trees")
        self.answer, self.rng = answer, random.Random(seed)

    def propose(self, context: Context) -> TokenTree:
        done, n = len(context.output), self.rng.randint(1, 9)
        parents = [-1] + [self.rng.randrange(i) for i in range(1, n)]
        tree = TokenTree((context.output[-1],) * n, tuple(parents))
        tokens, taken = [context.output[-1]], set()
        for i in range(1, n):
            right = self.answer[done + tree.depths[i] - 1 : done + tree.depths[i]]
            token = right[0] if right and self.rng.random() < 0.7 else self.rng.randrange(VOCAB)
            while (parents[i], token) in taken:
                token = self.rng.randrange(VOCAB)
            taken.add((parents[i], token))
            tokens.append(token)
        return TokenTree(tuple(tokens), tuple(parents))


def random_prompt(seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(VOCAB) for _ in range(rng.choice([1, 2, 7, 30]))]


@pytest.mark.parametrize("reuse", [False, True])
def test_greedy_output_equals_ar(reuse: bool, decoders: Load) -> None:
    """Any layer set (none to all skipped), γ and exit."""

    def make(rng: random.Random) -> Drafting:
        share = rng.choice([0.0, 0.2, 0.5, 1.0])
        layer_set = LayerSet(LAYERS, frozenset(i for i in range(2 * LAYERS) if rng.random() < share))
        draft = LayerDraft(layer_set, rng.randint(1, 9), rng.choice([0.0, 0.1, 0.9]))
        return Drafting(draft, reuse_prefix=reuse)

    assert check_greedy(make, decoders, cases=100) > 60


def test_random_trees_equal_ar(decoders: Load) -> None:
    deepest = 0
    for seed in range(60):
        decoder, prompt = loaded(decoders, FAMILIES[seed % 3], seed % 5 > 0), random_prompt(seed)
        expected = decode(decoder, AR(), prompt, 24).output
        got = decode(decoder, RandomTrees(expected, seed), prompt, 24)
        assert got.output == expected
        deepest = max(deepest, *(step.accepted_len for step in got.steps))
    assert deepest >= 3


@pytest.mark.parametrize("options", [{}, {"mode": "sample", "temperature": 0.7}])
@pytest.mark.parametrize(
    ("stop_below", "widths"), [(0.0, ()), (1e-9, ()), (0.0, ((0.9, 1), (0.1, 3), (0.0, 9))), (1e-9, ((0.5, 2),))]
)
def test_drafting_waits_for_the_device_once_a_token(
    stop_below: float, widths: tuple, options: dict, decoders: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts all ways in which the host reads a tensor; on a GPU each is a stop."""
    reads, drafted = [], []
    engine = engine_for(decoders("llama", torch.float32), 40, 30, NO_EOS, **options)
    engine._drafter._asynchronous = True  # as it does for a GPU; on a CPU nothing is gained by it
    draft = engine._drafter.draft

    def watched(*arguments: object) -> object:
        with monkeypatch.context() as patch:
            for name in ("item", "tolist", "numpy", "cpu", "nonzero", "__bool__", "__int__", "__float__", "__index__"):
                original = getattr(torch.Tensor, name)
                patch.setattr(torch.Tensor, name, lambda *a, f=original, n=name: (reads.append(n), f(*a))[1])
            made = draft(*arguments)
        drafted.append(made.tree.draft_len)
        return made

    monkeypatch.setattr(engine._drafter, "draft", watched)
    layer_set = LayerSet.skipping(LAYERS, attn=[1], mlp=[2])
    engine.generate(drafts(layer_set, 5, stop_below, widths=widths), [3, 1, 4])
    assert sum(drafted) > 10 and len(reads) == sum(drafted)


def test_committed_cache_equals_recomputed_cache(decoders: Load) -> None:
    decoder, prompt = decoders(), [3, 1, 4, 1, 5]
    expected = decode(decoder, AR(), prompt, 40).output
    engine = engine_for(decoder, 45, 40, NO_EOS)
    output = engine.generate(RandomTrees(expected, 1), prompt).output
    fresh = decoder.new_cache(45 + SCRATCH)
    decoder.prefill(torch.tensor(prompt + output[:-1]), fresh)
    length = fresh.length
    assert engine.cache.length == length
    for ours, new in zip(engine.cache.keys + engine.cache.values, fresh.keys + fresh.values):
        assert torch.allclose(ours[:, :length], new[:, :length])


def test_full_set_accepts_everything(decoders: Load) -> None:
    made = decode(decoders(), drafts(FULL, 4), [7, 8, 9], 31)
    assert all(step.accepted_len == step.draft_len for step in made.steps)
    assert [step.emitted for step in made.steps] == [5] * 6


def test_length_limit_inside_a_draft(decoders: Load) -> None:
    """Drafts have at most max_new - emitted - 1 tokens; 0 is a plain forward."""
    for new in range(1, 12):
        made = decode(decoders(), drafts(FULL, 4), [7, 8, 9], new)
        assert len(made.output) == new and made.finish_reason == "length"
        emitted = 1
        for step in made.steps:
            assert step.draft_len <= new - emitted - 1
            emitted += step.emitted
    last = decode(decoders(), drafts(FULL, 4), [7, 8, 9], 7).steps[-1]
    assert (last.draft_len, last.tree_nodes, last.emitted, last.stop_reason) == (0, 1, 1, "budget")


def test_eos_ends_output_and_draft(decoders: Load) -> None:
    """The output ends at the first EOS, drafting right after a drafted one; counts leave out the rest."""
    decoder, prompt = decoders(), [5, 6]
    plain = decode(decoder, AR(), prompt, 30).output
    for token in set(plain):
        eos = frozenset([token])
        made = decode(decoder, drafts(FULL, 6), prompt, 30, eos)
        assert made.output == plain[: plain.index(token) + 1] and made.finish_reason == "eos"
        assert 1 + sum(step.emitted for step in made.steps) == len(made.output)
        assert all(step.accepted_len <= step.emitted for step in made.steps)
        if made.steps and made.steps[-1].stop_reason == "eos":
            # the drafted EOS is last: no bonus token after it
            assert made.steps[-1].emitted == made.steps[-1].draft_len


def test_context_end_stops_without_overrun(decoders: Load) -> None:
    expected, made = (decode(decoders(), method, [5, 6, 7], 50, spare=17) for method in (AR(), drafts(FULL, 6)))
    assert made.output == expected.output and made.finish_reason == expected.finish_reason == "context"
    assert 3 + len(made.output) == 20 + 1  # the last token needs no row


def test_confidence_exit_keeps_the_doubtful_token(decoders: Load) -> None:
    made = decode(decoders(), drafts(FULL, 9, stop_below=1.0), [5, 6, 7], 12)
    assert [step.draft_len for step in made.steps[:-1]] == [1] * (len(made.steps) - 1)
    assert made.steps[0].stop_reason == "confidence" and made.steps[0].accepted_len == 1


# ---- sampling


def test_warp_by_hand() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    weights = (logits / 0.5).softmax(-1)
    assert torch.allclose(warp(logits, Decoding("sample", temperature=0.5)), weights)
    top2 = weights * torch.tensor([1.0, 1, 0, 0])
    assert torch.allclose(warp(logits, Decoding("sample", temperature=0.5, top_k=2)), top2 / top2.sum())
    assert torch.allclose(warp(logits, Decoding("sample", temperature=0.5, top_p=0.9)), top2 / top2.sum())
    assert warp(logits, Decoding("sample", top_p=1e-9)).tolist() == [[1, 0, 0, 0]]
    ties = torch.zeros(1, 4)
    assert warp(ties, Decoding("sample", top_k=2)).tolist() == [[0.5, 0.5, 0, 0]]


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])  # of logits; those of models are below 1e5
@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"top_p": 1e-300}, 1),
        ({"top_k": 1}, 1),
        ({"temperature": LOWEST_TEMPERATURE, "top_p": 1e-300}, 1),
        ({"temperature": 1e300, "top_k": 1}, 1),
        ({"temperature": LOWEST_TEMPERATURE}, None),
        ({"temperature": 1e300, "top_k": 2**63 - 1}, 4),
        ({"top_p": 1 - 1e-16, "top_k": 2}, None),
    ],
)
def test_warp_at_its_limits(settings: dict[str, float], kept: int | None, scale: float) -> None:
    """Some of these are 0 or infinite in float32."""
    probs = warp(scale * torch.tensor([[2.0, 1.0, 0.0, -1.0]]), Decoding("sample", **settings))  # type: ignore[arg-type]
    assert probs.isfinite().all() and torch.allclose(probs.sum(), torch.tensor(1.0)) and probs[0, 0] == probs.max()
    assert kept is None or int((probs > 0).sum()) == kept


def test_greedy_verification_of_a_tree_by_hand() -> None:
    tree = TokenTree((9, 1, 2, 3, 4), (-1, 0, 0, 2, 3))
    assert verify_greedy(tree, [2, 0, 3, 8, 0]) == ([0, 2, 3], 8)
    assert verify_greedy(tree, [7, 0, 3, 8, 0]) == ([0], 7)


@pytest.mark.parametrize("kind", ["chain", "siblings", "deterministic"])
@pytest.mark.parametrize("decoding", [Decoding("sample"), Decoding("sample", temperature=0.6, top_p=0.95)])
def test_speculative_sampling_keeps_the_distribution(kind: str, decoding: Decoding) -> None:
    """First, second (after an accepted one) and bonus token follow the target, by chi-square."""
    generator = torch.Generator().manual_seed(11)
    vocab, rounds = 6, 2000
    logits = 0.6 * torch.randn(vocab, vocab, generator=generator)  # row t: logits after token t, a Markov chain
    p = warp(logits, decoding)
    q = warp(logits + 0.6 * torch.randn(vocab, vocab, generator=generator), decoding)
    counts = torch.zeros(3, vocab, vocab)  # by place, previous token, token
    for _ in range(rounds):
        tree = _drafted(kind, q, generator)
        path, bonus = verify_sampled(tree, p[list(tree.tokens)], generator)
        emitted = [tree.tokens[node] for node in path] + [bonus]
        for place in range(len(emitted) - 1):
            counts[min(place, 2), emitted[place], emitted[place + 1]] += 1
    tested = [0, 0, 0]
    for place in range(3):
        for previous in range(vocab):
            seen, allowed = counts[place, previous], p[previous] > 0
            assert seen[~allowed].sum() == 0
            if seen.sum() >= 100:
                tested[place] += 1
                expected = p[previous][allowed].double()
                expected *= seen.sum() / expected.sum()
                assert chisquare(seen[allowed].double().numpy(), expected.numpy()).pvalue > 1e-4
    assert all(tested[: 2 if kind == "deterministic" else 3]) and sum(tested) >= 8


def _drafted(kind: str, q: torch.Tensor, generator: torch.Generator) -> TokenTree:
    """A draft of depth 2 from a random root: a chain, two siblings per node, or fixed candidates."""
    root = int(torch.randint(len(q), (1,), generator=generator))
    if kind == "deterministic":
        return TokenTree((root, 1, 2, 3), (-1, 0, 1, 0))
    width = 2 if kind == "siblings" else 1
    tokens, parents, level = [root], [-1], [0]
    for _ in range(2):
        nodes = []
        for node in level:
            n = min(width, int((q[tokens[node]] > 0).sum()))
            for token in torch.multinomial(q[tokens[node]], n, replacement=False, generator=generator).tolist():
                nodes.append(len(tokens))
                tokens.append(token)
                parents.append(node)
        level = nodes
    return TokenTree(tuple(tokens), tuple(parents), q[tokens])


WIDE = ((0.5, 2), (0.2, 3), (0.0, 5))


@pytest.mark.parametrize(("position", "widths"), [(2, ()), (3, WIDE)])  # the first after a draft is the third
def test_sampled_decoding_keeps_the_models_distribution(position: int, widths: tuple, decoders: Load) -> None:
    skip = LayerSet.skipping(LAYERS, attn=[1], mlp=[2])
    check_sampled(lambda: drafts(skip, 2, widths=widths), decoders, position=position)


def test_siblings_keep_greedy_output_and_are_accepted(decoders: Load) -> None:
    def make(rng: random.Random) -> Drafting:
        skipped = frozenset(i for i in range(2 * LAYERS) if rng.random() < 0.5)
        bounds = sorted((rng.random() for _ in range(3)), reverse=True)
        widths = tuple((bound, rng.randint(1, 12)) for bound in bounds)
        return drafts(LayerSet(LAYERS, skipped), rng.randint(1, 9), rng.choice([0.0, 0.05]), widths=widths)

    with_siblings = check_greedy(make, decoders, cases=60)
    decoder = decoders()
    skip = LayerSet(LAYERS, frozenset(range(2, 7)))
    wide = decode(decoder, drafts(skip, 4, widths=((0.0, 8),)), [4, 5], 30)
    assert with_siblings > 20 and max(step.tree_nodes for step in wide.steps) == 1 + 4 * 8
    narrow = decode(decoder, drafts(skip, 4), [4, 5], 30)
    assert wide.output == narrow.output and len(wide.steps) <= len(narrow.steps)


def test_a_comb_by_hand() -> None:
    tree = comb([[7], [1, 2], [3]], [torch.tensor([1.0]), torch.tensor([2.0])])
    assert tree.tokens == (7, 1, 2, 3) and tree.parents == (-1, 0, 0, 1)
    assert tree.draft_probs is not None and tree.draft_probs[:, 0].tolist() == [1.0, 2.0]


def test_a_seed_fixes_a_sampled_output(decoders: Load) -> None:
    options = {"mode": "sample"}
    method = drafts(LayerSet.skipping(LAYERS, attn=[1]))
    outputs = [decode(decoders(), method, [4, 5], 20, seed=s, **options).output for s in (1, 1, 2)]
    assert outputs[0] == outputs[1] != outputs[2]


def test_trees_larger_than_the_scratch_are_cut(decoders: Load) -> None:
    class Wide(AR):
        def propose(self, context: Context) -> TokenTree:
            return TokenTree((context.output[-1], *(i % VOCAB for i in range(300))), (-1,) + (0,) * 300)

    expected = decode(decoders(), AR(), [4, 5], 6).output
    made = decode(decoders(), Wide(), [4, 5], 6)
    assert made.output == expected and made.steps[0].tree_nodes <= 2 + 6 + SCRATCH


# ---- the audit


IDS = st.lists(st.integers(0, 3), max_size=8)


def gap(value: float, at: list[int]) -> Callable[[int], float]:
    return lambda position: at.append(position) or value  # type: ignore[func-returns-value]


@given(IDS, IDS, st.floats(0, 1), st.floats(0, 1))
def test_the_first_difference_decides(ids: list[int], other: list[int], logit_gap: float, limit: float) -> None:
    asked: list[int] = []
    verdict = classify(ids, other, gap(logit_gap, asked), limit)
    differing = [i for i, (a, b) in enumerate(zip(ids, other, strict=False)) if a != b]
    if differing:
        expected = "tie" if logit_gap <= limit else "bug"
        assert verdict == Verdict(differing[0], logit_gap, expected)
        assert asked == differing[:1]
    else:  # stopping early or late is a bug even where logits tie
        bug = Verdict(min(len(ids), len(other)), None, "bug")
        assert verdict == (bug if len(ids) != len(other) else Verdict(None, None, "identical"))
        assert not asked


def test_a_nan_gap_is_no_tie() -> None:
    assert classify([1], [2], lambda _: math.nan, math.inf).verdict == "bug"


def test_tolerances_follow_precision_and_unknown_arithmetic_is_refused() -> None:
    """More rounding, of activations, inputs or the cache, may turn over a larger gap."""
    f64, f32, f16, b16 = "float64", "float32", "float16", "bfloat16"
    ordered = [(f64, f64, f64), (f32, f32, f32), (f32, f32, f16), (f32, f32, b16), (f32, b16, b16), (b16, b16, b16)]
    assert [tolerance(*kinds) for kinds in ordered] == sorted(tolerance(*kinds) for kinds in ordered)
    assert set(LOGIT_TOLERANCE) == {*ordered, (f16, f16, f16)}
    with pytest.raises(ConfigError, match="int8"):
        tolerance("float32", "float32", "int8")
