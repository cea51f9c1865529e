"""Lookahead: its tree against the card's masks and positions, its steps against a slow reference, losslessness."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from itertools import product

import pytest
import torch

from methods.ar import AR
from methods.lookahead import Lookahead, Pool, trim_window, window_tree
from ssd_bench.contract.generation import Estimate, Generation
from ssd_bench.contract.method import Context, Prefill, Probe, Verification
from ssd_bench.contract.tree import TokenTree
from ssd_bench.engine.engine import SCRATCH
from ssd_bench.engine.sampling import verify_greedy
from ssd_bench.model.decoder import Decoder
from tests.conftest import VOCAB
from tests.lossless import FAMILIES, Load, check_greedy, check_sampled, decode, likes_zero, loaded, method_of

PRESETS = ("lookahead", "lookahead_7b", "lookahead_13b", "lookahead_specbench")
PROMPT = [5, 6, 7, 8, 9]


class Watched(Lookahead):
    """Keeps proposals, verifications and the pool after every step."""

    def start(self, prefill: Prefill) -> None:
        super().start(prefill)
        self.pools: list[dict[int, list[tuple[int, ...]]]] = []
        self.emitted: list[list[int]] = []

    def propose(self, context: Context) -> TokenTree:
        self.proposed = super().propose(context)
        return self.proposed

    def observe(self, verification: Verification, probe: Probe) -> Estimate | None:
        assert verification.tree is self.proposed  # the engine had nothing to trim
        assert verification.path[-1] < self.proposed.n_candidates
        super().observe(verification, probe)
        self.pools.append({key: list(grams) for key, grams in self._pool._grams.items()})
        self.emitted.append(list(verification.emitted))
        return None


def random_lookahead(rng: random.Random) -> Lookahead:
    return Watched(
        window=rng.randint(1, 8),
        ngram=rng.randint(3, 6),
        guesses=rng.randint(0, 6),
        cap=rng.choice(["code", "full"]),
        pool_from_prompt=rng.random() < 0.5,
        keep_out=[rng.randrange(VOCAB)] * (rng.random() < 0.3),
        seed=rng.randrange(10**6),
    )


def test_mask_and_positions() -> None:
    """W = 5, N = 4, G = 2, against the rules: what each node sees, and its position after the root."""
    W, N, G = 5, 4, 2
    rows = [[100 * row + j for j in range(W - (row == 0))] for row in range(N - 1)]
    tree = window_tree(7, [(41, 42, 43), (51, 52, 53)], rows)
    names: list[tuple] = [("root",), *(("g", k, i) for k in range(G) for i in range(N - 1))]
    names += [("R", row, j) for row in range(N - 1) for j in range(len(rows[row]))]
    assert len(tree) == len(names) == W * (N - 1) + G * (N - 1)
    root = {("root",)}
    for name, tokens_seen, depth in zip(names, tree.mask().tolist(), tree.depths):
        if name == ("root",):
            sees, position = root, 0
        elif name[0] == "g":
            _, k, i = name
            sees, position = root | {("g", k, x) for x in range(i + 1)}, 1 + i
        elif name[1] == 0:
            j = name[2]
            sees, position = root | {("R", 0, x) for x in range(j + 1)}, 1 + j
        else:
            _, row, j = name
            sees = root | {("R", 0, x) for x in range(j)} | {("R", x, j) for x in range(1, row + 1)}
            position = row + j
        assert {other for other, seen in zip(names, tokens_seen) if seen} == sees
        assert depth == position
    assert tree.tokens == (7, 41, 42, 43, 51, 52, 53, *rows[0], *rows[1], *rows[2])


def test_window_nodes_are_no_candidates() -> None:
    """The window begins like a guess and goes on as AR would; the walk keeps to the n-grams."""
    tree = window_tree(1, [(2, 3), (2, 4, 5)], [[2, 9], [2, 9, 9], [9, 9, 9]])
    assert tree.tokens[: tree.n_candidates] == (1, 2, 3, 4, 5) and tree.parents[: tree.n_candidates] == (-1, 0, 1, 1, 3)
    assert all(child < tree.n_candidates for nodes in tree.children for child in nodes)
    assert all(len({tree.tokens[c] for c in nodes}) == len(nodes) for nodes in tree.children)
    predicted = dict(enumerate([2, 4, 9, 5, 6]))
    assert verify_greedy(tree, [predicted.get(node, 9) for node in range(len(tree))]) == ([0, 1, 3, 4], 6)
    assert verify_greedy(tree, [9] * len(tree)) == ([0], 9)


def test_lru_pool() -> None:
    pool = Pool(2)
    for gram in ((1, 1), (2, 2), (1, 1), (3, 3)):  # the second (1, 1) renews it, so (2, 2) goes
        pool.enter(7, gram)
    pool.enter(8, (1, 1))
    assert list(pool.ngrams(7)) == [(1, 1), (3, 3)] and list(pool.ngrams(8)) == [(1, 1)] and not pool.ngrams(9)
    empty = Pool(0)
    empty.enter(7, (1, 1))
    assert not empty._grams


class Reference:
    """The card step by step, one prefill per prediction of the token after a text."""

    def __init__(self, decoder: Decoder, W: int, N: int, G: int, cap: int, prompt: Sequence[int]):
        self.decoder, self.cache, self.W, self.N, self.G, self.cap = decoder, decoder.new_cache(256), W, N, G, cap
        self.text, self.known = list(prompt), {}
        rng = random.Random(10)
        self.rows = [[rng.choice(prompt) for _ in range(W + N - 3)]]
        self.pool: dict[int, list[tuple[int, ...]]] = {}
        self.text.append(self.next([]))

    def next(self, beyond: list[int]) -> int:
        """The token after the text so far and `beyond`."""
        key = (*self.text, *beyond)
        if key not in self.known:
            with torch.inference_mode():
                last, _ = self.decoder.prefill(torch.tensor(key), self.cache)
                self.known[key] = int(self.decoder.logits(last)[0].argmax())
        return self.known[key]

    def newest(self) -> list[int]:
        """Argmax at every node of the newest row, which sees C_1 .. C_j and its column."""
        if len(self.rows) == 1:
            return [self.next(self.rows[0][: j + 1]) for j in range(len(self.rows[0]))]
        return [self.next(self.rows[0][:j] + [row[j] for row in self.rows[1:]]) for j in range(len(self.rows[-1]))]

    def step(self) -> list[int]:
        """One pass; its emitted tokens."""
        new, emitted = self.newest(), [self.next([])]
        if len(self.rows) < self.N - 1:
            first = len(self.rows) == 1
            self.rows = [row[1:] for row in self.rows] + [new if first else new[1:]]
        else:
            root, longest = self.text[-1], 0
            for guess in self.pool.get(root, []):
                correct = [self.next(list(guess[:i])) for i in range(len(guess) + 1)]
                m = next((i for i in range(len(guess)) if guess[i] != correct[i]), len(guess))
                if min(m, self.cap) > longest:
                    longest = min(m, self.cap)
                    emitted = correct[: longest + 1]
            for j, key in enumerate([root] + self.rows[0]):
                gram, grams = (*(row[j] for row in self.rows[1:]), new[j]), self.pool.setdefault(key, [])
                if gram in grams:
                    grams.remove(gram)
                grams.append(gram)
                self.pool[key] = grams[-self.G :]
            self.rows = [self.rows[1][1:], *self.rows[2:], new]
        self.text += emitted
        return emitted


@pytest.mark.parametrize(
    ("W", "N", "G", "cap"), [(4, 4, 2, "code"), (4, 4, 2, "full"), (1, 3, 1, "full"), (3, 5, 3, "code")]
)
def test_steps_and_pool_are_the_cards(W: int, N: int, G: int, cap: str, decoders: Load) -> None:
    decoder = likes_zero(loaded(decoders, "qwen2", compiled=True))
    method = Watched(window=W, ngram=N, guesses=G, cap=cap)
    decode(decoder, method, PROMPT, 60)
    reference = Reference(decoder, W, N, G, N - 1 if cap == "full" else N - 2, PROMPT)
    steps = 0
    while len(reference.text) - len(PROMPT) + W + N - 2 <= 60:  # while no column reaches beyond the length limit
        assert method.emitted[steps] == reference.step(), f"step {steps + 1}"
        assert method.pools[steps] == reference.pool, f"step {steps + 1}"
        steps += 1
    assert steps > 8 and any(len(emitted) > 1 for emitted in method.emitted[:steps])


def test_presets_are_lossless(decoders: Load) -> None:
    """50 random cases of the presets' W, N, G, with random other switches."""

    def make(rng: random.Random) -> Lookahead:
        switches = {"cap": rng.choice(["code", "full"]), "pool_from_prompt": rng.random() < 0.3}
        return method_of(rng.choice(PRESETS), seed=rng.randrange(99), **switches)

    assert check_greedy(make, decoders) > 3


