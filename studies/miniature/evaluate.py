"""Evaluation of the embedded models on held-out items: scores and sparsity, written next to the weights."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, median
from typing import Any

import pandas as pd
import torch
from tqdm import tqdm

from methods.ar import AR
from methods.fixed_layers import PUBLISHED, pattern_set, published_sets
from ssd_bench import tables
from ssd_bench.compose.build import task_named
from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.engine.engine import SCRATCH, Engine
from ssd_bench.engine.probe import ModelProbe
from ssd_bench.engine.sampling import Decoding
from ssd_bench.model.backend import select
from ssd_bench.model.checkpoint import Checkpoint
from studies.miniature import corpus
from studies.miniature.network import Network
from studies.miniature.recipe import RECIPES, Recipe
from studies.miniature.sparsity import ModelOutput, SetAgreement, search

RESULTS = "evaluation.json"
SEED = 2  # not that of the samples, so that items differ
ITEMS = 50  # held-out items per domain for scores; the first AGREE of them for agreement
AGREE = 20
CALIBRATION = 12  # training items per domain for the search
VALIDATION = 24  # further training items, for the choice among the start sets and results of the searches
ROUNDS = 60  # swaps tried by a search
POSITIONS = 120  # evenly spread positions of an output on which agreement is measured
RATIO = 0.47  # share of the 2L sublayers that every compared set skips
GRAM = 8  # tokens of a sequence whose repetitions show outputs that run in circles


def evaluate(recipes: Sequence[Recipe], weights: Path) -> dict[str, Any]:
    """Measure scores, agreement and transfer of every model; print tables and write `evaluation.json` per model.

    Returns:
        Model name -> content of its file.
    """
    results = {recipe.name: _model(recipe, weights / recipe.name) for recipe in recipes}
    for recipe in recipes:
        (weights / recipe.name / RESULTS).write_text(
            json.dumps(results[recipe.name], indent=1) + "\n", encoding="utf-8"
        )
    print(render(results))
    return results


def render(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a table per model: one row per domain, and their means."""
    texts = []
    for name, result in results.items():
        columns = ("tokens", "score", "repeated", "own", "best", "uniform", "exit", "transferred")
        domains = result["domains"]
        rows = [(domain, entry["metric"], *(f"{entry[c]:.4g}" for c in columns)) for domain, entry in domains.items()]
        means = (mean(entry[c] for entry in domains.values()) for c in columns)
        rows.append(("mean", "", *(f"{value:.4g}" for value in means)))
        frame = pd.DataFrame(rows, columns=["domain", "metric", *columns])
        texts.append(f"{name}\n{tables.terminal(frame, columns)}")
    return "\n\n".join(texts)


def publish(results: Mapping[str, Mapping[str, Any]]) -> None:
    """Write each model's best sets as `ssd-bench/MODEL/TASK` among the published sets (`method.published`).

    If several domains have the same task, the set of the first domain is written.
    """
    prefixes = tuple(f"ssd-bench/{name}/" for name in results)
    sets = {name: entry for name, entry in published_sets().items() if not name.startswith(prefixes)}
    for name, result in results.items():
        for entry in reversed(list(result["domains"].values())):
            best = LayerSet(RECIPES[name].size.n_layers, frozenset(entry["skipped"]))
            sets[f"ssd-bench/{name}/{entry['task']}"] = {
                "n_layers": best.n_layers,
                "skip_attn": list(best.skip_attn),
                "skip_mlp": list(best.skip_mlp),
                "source": f"ssd_bench/miniature/weights/{name}/{RESULTS}",
            }
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(sets[name])}" for name in sorted(sets))
    PUBLISHED.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


