"""The miniature: its corpus, its network, its training, and that the committed weights are what they are said to be."""

from __future__ import annotations

import csv
import hashlib
import json
import math
import random
import re
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

from methods.fixed_layers import published_set
from ssd_bench.compose import task_named, task_names
from ssd_bench.data import SampleSource
from ssd_bench.miniature import corpus, samples, vocabulary
from ssd_bench.miniature import network as network_module
from ssd_bench.miniature.domains import audits, problems, reports, stories, tales
from ssd_bench.miniature.domains.item import Item
from ssd_bench.miniature.evaluate import RESULTS, Writer, repeated
from ssd_bench.miniature.network import Network
from ssd_bench.miniature.optimiser import Muon, orthogonalised
from ssd_bench.miniature.recipe import NEXT, RECIPES, Recipe, Size
from ssd_bench.miniature.sparsity import Agreement, Output, search
from ssd_bench.miniature.train import LOG, STATE, SUMMARY, Training, train
from ssd_bench.model.backend import select
from ssd_bench.model.checkpoint import EMBEDDED, TEMPLATES, Checkpoint
from ssd_bench.model.decoder import Decoder, Pass
from tasks.stream import Stream

CPU = torch.device("cpu")
CALCULATIONS = re.compile(r"(\d+[-+*/]\d+)=(\d+)")
SIZE = Size(n_layers=4, width=16, n_heads=2, intermediate=24, context=1024)
MIX = {"arithmetic": 0.4, "sql": 0.2, "chats": 0.2, "derivations": 0.2}
SMALL = Recipe("small", SIZE, MIX, steps=6, batches=2, batch_tokens=300, shortest=0.1, growth=100.0)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return Checkpoint(EMBEDDED / "miniature").tokenizer


@pytest.mark.parametrize("domain", corpus.EVERY)
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
    assert all(0 < s < 1 for s in scores) if domain in ("stories", "tales") else scores == [1.0] * 10


