"""CLaSp: the dynamic programme against its recurrence and brute force, schedule, presets, losslessness."""

from __future__ import annotations

import random
from itertools import combinations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from methods.clasp import CLaSp, choose
from methods.knapsack import directions
from ssd_bench.contract.generation import Estimate
from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.contract.method import Context, Prefill, Probe, Verification
from ssd_bench.contract.shape import ModelDims
from ssd_bench.engine.probe import ModelProbe, mean_cosine
from ssd_bench.model.backend import select
from ssd_bench.model.checkpoint import Checkpoint
from ssd_bench.model.decoder import Decoder
from tests.conftest import FAMILIES, LAYERS, VOCAB, save_model
from tests.lossless import DIMS, Load, check_greedy, decode, method_of

PRESETS = ("clasp", "clasp_knapspec")
DEEP, LENGTH = 6, 13
PREFIX = LENGTH - 1


def skipped(method: CLaSp, n_layers: int) -> int:
    method.check(ModelDims("model", n_layers, 1, 128, VOCAB))
    return method._n_skipped


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    """A random model of six blocks: deep enough for a choice."""
    folder = save_model(FAMILIES["llama"](num_hidden_layers=DEEP), tmp_path_factory.mktemp("deep"))
    return select("cpu", torch.float64, "torch").load(Checkpoint(folder), torch.float64, [torch.device("cpu")])


def last_token(decoder: Decoder, seed: int = 0) -> tuple[Tensor, Probe]:
    """States [L+1, d] between the blocks of the last of LENGTH committed tokens, and a probe on that cache."""
    ids = torch.randint(VOCAB, (LENGTH,), generator=torch.Generator().manual_seed(seed))
    rows = decoder.new_cache(64)
    _, states = decoder.prefill(ids, rows, range(0, 2 * decoder.arch.n_layers + 1, 2))
    assert states is not None
    return states[:, -1], ModelProbe(decoder, rows)


def block(probe: Probe, b: int, stream: Tensor) -> Tensor:
    stream = stream[None, None]
    for i in (2 * b, 2 * b + 1):
        stream = probe.apply_sublayer(i, stream, PREFIX)
    return stream[0, 0]


def alone(states: Tensor, probe: Probe, layer_set: LayerSet) -> Tensor:
    """Final stream [d] of one set, run by itself on the same token and prefix."""
    stream = states[0]
    for b in range(probe.n_layers):
        if b not in layer_set.skip_attn:
            stream = block(probe, b, stream)
    return stream


def cosine(stream: Tensor, target: Tensor) -> float:
    return mean_cosine(stream[None, None], directions(target[None])).item()


def by_the_recurrence(states: Tensor, probe: Probe, count: int) -> tuple[LayerSet, Tensor]:
    """Eq. 2 as printed: every cell of the table, one candidate at a time."""
    table: dict[tuple[int, int], tuple[Tensor, tuple[int, ...]]] = {(0, 0): (states[0], ())}
    for i in range(1, probe.n_layers + 1):
        table[i, 0] = states[i], ()
        for j in range(1, min(i, count) + 1):
            stream, blocks = table[i - 1, j - 1]
            table[i, j] = stream, (*blocks, i - 1)
            if (i - 1, j) in table:
                executed = block(probe, i - 1, table[i - 1, j][0])
                if cosine(executed, states[i]) > cosine(stream, states[i]):
                    table[i, j] = executed, table[i - 1, j][1]
    stream, blocks = table[probe.n_layers, count]
    return LayerSet.skipping(probe.n_layers, attn=blocks, mlp=blocks), stream


# ---- the dynamic programme


@pytest.mark.parametrize("protect", [False, True])
def test_exactly_m_whole_blocks_are_skipped(protect: bool, decoders: Load, deep: Decoder) -> None:
    for decoder in [decoders("llama"), decoders("qwen3", torch.bfloat16), deep]:
        states, probe = last_token(decoder)
        for count in range(probe.n_layers - int(protect)):
            chosen, _ = choose(states, count, PREFIX, probe, protect)
            assert chosen.skip_attn == chosen.skip_mlp and len(chosen.skip_attn) == count
            assert not protect or not set(chosen.skip_attn) & {0, probe.n_layers - 1}


