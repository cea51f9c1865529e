"""The miniature: its network, its training, and the committed weights."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

from methods.fixed_layers import published_set
from ssd_bench.model.checkpoint import EMBEDDED, Checkpoint
from ssd_bench.model.decoder import Decoder, Pass
from studies.miniature import corpus
from studies.miniature import network as network_module
from studies.miniature.evaluate import POSITIONS, RESULTS, Writer, repeated
from studies.miniature.network import Network
from studies.miniature.optimiser import Muon, orthogonalised
from studies.miniature.recipe import RECIPES, Recipe, Size
from studies.miniature.sparsity import ModelOutput, SetAgreement, search
from studies.miniature.train import LOG, STATE, SUMMARY, Training, train
from tests.interpreted import load

CPU = torch.device("cpu")
SIZE = Size(n_layers=4, width=16, n_heads=2, intermediate=24, context=1024)
MIX = {"arithmetic": 0.4, "queries": 0.2, "chats": 0.2, "derivations": 0.2}
SMALL = Recipe("small", SIZE, MIX, steps=6, batches=2, batch_tokens=300, shortest=0.1, growth=100.0)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return Checkpoint(EMBEDDED / "miniature").tokenizer


def test_the_longest_item_of_a_step_grows_to_its_full_length() -> None:
    recipe = RECIPES["miniature"]
    lengths = [recipe.longest(step) for step in range(recipe.steps)]
    assert lengths == sorted(lengths) and lengths[0] == recipe.shortest and lengths[-1] == 1.0
    assert lengths.index(1.0) == pytest.approx(recipe.growth * recipe.steps, abs=1)


def test_repeated_counts_sequences_that_stood_before() -> None:
    assert repeated(range(40)) == 0 == repeated(range(3))
    assert repeated([*range(12), *range(12)]) == pytest.approx(5 / 17)
    assert repeated([1, 2] * 50) > 0.9


@pytest.fixture(scope="module")
def network() -> Network:
    model = Network(SIZE, seed=1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)) * 0.1)
            parameter.copy_(parameter.bfloat16())  # what a checkpoint holds
    return model


@pytest.fixture(scope="module")
def saved(network: Network, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("network")
    network.save(folder, bos=0, eos=1)
    return folder


def test_the_network_is_the_llama_that_it_saves(network: Network, saved: Path) -> None:
    tokens = torch.randint(0, SIZE.vocab_size, (2, 40), generator=torch.Generator().manual_seed(0))
    llama = AutoModelForCausalLM.from_pretrained(saved, dtype=torch.float32)
    with torch.inference_mode():
        (stream,) = network(tokens)
        torch.testing.assert_close(network.logits(stream), llama(tokens).logits, atol=1e-4, rtol=1e-4)
    again = Network.load(saved, SIZE)
    assert all(torch.equal(a, b) for a, b in zip(network.state_dict().values(), again.state_dict().values()))


@pytest.fixture(scope="module")
def decoder(saved: Path) -> Decoder:
    return load(saved, "torch", torch.float32)


def test_dropped_sublayers_and_exits_are_the_decoders(network: Network, decoder: Decoder) -> None:
    tokens = torch.randint(0, SIZE.vocab_size, (30,), generator=torch.Generator().manual_seed(0))
    cache = decoder.new_cache(64)
    dropped = {3, 4}
    kept = [i for i in range(8) if i not in dropped]
    with torch.inference_mode():
        last, left = network(tokens[None], dropped, exit_after=3)
        hidden, _ = decoder.run(Pass(kept, tokens, 0), cache)
        torch.testing.assert_close(last[0], hidden, atol=1e-5, rtol=1e-4)
        hidden, _ = decoder.run(Pass([i for i in kept if i < 6], tokens, 0), cache)
        torch.testing.assert_close(left[0], hidden, atol=1e-5, rtol=1e-4)


def test_agreement_is_that_of_first_draft_tokens(network: Network, decoder: Decoder) -> None:
    """Batched and padded, it equals drafting one token at a time on the full model's cache."""
    rng = torch.Generator().manual_seed(4)
    outputs = []
    for prompt_len, output_len in ((9, 12), (17, 5)):
        ids = torch.randint(0, SIZE.vocab_size, (prompt_len + output_len,), generator=rng).tolist()
        outputs.append(ModelOutput(ids[:prompt_len], ids[prompt_len:]))
    agreement, cache = SetAgreement(network, outputs), decoder.new_cache(64)
    assert agreement.of(()) == 1.0
    for skipped in ({2, 3, 5}, {2}, set(range(4, 8))):
        equal = total = 0
        for example in outputs:
            ids = torch.tensor([*example.prompt, *example.output])
            for position in range(len(example.prompt) - 1, len(ids) - 1):
                with torch.inference_mode():
                    full, _ = decoder.prefill(ids[: position + 1], cache)
                    target = decoder.predict(full)
                    kept = [i for i in range(8) if i not in skipped]
                    hidden = decoder.embed(ids[position : position + 1])
                    hidden, _ = decoder.run(Pass(kept, hidden, position), cache)
                equal += int(decoder.predict(hidden) == target)
                total += 1
        assert agreement.of(skipped) == pytest.approx(equal / total)


