"""The miniature: its corpus, its network, its training, and that the committed weights are what they are said to be."""

from __future__ import annotations

import csv
import hashlib
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

from methods.fixed_layers import published_set
from ssd_bench.compose import task_named, task_names
from ssd_bench.data import SampleSource
from ssd_bench.miniature import corpus, samples
from ssd_bench.miniature.domains import problems
from ssd_bench.miniature.domains.item import Item
from ssd_bench.miniature.evaluate import RESULTS, Writer
from ssd_bench.miniature.network import Network
from ssd_bench.miniature.optimiser import Muon, orthogonalised
from ssd_bench.miniature.recipe import RECIPES, Recipe, Size
from ssd_bench.miniature.sparsity import Agreement, Output, search
from ssd_bench.miniature.train import LOG, STATE, SUMMARY, Training, train
from ssd_bench.model.backend import select
from ssd_bench.model.checkpoint import EMBEDDED, TEMPLATES, Checkpoint
from ssd_bench.model.decoder import Decoder, Pass
from tasks.stream import Stream

CPU = torch.device("cpu")
SIZE = Size(n_layers=4, width=16, n_heads=2, intermediate=24, context=512)
SMALL = Recipe("small", SIZE, mix={"arithmetic": 0.5, "sql": 0.3, "stories": 0.2}, steps=6, batches=2, batch_tokens=300)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return Checkpoint(EMBEDDED / "miniature").tokenizer


@pytest.mark.parametrize("domain", [*corpus.DOMAINS, *corpus.UNTRAINED])
def test_an_item_is_in_one_split_and_its_answer_is_right(domain: str) -> None:
    made = {split: corpus.distinct(domain, 30, 7, evaluation=split) for split in (False, True)}
    assert made == {split: corpus.distinct(domain, 30, 7, evaluation=split) for split in (False, True)}
    for split, items in made.items():
        assert all(corpus.held_out(item) == split for item in items)
    task = task_named(corpus.named(domain).task)
    scores = [
        task.score(prompt, item.answer)
        for prompt, item in zip(corpus.prompts(domain, made[True][:10]), made[True][:10], strict=True)
    ]
    # a story's answer is another story; every other answer is the reference itself
    assert all(0 < s < 1 for s in scores) if domain == "stories" else scores == [1.0] * 10


def test_samples_are_held_out_items_and_demonstrations_are_not(tmp_path: Path) -> None:
    """The committed files are what the generator writes, and no training batch can hold one of their items."""
    written = samples.write(tmp_path)
    folder = SampleSource().root
    assert folder is not None and {path.name for path in written} == {path.name for path in folder.glob("*.jsonl")}
    for path in written:
        assert path.read_bytes() == (folder / path.name).read_bytes(), path.name
    seen: set[str] = set()
    for task, source in samples.sources().items():
        items, *shots = task_named(task).files("plain")
        rows = {False: [row for spec in shots for row in _rows(tmp_path / f"{spec.name}.jsonl")]}
        rows[True] = _rows(tmp_path / f"{items.name}.jsonl")
        assert len(rows[True]) == samples.ITEMS
        for split, found in rows.items():
            drawn = corpus.distinct(source.domain, 3 * samples.ITEMS, 1, split)
            made = {json.dumps(source.row(item)): item for item in drawn}
            for row in found:
                item = made[json.dumps({key: value for key, value in row.items() if key != "id"})]
                assert corpus.held_out(item) == split
                content = source.domain + json.dumps(dict(item.row))
                assert content not in seen
                seen.add(content)


def test_every_task_has_samples_that_it_takes() -> None:
    """But for streams, which take those of their parts."""
    for name in task_names():
        task = task_named(name)
        if not isinstance(task, Stream):
            for template in TEMPLATES:
                assert len(task.prompts(SampleSource(), template, None, 0)) == samples.ITEMS
            assert name in samples.sources()


def test_long_samples_are_long_and_every_subject_of_math_occurs() -> None:
    folder = SampleSource().root
    assert folder is not None
    for name, field in (("govreport", "report"), ("pg19", "text"), ("booksum", "chapter")):
        assert min(len(row[field].split()) for row in _rows(folder / f"{name}.jsonl")) >= 300
    rows = _rows(folder / "math500.jsonl")
    assert {row["subject"] for row in rows} == set(problems.KINDS)
    assert sum("frac" in row["answer"] for row in rows) >= 5


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_split_depends_on_the_content_alone() -> None:
    item = Item({"a": "x", "b": "y"}, "z")
    assert corpus.held_out(item) == corpus.held_out(Item({"b": "y", "a": "x"}, "z"))
    rng = random.Random(0)
    made = [corpus.DOMAINS["sql"].make(rng) for _ in range(2000)]
    assert sum(map(corpus.held_out, made)) / 2000 == pytest.approx(corpus.HELD_OUT / 256, abs=0.02)