def test_any_settings_are_lossless(decoders: Load) -> None:
    """50 random cases; the engine trims no tree, and accepts nothing of the window."""
    assert check_greedy(random_lookahead, decoders) > 12


class Primed(Lookahead):
    """Has n-grams of given tokens for every root, so that sampling walks branching guesses."""

    accepted = 0

    def __init__(self, likely: Sequence[int]):
        super().__init__(window=3, ngram=3, guesses=6, cap="full")
        self.likely = likely

    def start(self, prefill: Prefill) -> None:
        super().start(prefill)
        for key, first, second in product(range(VOCAB), self.likely, self.likely[:2]):
            self._pool.enter(key, (first, second))

    def observe(self, verification: Verification, probe: Probe) -> Estimate | None:
        self.accepted += len(verification.path) - 1
        return super().observe(verification, probe)


def test_sampled_distribution_is_ars(decoder: Decoder, decoders: Load) -> None:
    """Six n-grams a step of three first tokens: rejected siblings, accepted ones, and what follows."""
    sampled = {"mode": "sample", "temperature": 0.6, "top_p": 0.95}
    outputs = [decode(decoder, AR(), [4, 5], 5, seed=seed, **sampled).output[2:] for seed in range(30)]
    likely = [token for token, _ in Counter(token for output in outputs for token in output).most_common(3)]
    method = Primed(likely)
    check_sampled(lambda: method, decoders, position=4)
    assert method.accepted > 50