def test_a_search_never_ends_below_its_start(network: Network) -> None:
    ids = torch.randint(0, SIZE.vocab_size, (60,), generator=torch.Generator().manual_seed(5)).tolist()
    agreement = SetAgreement(network, [ModelOutput(ids[:20], ids[20:])])
    best = search(agreement, (2, 4), SIZE.n_layers, rounds=20, seed=0)
    assert agreement.of(best) >= agreement.of((2, 4)) and len(best) == 2 and all(2 <= i < 6 for i in best)


def test_muon_orthogonalises_and_descends() -> None:
    rng = torch.Generator().manual_seed(0)
    for shape in ((3, 8, 8), (2, 12, 5), (2, 5, 12)):
        values = torch.linalg.svdvals(orthogonalised(torch.randn(shape, generator=rng)))
        assert ((values > 0.5) & (values < 1.3)).all()
    assert (orthogonalised(torch.zeros(1, 4, 4)) == 0).all()
    target, weight = torch.randn(2, 6, 4, generator=rng), torch.nn.Parameter(torch.zeros(2, 6, 4))
    muon = Muon([weight], [2], lr=0.05, momentum=0.9, decay=0.0)
    losses = []
    for _ in range(60):
        loss = (weight - target).square().mean()
        loss.backward()
        muon.step()
        muon.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]


def test_drop_rates() -> None:
    recipe, plain = RECIPES["miniature"], RECIPES["miniature_plain"]
    sublayers = 2 * recipe.size.n_layers
    for domain in recipe.mix:
        rates, spared = recipe.drop_rates(domain), recipe.spared(domain)
        assert rates[:2] == rates[-2:] == [0.0, 0.0] and len(rates) == sublayers
        assert len(spared) == round(recipe.spare * sublayers) and all(rates[i] == recipe.spare_rate for i in spared)
        assert all(rates[i] <= recipe.other_rate for i in range(sublayers) if i not in spared)
        assert plain.drop_rates(domain) == [0.0] * sublayers
        assert sum(i % 2 == 0 for i in spared) == round(recipe.spare_attention * len(spared))
    assert len({tuple(recipe.spared(domain)) for domain in recipe.mix}) == len(recipe.mix)
    (short,) = set(recipe.finish) - set(recipe.mix)
    assert recipe.drop_rates(short) == [0.0] * sublayers
    differing = {name: getattr(recipe, name) for name in ("name", "spare", "other_rate", "exit_weight")}
    assert replace(plain, **differing) == recipe
    assert set(recipe.mix) | set(recipe.finish) == set(corpus.DOMAINS)
    finishing = [step for step in range(recipe.steps) if recipe.mix_at(step) == recipe.finish]
    assert finishing == list(range(2800, recipe.steps))
    assert all(sum(mix.values()) == pytest.approx(1) for mix in (recipe.mix, recipe.finish))


def test_copying_heads_look_back_and_find_what_followed() -> None:
    """Initial weights do so, on random tokens that occur twice."""
    size = Size(n_layers=4, width=128, n_heads=2, intermediate=32, context=512, rope_base=500_000.0)
    network = Network(size, seed=0, copying=True)
    half = torch.randint(0, size.vocab_size, (120,), generator=torch.Generator().manual_seed(0))
    tokens = half.repeat(2)
    n, at = len(tokens), torch.arange(len(tokens))
    earlier = torch.ones(n, n, dtype=torch.bool).tril()
    seen = []
    with torch.no_grad():
        stream = torch.nn.functional.embedding(tokens[None], network.embedding)
        for norm, qkv, out, mlp_norm, gate_up, down in network.blocks():
            query, key, value = network.heads(stream, norm, qkv, network.cos[:n], network.sin[:n])
            shares = (query @ key.mT / query.shape[-1] ** 0.5).masked_fill(~earlier, float("-inf")).softmax(-1)
            seen.append(shares[0])
            stream = stream + (shares @ value).transpose(1, 2).flatten(2) @ out.mT
            stream = stream + network.mlp(stream, mlp_norm, gate_up, down)
    for back in (1, 2):
        assert seen[0][back - 1, at[2:], at[2:] - back].mean() > 0.9
    again = at[len(half) + 2 :]
    for block in (1, 2, 3):
        assert seen[block][0, again, again - len(half) + 1].mean() > 0.5
    plain = Network(size, seed=0)
    assert not torch.equal(plain.qkv, network.qkv) and plain.embedding.std() < network.embedding.std() / 5