def test_batches_are_functions_of_seed_and_step(tokenizer: PreTrainedTokenizerBase) -> None:
    batches, again = (corpus.Batches(tokenizer, 512, SMALL.mix, 300, 0.2, seed=3) for _ in range(2))
    tokens = dict.fromkeys(SMALL.mix, 0)
    for step in range(60):
        batch, rng = batches.at(step, 1)
        assert batch.tokens.numel() <= 300 or len(batch.tokens) == 1
        assert batch.weights.shape == (batch.tokens.shape[0], batch.tokens.shape[1] - 1)
        assert set(batch.weights.unique().tolist()) <= set(torch.tensor([0.0, 0.2, 1.0]).tolist())
        ends = [row.tolist() for row in batch.tokens]
        assert all(row[0] == tokenizer.bos_token_id and tokenizer.eos_token_id in row for row in ends)
        tokens[batch.domain] += batch.tokens.numel()
        if step < 5:
            other, other_rng = again.at(step, 1)
            assert torch.equal(batch.tokens, other.tokens) and rng.random() == other_rng.random()
    for domain, share in SMALL.mix.items():
        assert tokens[domain] / sum(tokens.values()) == pytest.approx(share, abs=0.2)


def test_an_answers_tokens_weigh_one_and_its_prompt_less(tokenizer: PreTrainedTokenizerBase) -> None:
    made = corpus.distinct("sql", 1, 0)
    (document,) = corpus.documents("sql", made, tokenizer, 512)
    assert tokenizer.decode(document.answer, skip_special_tokens=True) == made[0].answer
    assert document.answer[-1] == tokenizer.eos_token_id
    batches = corpus.Batches(tokenizer, 512, {"sql": 1.0}, 300, 0.2, seed=0)
    batch, _ = batches.at(0, 0)
    assistant = tokenizer.convert_tokens_to_ids("<|assistant|>")
    for tokens, weights in zip(batch.tokens.tolist(), batch.weights):
        start, end = tokens.index(assistant), tokens.index(tokenizer.eos_token_id)
        assert (
            (weights[:start] == torch.tensor(0.2)).all()
            and (weights[start:end] == 1).all()
            and (weights[end:] == 0).all()
        )


@pytest.fixture(scope="module")
def network() -> Network:
    made = Network(SIZE, seed=1)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)) * 0.1)
            parameter.copy_(parameter.bfloat16())  # what a checkpoint holds
    return made