def _walked(problem: str, state: dict[str, int]) -> dict[str, int]:
    """The lines of a problem, run as they are read, from the place where the walk begins until it is home."""
    walk = re.findall(r"^From (\w+) to (\w+) (\S+)\.$", problem, re.M)
    program = re.findall(r"^At (\w+) (\w) (\w+) (\S+)\.$", problem, re.M)
    rules = {start: (end, "held", rule) for start, end, rule in walk}
    rules |= {start: (end, register, rule) for start, register, end, rule in program}
    table = dict(re.findall(r"^Rule (\w+) (\S+)\.$", problem, re.M))
    place, seen = re.findall(r"begins at (\w+)", problem)[0], 0
    while place != "home":
        place, name, rule = rules[place]
        seen += 1
        rule = table.get(rule, rule)
        before, by = state[name], int(rule[1:])
        state[name] = {"+": before + by, "-": before - by, "*": before * by, "/": before // by}[rule[0]]
        assert rule[0] != "/" or before % by == 0
    assert seen == len(rules) == len(walk) + len(program)  # every line is used, once
    return state


def test_derivations_and_traces_say_what_their_lines_compute() -> None:
    for item in corpus.distinct("derivations", 60, 5):
        problem = item.row["problem"]
        (first,) = re.findall(r"with the number (\d+)\.", problem)
        held = _walked(problem, {"held": int(first)})["held"]
        assert item.row["answer"] == str(held) and item.answer.endswith(rf"\boxed{{{held}}}.")
        assert all(eval(left.replace("/", "//")) == int(right) for left, right in CALCULATIONS.findall(item.answer))
    for item in corpus.distinct("traces", 60, 5):
        question = item.row["question"]
        start = {name: int(value) for name, value in re.findall(r"(\w)=(\d+)", question.partition("\n")[0])}
        state = _walked(question, start)
        (asked,) = re.findall(r"the value of (\w)\b", question, re.M)
        options = item.row["options"]
        assert options["ABCDEFGHIJ".index(item.row["answer"])] == str(state[asked]) and len(set(options)) == len(
            options
        )
        assert all(eval(left) == int(right) for left, right in CALCULATIONS.findall(item.answer))


def _followers(text: str) -> dict[tuple[str, str], set[str]]:
    """What stands after every two words or marks that stand together in a text."""
    found: dict[tuple[str, str], set[str]] = {}
    words = re.findall(r"\w+|[^\w\s]", text)
    for *pair, after in zip(words, words[1:], words[2:]):
        found.setdefault((pair[0], pair[1]), set()).add(after)
    return found


TOLD = {
    "audits": ("report", {*audits.FINDINGS, *reports.REGIONS, *map(str, range(11, 99))}),
    "tales": ("text", {*tales.THINGS, *tales.FRIENDS, *stories.COLORS, *stories.HELPER_LOOKS}),
}


@pytest.mark.parametrize("domain", TOLD)
def test_what_a_long_answer_takes_from_its_prompt_follows_two_words_that_tell_it(domain: str) -> None:
    field, taken = TOLD[domain]
    for item in corpus.distinct(domain, 60, 5):
        told = _followers(item.row[field])
        for pair, after in _followers(item.answer).items():
            for word in after & taken:
                # a subject is named again where the sentence before is its own
                assert pair[1] in ("On", "After") or told[pair] == {word}, (pair, word)


def test_a_programs_comments_are_its_steps_and_no_two_steps_can_be_confused() -> None:
    for item in corpus.distinct("programs", 60, 5):
        steps = re.findall(r"^ +(\d+: .*)\.$", item.row["prompt"], re.M)
        assert re.findall(r"# (.*)\.", item.answer) == steps
        # the same letter may stand in two steps
        told = {pair: after for pair, after in _followers(" ".join(steps)).items() if "'" not in pair}
        assert all(len({word for word in after if not word.isdigit()}) <= 1 for after in told.values())


def test_a_queue_is_what_its_pairs_say() -> None:
    queues = [item for item in corpus.distinct("requests", 200, 5) if "before nobody" in item.answer]
    assert len(queues) >= 10
    for item in queues:
        following = dict(re.findall(r"(\w+) before (\w+)", item.row["input"]))
        (name,) = re.findall(r"begins with (\w+)", item.row["instruction"])
        order = [name]
        while order[-1] in following:
            order.append(following[order[-1]])
        assert item.answer == f"It begins with {' before '.join(order)}." and len(order) == len(following) + 1


LONG = {"derivations": (350, 1500), "traces": (350, 1500), "audits": (250, 800), "tales": (300, 700)}


@pytest.fixture(scope="module")
def long_tokenizer() -> PreTrainedTokenizerBase:
    recipe = NEXT["miniature_long"]
    return vocabulary.train(recipe.mix, recipe.size.vocab_size, recipe.seed)


@pytest.mark.xdist_group("long_tokenizer")
@pytest.mark.parametrize("domain", LONG)
def test_answers_of_growing_domains_are_long_and_begin_short(
    domain: str, long_tokenizer: PreTrainedTokenizerBase
) -> None:
    found, context = {}, NEXT["miniature_long"].size.context
    for scale in (0.12, 0.5, 1.0):
        documents = corpus.documents(domain, corpus.distinct(domain, 30, 3, scale=scale), long_tokenizer, context)
        assert max(map(len, documents)) < context / 1.4  # room for an answer that does not end
        found[scale] = [len(document.answer) for document in documents]
    low, high = LONG[domain]
    assert low <= min(found[1.0]) and max(found[1.0]) <= high
    assert max(found[0.12]) < min(found[1.0]) and median(found[0.12]) < median(found[0.5]) < median(found[1.0])


def test_the_longest_item_of_a_step_grows_to_its_full_length() -> None:
    recipe = NEXT["miniature_long"]
    lengths = [recipe.longest(step) for step in range(recipe.steps)]
    assert lengths == sorted(lengths) and lengths[0] == recipe.shortest and lengths[-1] == 1.0
    assert lengths.index(1.0) == pytest.approx(recipe.growth * recipe.steps, abs=1)


def test_a_conversations_answers_all_count(tokenizer: PreTrainedTokenizerBase) -> None:
    (item,) = made = corpus.distinct("chats", 1, 0)
    (document,) = corpus.documents("chats", made, tokenizer, 512)
    ((start, end),) = document.earlier
    ((asked, replied),) = item.further
    assert tokenizer.decode(document.prompt[start:end]) == item.answer + tokenizer.eos_token
    assert tokenizer.decode(document.answer, skip_special_tokens=True) == replied
    (prompt,) = corpus.prompts("chats", made)
    said = [
        {"role": "user", "content": prompt.head + prompt.body + prompt.tail},
        {"role": "assistant", "content": item.answer},
        {"role": "user", "content": asked},
    ]
    rendered = tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
    assert tokenizer.decode(document.prompt) == rendered
    batch, _ = corpus.Batches(tokenizer, 512, {"chats": 1.0}, 300, 0.2, 0, lambda step: 1.0).at(0, 0)
    assert ((batch.weights == 1).sum(1) > 0).all()


def test_repeated_counts_sequences_that_stood_before() -> None:
    assert repeated(range(40)) == 0 == repeated(range(3))
    assert repeated([*range(12), *range(12)]) == pytest.approx(5 / 17)
    assert repeated([1, 2] * 50) > 0.9


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
    batches, again = (corpus.Batches(tokenizer, 1024, SMALL.mix, 300, 0.2, 3, SMALL.longest) for _ in range(2))
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
    batches = corpus.Batches(tokenizer, 512, {"sql": 1.0}, 300, 0.2, 0, lambda step: 1.0)
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


def test_the_successor_spares_attention_first_and_learns_what_it_is_made_of() -> None:
    recipe, plain = NEXT["miniature_long"], NEXT["miniature_long_plain"]
    for domain in recipe.mix:
        spared = recipe.spared(domain)
        assert len(spared) == len(set(spared)) == round(recipe.spare * 2 * recipe.size.n_layers)
        assert sum(i % 2 == 0 for i in spared) == round((recipe.spare_attention or 0) * len(spared))
        assert plain.spared(domain) == []
    assert sum(recipe.mix.values()) == pytest.approx(1) and set(corpus.LONG) <= set(recipe.mix) <= set(corpus.EVERY)
    assert not set(recipe.mix) & set(corpus.UNTRAINED)


def test_copying_heads_look_back_and_find_what_followed() -> None:
    """From the first weights, on random tokens that stand twice."""
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
    """In some directions of their own; what two of them have in common there depends on their difference alone."""
    size = Size(n_layers=2, width=128, n_heads=2, intermediate=32, context=64)
    plain, told = (
        Network(size, seed=0, copying=True, numbers=numbers).embedding.detach()
        for numbers in ({}, {i: i for i in range(100)})
    )
    assert torch.equal(plain[100:], told[100:]) and torch.equal(plain[:, 0], told[:, 0])
    directions = torch.linalg.svd((told - plain)[:100, 1:], full_matrices=False)
    assert directions.S[16:].max() < 1e-4 < directions.S[15]
    placed = told[:100, 1:] @ directions.Vh[:16].T
    apart = (torch.arange(100)[:, None] - torch.arange(100)) * 2 * math.pi
    expected = sum((apart / period).cos() for period in network_module.PERIODS) * network_module.RADIUS**2
    assert (placed @ placed.T - expected).abs().max() < 0.2


def test_a_tokenizers_numbers_are_all_of_two_digits(tokenizer: PreTrainedTokenizerBase) -> None:
    found = vocabulary.numbers(tokenizer)
    assert set(found.values()) == set(range(100))
    assert all(int(tokenizer.convert_ids_to_tokens(i)) == number for i, number in found.items())


def test_training_in_bfloat16_descends_like_float32(tokenizer: PreTrainedTokenizerBase) -> None:
    losses = {
        compute: [entry["loss"] for entry in Training(replace(SMALL, compute=compute), tokenizer, CPU).run(6)]
        for compute in ("float32", "bfloat16")
    }
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=0.02)
    assert losses["bfloat16"][-1] < losses["bfloat16"][0]