@pytest.mark.parametrize("protect", [False, True])
def test_rerunning_the_set_gives_the_last_cell(protect: bool, decoders: Load, deep: Decoder) -> None:
    """The backtracked set, run alone on that token and prefix, leaves g[L, M]."""
    for decoder in [*map(decoders, ("llama", "qwen2", "qwen3")), deep]:
        states, probe = last_token(decoder)
        for count in range(probe.n_layers - int(protect)):
            chosen, hidden = choose(states, count, PREFIX, probe, protect)
            assert torch.allclose(alone(states, probe, chosen), hidden, atol=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_the_table_is_that_of_the_recurrence(seed: int, deep: Decoder) -> None:
    """Leaving out cells that cannot reach (L, M), and taking g[i, 0] from the states, changes nothing."""
    states, probe = last_token(deep, seed)
    for count in range(DEEP):
        layer_set, stream = by_the_recurrence(states, probe, count)
        chosen, hidden = choose(states, count, PREFIX, probe)
        assert chosen == layer_set and torch.allclose(hidden, stream, atol=1e-9)


def test_no_block_runs_where_the_streams_are_known(deep: Decoder) -> None:
    """M = 0 and column 0 need no pass."""

    class Refusing(ModelProbe):
        def apply_sublayer(self, i: int, hidden: Tensor, prefix_len: int, bits: int = 0) -> Tensor:
            raise AssertionError("not needed")

    states, probe = last_token(deep)
    chosen, hidden = choose(states, 0, PREFIX, Refusing(probe._decoder, probe._cache))
    assert chosen == LayerSet.full(DEEP) and torch.equal(hidden, states[-1])


def test_dp_is_at_most_brute_force_and_mostly_near_it(deep: Decoder) -> None:
    """C(6, M) subsets each; the paper reports a close agreement (§3.5), here required of the aggregate."""
    shares = []
    for seed in range(4):
        states, probe = last_token(deep, seed)
        for count in range(1, DEEP):
            sets = [LayerSet.skipping(DEEP, s, s) for s in combinations(range(DEEP), count)]
            values = sorted(cosine(alone(states, probe, s), states[-1]) for s in sets)
            found = cosine(choose(states, count, PREFIX, probe)[1], states[-1])
            assert found <= values[-1] + 1e-6
            shares.append(sum(value <= found + 1e-6 for value in values) / len(values))
    assert sum(shares) / len(shares) > 0.75


def test_ties_skip() -> None:
    """Execute only if strictly better: if no block changes anything, backtracking skips the last M."""

    class Still:
        def apply_sublayer(self, i: int, hidden: Tensor, prefix_len: int, bits: int = 0) -> Tensor:
            return hidden.clone()

        def mean_cosine(self, branches: Tensor, direction: Tensor) -> NDArray[np.float32]:
            return mean_cosine(branches, direction).numpy()

    states = torch.eye(8)[:1].repeat(DEEP + 1, 1)
    for count in range(DEEP):
        chosen, _ = choose(states, count, 0, Still())  # type: ignore[arg-type]
        assert chosen.skip_attn == chosen.skip_mlp == tuple(range(DEEP - count, DEEP))


# ---- the method


def test_the_search_sees_the_last_accepted_token(decoders: Load) -> None:
    """Its states are a fresh pass's over the committed tokens, its prefix all tokens before it."""
    decoder, prompt, seen = decoders("qwen3"), [5, 6, 7], []

    class Watched(CLaSp):
        def observe(self, verification: Verification, probe: Probe) -> Estimate | None:
            estimate = super().observe(verification, probe)
            seen.append((verification.length, self._layer_set))
            return estimate

    run = decode(decoder, Watched(skip_blocks=1, interval=1, draft_len=3, stop_below=0.0), prompt, 40)
    assert len({layer_set for _, layer_set in seen}) > 1  # the choice depends on the token
    assert {step.accepted_len for step in run.steps[1:]} > {0, 1}
    for length, layer_set in [(len(prompt), run.steps[0].layer_set), *seen]:
        rows = decoder.new_cache(64)
        tokens = torch.tensor((prompt + run.output)[:length])
        _, states = decoder.prefill(tokens, rows, range(0, 2 * LAYERS + 1, 2))
        assert states is not None
        assert choose(states[:, -1], 1, length - 1, ModelProbe(decoder, rows))[0] == layer_set


def searches(method: CLaSp) -> list[int]:
    """Steps of which states are tapped, between blocks only, of the first 259."""
    method.check(DIMS)
    method.start(Prefill([1], None))
    steps = []
    for step in range(1, 260):
        method.propose(Context(step, step, [1], 9))
        assert method.taps.verify in ((), (0, 2, 4, 6, 8))
        steps += [step] * bool(method.taps.verify)
    return steps


@pytest.mark.parametrize("interval", [1, 3, 128])
def test_a_search_follows_step_one_and_every_t_steps(interval: int, decoder: Decoder) -> None:
    """States are tapped in those steps only; the set changes after them."""
    method = method_of("clasp", search_on="steps", interval=interval, draft_len=2)
    assert searches(method) == list(range(1, 260, interval)) and not method.taps.prefill
    run = decode(decoder, method, [5, 6, 7], 40)
    sets = [step.layer_set for step in run.steps]
    assert sets[0] == LayerSet.full(LAYERS) and all(s is not None and s.skip_ratio == 0.5 for s in sets[1:])
    changed = [i + 1 for i in range(1, len(sets)) if sets[i] != sets[i - 1]]
    assert all((i - 2) % interval == 0 for i in changed) and changed[0] == 2
    assert all(step.estimate is None for step in run.steps)


@pytest.mark.parametrize("interval", [1, 3, 128])
def test_an_update_after_the_prefill_is_the_first(interval: int, decoder: Decoder) -> None:
    """The first step drafts with a searched set; the next search is T verifications later."""
    method = method_of("clasp", interval=interval, draft_len=2)
    assert searches(method) == list(range(interval, 260, interval))
    assert method.taps.prefill == (0, 2, 4, 6, 8) and method.taps.prompt_end == 1
    run = decode(decoder, method, [5, 6, 7], 40)
    sets = [step.layer_set for step in run.steps]
    assert all(s is not None and s.skip_ratio == 0.5 for s in sets)
    changed = [i + 1 for i in range(1, len(sets)) if sets[i] != sets[i - 1]]
    assert all((i - 1) % interval == 0 for i in changed)


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_with_random_settings_are_lossless(preset: str, decoders: Load) -> None:
    def make(rng: random.Random) -> CLaSp:
        protect = rng.random() < 0.5
        blocks = rng.choice([None, *range(LAYERS - int(protect))])
        return method_of(
            preset,
            skip_blocks=blocks,
            interval=rng.randint(1, 9),
            protect_first_last=protect,
            draft_len=rng.randint(1, 6),
            stop_below=rng.choice([0.0, 0.1, 0.7]),
            reuse_prefix=rng.random() < 0.5,
        )

    assert check_greedy(make, decoders) > 25


# ---- settings


def test_presets_hold_the_published_settings() -> None:
    paper, port = method_of("clasp"), method_of("clasp_knapspec")
    assert [skipped(paper, n) for n in (16, 28, 32, 36, 40, 64, 80)] == [8, 14, 16, 18, 20, 32, 40]
    assert [skipped(port, n) for n in (16, 28, 32, 36, 40, 64, 80)] == [4, 8, 8, 8, 10, 20, 20]
    assert skipped(port, 30) == 8 and skipped(port, 4) == 1  # not in the port's table: a quarter
    for method, name, interval in ((paper, "clasp", 128), (port, "clasp_knapspec", 64)):
        assert (method.name, method.interval, method.draft_len, method.stop_below) == (name, interval, 10, 0.7)
        assert not method.protect_first_last and not method.reuse_prefix
        assert method.search_on == ("prefill" if name == "clasp" else "steps")


def test_m_comes_from_number_then_table_then_share() -> None:
    assert skipped(CLaSp(skip_blocks=3, skip_by_layers={8: 2}), 8) == 3
    assert skipped(CLaSp(skip_by_layers={8: 2}, skip_ratio=0.75), 8) == 2
    assert skipped(CLaSp(skip_by_layers={8: 2}, skip_ratio=0.75), 12) == 9
    assert skipped(CLaSp(skip_blocks=0), 8) == 0 and skipped(CLaSp(skip_ratio=0.0), 8) == 0