def test_numbers_stand_on_circles() -> None:
    """Dot products in some directions depend on the two numbers' difference alone."""
    size = Size(n_layers=2, width=128, n_heads=2, intermediate=32, context=64)
    plain, told = (
        Network(size, seed=0, copying=True, numbers=numbers).embedding.detach()
        for numbers in ({}, {i: i for i in range(100)})
    )
    assert torch.equal(plain[100:], told[100:]) and torch.equal(plain[:, 0], told[:, 0])
    directions = torch.linalg.svd((told - plain)[:100, 1:], full_matrices=False)
    assert directions.S[16:].max() < 1e-4 < directions.S[15]
    placed = told[:100, 1:] @ directions.Vh[:16].T
    angles = (torch.arange(100)[:, None] - torch.arange(100)) * 2 * math.pi
    expected = sum((angles / period).cos() for period in network_module.PERIODS) * network_module.RADIUS**2
    assert (placed @ placed.T - expected).abs().max() < 0.2


def test_training_in_bfloat16_descends_like_float32(tokenizer: PreTrainedTokenizerBase) -> None:
    losses = {
        compute: [entry["loss"] for entry in Training(replace(SMALL, compute=compute), tokenizer, CPU).run(6)]
        for compute in ("float32", "bfloat16")
    }
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=0.02)
    assert losses["bfloat16"][-1] < losses["bfloat16"][0]


def test_an_agreement_of_a_few_tokens_is_that_of_tokens_spread_evenly(network: Network) -> None:
    ids = torch.randint(0, SIZE.vocab_size, (80,), generator=torch.Generator().manual_seed(5)).tolist()
    output = ModelOutput(ids[:20], ids[20:])
    few = [ModelOutput(ids[: 20 + 3 * i], ids[20 + 3 * i : 21 + 3 * i]) for i in range(20)]
    for skipped in ({2, 3, 5}, {2}):
        assert SetAgreement(network, [output], 20).of(skipped) == pytest.approx(SetAgreement(network, few).of(skipped))


def test_a_killed_training_goes_on_where_it_was(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("studies.miniature.train.CHECKPOINT_EVERY", 2)
    undisturbed = Training(SMALL, tokenizer, CPU)
    losses = [entry["loss"] for entry in undisturbed.run(SMALL.steps)]
    assert losses[-1] < losses[0]
    killed = Training(SMALL, tokenizer, CPU)
    list(killed.run(4))
    torch.save(killed.state(), tmp_path / STATE)
    train(SMALL, tokenizer, CPU, tmp_path, tmp_path / "out")
    logged = [row["loss"] for row in csv.DictReader((tmp_path / "out" / LOG).open())]
    assert logged == [f"{loss:.5f}" for loss in losses]
    again = Network.load(tmp_path / "out", SIZE)
    torch.testing.assert_close(again.qkv, undisturbed.network.qkv.bfloat16().float())
    summary = json.loads((tmp_path / "out" / SUMMARY).read_text(encoding="utf-8"))
    assert summary["recipe"]["name"] == "small" and summary["tokens"] == undisturbed.log[-1]["tokens"]


def test_a_retraining_reproduces_the_logged_losses(tokenizer: PreTrainedTokenizerBase) -> None:
    with (EMBEDDED / "miniature" / LOG).open() as file:
        logged = [float(row["loss"]) for row in csv.DictReader(file)][:3]
    losses = [entry["loss"] for entry in Training(RECIPES["miniature"], tokenizer, CPU).run(3)]
    # CPUs round differently by 0.00014 at most in these steps; twice a learning rate changes the losses by 0.00033
    assert losses == pytest.approx(logged, abs=3e-4)


def test_the_sets_found_are_published_by_task() -> None:
    domains = json.loads((EMBEDDED / "miniature" / RESULTS).read_text(encoding="utf-8"))["domains"]
    n_layers = RECIPES["miniature"].size.n_layers
    first = {entry["task"]: entry for entry in reversed(list(domains.values()))}
    for task, entry in first.items():
        assert published_set(f"ssd-bench/miniature/{task}", n_layers).skipped == set(entry["skipped"])
        assert len(entry["skipped"]) / (2 * n_layers) == pytest.approx(0.47, abs=0.02)


@pytest.mark.parametrize(("domain", "n"), [("queries", 20), ("derivations", 4)])
def test_the_miniature_answers_a_sample_as_its_evaluation_says(domain: str, n: int) -> None:
    """Decode the first held-out items with the committed weights and the project's engine."""
    folder, recipe = EMBEDDED / "miniature", RECIPES["miniature"]
    stated = json.loads((folder / RESULTS).read_text(encoding="utf-8"))["domains"][domain]
    _, score, outputs, _ = Writer(folder, recipe.answer).answers(domain, n, evaluation=True)
    assert score == pytest.approx(stated["score"], abs=0.25)
    agreement = SetAgreement(Network.load(folder, recipe.size), outputs, POSITIONS)
    assert agreement.of(()) == 1.0
    assert agreement.of(published_set(f"ssd-bench/miniature/{stated['task']}", recipe.size.n_layers).skipped) > 0.8