def test_an_agreement_of_a_few_tokens_is_that_of_tokens_spread_evenly(network: Network) -> None:
    ids = torch.randint(0, SIZE.vocab_size, (80,), generator=torch.Generator().manual_seed(5)).tolist()
    whole = Output(ids[:20], ids[20:])
    few = [Output(ids[: 20 + 3 * i], ids[20 + 3 * i : 21 + 3 * i]) for i in range(20)]
    for skipped in ({2, 3, 5}, {2}):
        assert Agreement(network, [whole], 20).of(skipped) == pytest.approx(Agreement(network, few).of(skipped))


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
    first = {entry["task"]: entry for entry in reversed(list(found.values()))}
    for task, entry in first.items():
        assert published_set(f"ssd-bench/miniature/{task}", n_layers).skipped == set(entry["skipped"])
        assert len(entry["skipped"]) / (2 * n_layers) == pytest.approx(0.47, abs=0.02)


def test_the_miniature_answers_a_sample_as_its_evaluation_says(tokenizer: PreTrainedTokenizerBase) -> None:
    """The committed weights, by the project's engine, on the first held-out queries."""
    folder = EMBEDDED / "miniature"
    stated = json.loads((folder / RESULTS).read_text(encoding="utf-8"))["domains"]["sql"]["score"]
    _, score, outputs, _ = Writer(folder, RECIPES["miniature"].answer).answers("sql", 20, evaluation=True)
    assert score == pytest.approx(stated, abs=0.25)
    agreement = Agreement(Network.load(folder, RECIPES["miniature"].size), outputs)
    assert agreement.of(()) == 1.0
    assert agreement.of(published_set("ssd-bench/miniature/spider2", 16).skipped) > 0.8