def traced(decoder: Decoder, method: Lookahead, new: int = 60) -> list[tuple[int, int]]:
    """(nodes, tokens emitted) of every step."""
    return [(step.tree_nodes, step.emitted) for step in decode(decoder, method, PROMPT, new).steps]


def test_no_guesses_is_ar_with_a_window(decoder: Decoder) -> None:
    """G = 0: one token a pass even if the window holds the right ones, W(N-1) nodes, fewer at the end."""
    decoder, W, N = likes_zero(decoder), 6, 4
    method = Watched(window=W, ngram=N, guesses=0)
    made, ar = decode(decoder, method, PROMPT, 60), decode(decoder, AR(), PROMPT, 60)
    assert made.output == ar.output and [s.emitted for s in made.steps] == [s.emitted for s in ar.steps]
    nodes = [step.tree_nodes for step in made.steps]
    inside = 59 - (W + N - 3)  # steps whose window does not reach beyond the length limit
    assert set(nodes[N - 2 : inside]) == {W * (N - 1)}
    assert nodes[: N - 2] == [k * (W + N - 1 - k) for k in range(1, N - 1)]
    assert nodes[inside:] == sorted(nodes[inside:], reverse=True) and nodes[-1] == 1
    assert not method._pool._grams


def test_caps(decoders: Load) -> None:
    """A fully matched n-gram yields N-1 tokens with `code`, N with `full`."""
    some = [likes_zero(loaded(decoders, family, compiled=True)) for family in FAMILIES]
    for cap, most in (("code", 3), ("full", 4)):
        traces = [traced(decoder, Lookahead(ngram=4, cap=cap)) for decoder in some]
        assert max(emitted for trace in traces for _, emitted in trace) == most


def test_pool_from_prompt_learns_prompt_and_output(decoders: Load) -> None:
    method = Watched(window=2, ngram=3, guesses=50, pool_from_prompt=True)
    made = decode(loaded(decoders, "qwen3", compiled=True), method, PROMPT, 30)
    text = PROMPT + made.output[: -len(method.emitted[-1])]
    assert method._text == text
    for key, *gram in zip(text, text[1:], text[2:]):
        assert tuple(gram) in method._pool.ngrams(key)


def test_kept_out_tokens_leave_the_window_only(decoders: Load) -> None:
    """The newest row is prompt tokens with every id kept out; predictions still enter the pool."""
    plain, swept = Watched(ngram=3), Watched(ngram=3, keep_out=range(VOCAB))
    for method in (plain, swept):
        decode(loaded(decoders, "qwen3", compiled=True), method, PROMPT, 40)
    assert plain.pools[1] == swept.pools[1] and plain.pools[2] != swept.pools[2]
    first, second = ({gram for grams in swept.pools[step].values() for gram in grams} for step in (1, 2))
    entered = second - first
    assert entered and all(gram[0] in PROMPT for gram in entered) and any(gram[1] not in PROMPT for gram in entered)


def test_same_seed_same_steps(decoders: Load) -> None:
    """Deterministic, nothing survives a prompt, and the seed draws the first row."""
    method, decoder = Lookahead(), loaded(decoders, "qwen3", compiled=True)
    first = traced(decoder, method)
    decode(decoder, method, [1, 2, 3], 20)
    assert traced(decoder, method) == first == traced(decoder, Lookahead())
    rows = []
    for seed in (10, 10, 11):
        method = Lookahead(seed=seed)
        method.start(Prefill(list(range(50)), None))
        rows.append(method._rows[0])
    assert rows[0] == rows[1] != rows[2] and len(rows[0]) == 7 + 5 - 3


def test_columns_beyond_the_length_limit_are_dropped() -> None:
    rows = [[1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert trim_window(rows, 99) == rows and trim_window(rows, 5) == rows
    assert trim_window(rows, 4) == [[1, 2], [4, 5, 6], [8, 9, 10]]
    assert trim_window(rows, 2) == [[], [4], [8]] and trim_window(rows, 1) == trim_window(rows, 0) == [[], [], []]
    assert trim_window([[1, 2, 3]], 2) == [[1, 2]] and trim_window([[1, 2, 3]], 0) == [[]]
    for room in range(7):
        assert max(window_tree(0, [], trim_window(rows, room)).depths) <= room


def test_largest_settings_fit_the_cache(decoder: Decoder) -> None:
    """W(N-1) + G(N-1) at the limit: every node finds a scratch row, even at the context's end."""
    method = Watched(window=20, ngram=5, guesses=20, cap="full")
    assert method._most_nodes() == SCRATCH
    made: Generation = decode(decoder, method, PROMPT, 100)
    assert made.output == decode(decoder, AR(), PROMPT, 100).output