def _model(recipe: Recipe, folder: Path) -> dict[str, Any]:
    """Measure one model; return the content of its `evaluation.json`."""
    network, n_layers = Network.load(folder, recipe.size).eval(), recipe.size.n_layers
    writer = Writer(folder, recipe.answer)
    uniform = pattern_set("uniform", RATIO, n_layers).skipped
    exit_half = LayerSet.exit(n_layers, n_layers // 2).skipped
    domains: dict[str, dict[str, Any]] = {}
    tests: dict[str, SetAgreement] = {}
    for domain in tqdm(recipe.mix, desc=f"evaluate {recipe.name}", unit="domain"):
        metric, score, outputs, references = writer.answers(domain, ITEMS, evaluation=True)
        train_outputs = writer.answers(domain, CALIBRATION + VALIDATION, evaluation=False)[2]
        calibration = SetAgreement(network, train_outputs[:CALIBRATION], POSITIONS)
        validation = SetAgreement(network, train_outputs[CALIBRATION:], POSITIONS)
        tests[domain] = SetAgreement(network, outputs[:AGREE], POSITIONS)
        start_sets = [uniform] + ([recipe.spared(domain)] if recipe.spare else [])
        searched = [search(calibration, start, n_layers, ROUNDS, recipe.seed) for start in start_sets]
        # With few tokens, a search drifts among sets that agree equally on them but not on others.
        best = max([*start_sets[::-1], *searched], key=validation.of)
        domains[domain] = {
            "task": corpus.EVERY[domain].task,
            "metric": metric,
            "score": score,
            "tokens": median(len(output.output) for output in outputs),
            "repeated": mean(repeated(output.output) for output in outputs),
            "own": mean(map(repeated, references)),
            "skipped": list(best),
            "best": tests[domain].of(best),
            "uniform": tests[domain].of(uniform),
            "exit": tests[domain].of(exit_half),
            "from_uniform": tests[domain].of(searched[0]),
        }
    for domain, entry in domains.items():
        transfer = {d: tests[domain].of(source_entry["skipped"]) for d, source_entry in domains.items() if d != domain}
        entry |= {"transferred": mean(transfer.values()), "transfer": transfer}
    return {"ratio": len(uniform) / (2 * n_layers), "items": ITEMS, "domains": domains}


def repeated(tokens: Sequence[int]) -> float:
    """Return the share of sequences of `GRAM` tokens that occurred earlier in the text; 0 for a shorter text."""
    grams = [tuple(tokens[i : i + GRAM]) for i in range(len(tokens) - GRAM + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


class Writer:
    """Greedy outputs of a checkpoint on the corpus, by the project's own engine.

    Args:
        folder: the checkpoint.
        most: most tokens of an answer.
    """

    def __init__(self, folder: Path, most: int):
        checkpoint = Checkpoint(folder)
        self._checkpoint, self._context = checkpoint, checkpoint.config.max_position_embeddings
        decoder = select("cpu", torch.bfloat16).load(checkpoint, torch.bfloat16, [torch.device("cpu")])
        cache = decoder.new_cache(self._context + SCRATCH)
        decoding = Decoding(max_new_tokens=most)
        self._engine = Engine(decoder, cache, decoding, checkpoint.eos_ids, ModelProbe(decoder, cache))

    def answers(
        self, domain: str, n: int, evaluation: bool
    ) -> tuple[str, float, list[ModelOutput], list[tuple[int, ...]]]:
        """Answer n items of one split; of a conversation only the last turn, after the references of earlier turns.

        Returns:
            The task's metric, its mean, the outputs, and the tokens of the references.
        """
        sampled = corpus.distinct(domain, n, SEED, evaluation)
        task = task_named(corpus.EVERY[domain].task)
        documents = corpus.documents(domain, sampled, self._checkpoint.tokenizer, self._context)
        scores, outputs = [], []
        for document, item, prompt in zip(documents, sampled, corpus.prompts(domain, sampled), strict=True):
            output = self._engine.generate(AR(), document.prompt).output
            text = self._checkpoint.text(output)
            scored_prompt = replace(prompt, reference=item.further[-1][1]) if item.further else prompt
            scores.append(task.score(scored_prompt, text) or 0.0)  # every item of the corpus has a reference
            outputs.append(ModelOutput(document.prompt, output))
        return task.metric, mean(scores), outputs, [document.answer for document in documents]