@pytest.fixture(scope="module")
def saved(network: Network, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("network")
    network.save(folder, bos=0, eos=1)
    return folder


def test_the_network_is_the_llama_that_it_saves(network: Network, saved: Path) -> None:
    tokens = torch.randint(0, SIZE.vocab_size, (2, 40), generator=torch.Generator().manual_seed(0))
    theirs = AutoModelForCausalLM.from_pretrained(saved, dtype=torch.float32)
    with torch.inference_mode():
        (stream,) = network(tokens)
        torch.testing.assert_close(network.logits(stream), theirs(tokens).logits, atol=1e-4, rtol=1e-4)
    again = Network.load(saved, SIZE)
    assert all(torch.equal(a, b) for a, b in zip(network.state_dict().values(), again.state_dict().values()))


@pytest.fixture(scope="module")
def decoder(saved: Path) -> Decoder:
    return select("cpu", torch.float32, "torch").load(Checkpoint(saved), torch.float32, [CPU])


def test_dropped_sublayers_and_exits_are_the_decoders(network: Network, decoder: Decoder) -> None:
    tokens = torch.randint(0, SIZE.vocab_size, (30,), generator=torch.Generator().manual_seed(0))
    cache = decoder.new_cache(64)
    dropped = {3, 4}
    kept = [i for i in range(8) if i not in dropped]
    with torch.inference_mode():
        ours, left = network(tokens[None], dropped, exit_after=3)
        hidden, _ = decoder.run(Pass(kept, tokens, 0), cache)
        torch.testing.assert_close(ours[0], hidden, atol=1e-5, rtol=1e-4)
        hidden, _ = decoder.run(Pass([i for i in kept if i < 6], tokens, 0), cache)
        torch.testing.assert_close(left[0], hidden, atol=1e-5, rtol=1e-4)


def test_agreement_is_that_of_first_draft_tokens(network: Network, decoder: Decoder) -> None:
    """Batched and padded, it equals drafting one token at a time on the full model's cache."""
    rng = torch.Generator().manual_seed(4)
    outputs = []
    for prompt_len, output_len in ((9, 12), (17, 5)):
        ids = torch.randint(0, SIZE.vocab_size, (prompt_len + output_len,), generator=rng).tolist()
        outputs.append(Output(ids[:prompt_len], ids[prompt_len:]))
    agreement, cache = Agreement(network, outputs), decoder.new_cache(64)
    assert agreement.of(()) == 1.0
    for skipped in ({2, 3, 5}, {2}, set(range(4, 8))):
        same = total = 0
        for made in outputs:
            ids = torch.tensor([*made.prompt, *made.output])
            for position in range(len(made.prompt) - 1, len(ids) - 1):
                with torch.inference_mode():
                    full, _ = decoder.prefill(ids[: position + 1], cache)
                    target = decoder.predict(full)
                    kept = [i for i in range(8) if i not in skipped]
                    hidden = decoder.embed(ids[position : position + 1])
                    hidden, _ = decoder.run(Pass(kept, hidden, position), cache)
                same += int(decoder.predict(hidden) == target)
                total += 1
        assert agreement.of(skipped) == pytest.approx(same / total)


def test_a_search_never_ends_below_its_start(network: Network) -> None:
    ids = torch.randint(0, SIZE.vocab_size, (60,), generator=torch.Generator().manual_seed(5)).tolist()
    agreement = Agreement(network, [Output(ids[:20], ids[20:])])
    found = search(agreement, (2, 4), SIZE.n_layers, rounds=20, seed=0)
    assert agreement.of(found) >= agreement.of((2, 4)) and len(found) == 2 and all(2 <= i < 6 for i in found)


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
    for domain in corpus.DOMAINS:
        rates, spared = recipe.drop_rates(domain), recipe.spared(domain)
        assert rates[:2] == rates[-2:] == [0.0, 0.0] and len(rates) == sublayers
        assert len(spared) == round(recipe.spare * sublayers) and all(rates[i] == recipe.spare_rate for i in spared)
        assert all(rates[i] <= recipe.other_rate for i in range(sublayers) if i not in spared)
        assert plain.drop_rates(domain) == [0.0] * sublayers
    assert len({tuple(recipe.spared(domain)) for domain in corpus.DOMAINS}) == len(corpus.DOMAINS)
    assert (
        replace(
            plain, name="miniature", spare=recipe.spare, other_rate=recipe.other_rate, exit_weight=recipe.exit_weight
        )
        == recipe
    )
    assert sum(recipe.mix.values()) == pytest.approx(1) and set(recipe.mix) == set(corpus.DOMAINS)


def test_a_killed_training_goes_on_where_it_was(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ssd_bench.miniature.train.CHECKPOINT_EVERY", 2)
    whole = Training(SMALL, tokenizer, CPU)
    losses = [entry["loss"] for entry in whole.run(SMALL.steps)]
    assert losses[-1] < losses[0]
    killed = Training(SMALL, tokenizer, CPU)
    list(killed.run(4))
    torch.save(killed.state(), tmp_path / STATE)
    train(SMALL, tokenizer, CPU, tmp_path, tmp_path / "out")
    logged = [row["loss"] for row in csv.DictReader((tmp_path / "out" / LOG).open())]
    assert logged == [f"{loss:.5f}" for loss in losses]
    again = Network.load(tmp_path / "out", SIZE)
    torch.testing.assert_close(again.qkv, whole.network.qkv.bfloat16().float())
    summary = json.loads((tmp_path / "out" / SUMMARY).read_text(encoding="utf-8"))
    assert summary["recipe"]["name"] == "small" and summary["tokens"] == whole.log[-1]["tokens"]


@pytest.mark.parametrize("name", RECIPES)
def test_the_weights_are_those_of_the_log(name: str) -> None:
    folder = EMBEDDED / name
    summary = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    weights = (folder / "model.safetensors").read_bytes()
    assert hashlib.sha256(weights).hexdigest() == summary["weights_sha256"] and len(weights) <= 12e6
    assert summary["recipe"] == json.loads(json.dumps(RECIPES[name].as_dict())) and summary["parameters"] <= 6e6
    rows = list(csv.DictReader((folder / LOG).open()))
    assert [int(row["step"]) for row in rows] == list(range(RECIPES[name].steps))
    assert int(rows[-1]["tokens"]) == summary["tokens"]


def test_a_retraining_reproduces_the_logged_losses(tokenizer: PreTrainedTokenizerBase) -> None:
    with (EMBEDDED / "miniature" / LOG).open() as file:
        logged = [float(row["loss"]) for row in csv.DictReader(file)][:50]
    losses = [entry["loss"] for entry in Training(RECIPES["miniature"], tokenizer, CPU).run(50)]
    assert losses == pytest.approx(logged, abs=1e-2)


def test_the_sets_found_are_published_by_task() -> None:
    found = json.loads((EMBEDDED / "miniature" / RESULTS).read_text(encoding="utf-8"))["domains"]
    n_layers = RECIPES["miniature"].size.n_layers
    for entry in found.values():
        assert published_set(f"ssd-bench/miniature/{entry['task']}", n_layers).skipped == set(entry["skipped"])
        assert len(entry["skipped"]) / (2 * n_layers) == pytest.approx(0.47, abs=0.02)


def test_the_miniature_answers_a_sample_as_its_evaluation_says(tokenizer: PreTrainedTokenizerBase) -> None:
    """The committed weights, by the project's engine, on the first held-out queries."""
    folder = EMBEDDED / "miniature"
    stated = json.loads((folder / RESULTS).read_text(encoding="utf-8"))["domains"]["sql"]["score"]
    _, score, outputs = Writer(folder).answers("sql", 20, evaluation=True)
    assert score == pytest.approx(stated, abs=0.25)
    agreement = Agreement(Network.load(folder, RECIPES["miniature"].size), outputs)
    assert agreement.of(()) == 1.0
    assert agreement.of(published_set("ssd-bench/miniature/spider2", 16).skipped) > 0.8
