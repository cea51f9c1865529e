"""What the embedded models can do and how sparse they are, on held-out items; written beside the weights."""

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
from ssd_bench.compose import task_named
from ssd_bench.core.engine import SCRATCH, Engine
from ssd_bench.core.layer_set import LayerSet
from ssd_bench.core.probe import ModelProbe
from ssd_bench.core.sampling import Decoding
from ssd_bench.miniature import corpus
from ssd_bench.miniature.network import Network
from ssd_bench.miniature.recipe import RECIPES, Recipe
from ssd_bench.miniature.sparsity import Agreement, Output, search
from ssd_bench.model.backend import select
from ssd_bench.model.checkpoint import Checkpoint

RESULTS = "evaluation.json"
SEED = 2  # other items than the samples'
ITEMS = 50  # held-out items a domain, for scores; the first AGREE of them for agreement
AGREE = 20
CALIBRATION = 12  # training items a domain that the search sees
VALIDATION = 24  # further training items, by which one of what searches began with and found is chosen
ROUNDS = 60  # swaps that a search tries
POSITIONS = 120  # of an output that agreement is taken on, spread over it evenly
RATIO = 0.47  # of the 2L sublayers, skipped in every set that is compared
GRAM = 8  # tokens; outputs that run in circles repeat such sequences


def evaluate(recipes: Sequence[Recipe], weights: Path) -> dict[str, Any]:
    """Scores, agreement and transfer of every model; prints tables and writes `evaluation.json` per model.

    Returns:
        Model name -> what was written.
    """
    results = {recipe.name: _model(recipe, weights / recipe.name) for recipe in recipes}
    for recipe in recipes:
        (weights / recipe.name / RESULTS).write_text(
            json.dumps(results[recipe.name], indent=1) + "\n", encoding="utf-8"
        )
    print(screen(results))
    return results


def screen(results: Mapping[str, Mapping[str, Any]]) -> str:
    """The figures of all models, one line a domain, and their means."""
    parts = []
    for name, found in results.items():
        columns = ("tokens", "score", "repeated", "own", "best", "uniform", "exit", "transferred")
        domains = found["domains"]
        rows = [(domain, entry["metric"], *(f"{entry[c]:.4g}" for c in columns)) for domain, entry in domains.items()]
        means = (mean(entry[c] for entry in domains.values()) for c in columns)
        rows.append(("mean", "", *(f"{value:.4g}" for value in means)))
        frame = pd.DataFrame(rows, columns=["domain", "metric", *columns])
        parts.append(f"{name}\n{tables.terminal(frame, columns)}")
    return "\n\n".join(parts)


def publish(results: Mapping[str, Mapping[str, Any]]) -> None:
    """Give each model's best sets a name, `ssd-bench/MODEL/TASK`, among the published ones (`method.published`).

    Where several domains have one task, the first one's set has its name.
    """
    ours = tuple(f"ssd-bench/{name}/" for name in results)
    sets = {name: entry for name, entry in published_sets().items() if not name.startswith(ours)}
    for name, found in results.items():
        for entry in reversed(list(found["domains"].values())):
            best = LayerSet(RECIPES[name].size.n_layers, frozenset(entry["skipped"]))
            sets[f"ssd-bench/{name}/{entry['task']}"] = {
                "n_layers": best.n_layers, "skip_attn": list(best.skip_attn), "skip_mlp": list(best.skip_mlp),
                "source": f"ssd_bench/miniature/weights/{name}/{RESULTS}",
            }  # fmt: skip
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(sets[name])}" for name in sorted(sets))
    PUBLISHED.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


def _model(recipe: Recipe, folder: Path) -> dict[str, Any]:
    network, n_layers = Network.load(folder, recipe.size).eval(), recipe.size.n_layers
    writer = Writer(folder, recipe.answer)
    uniform = pattern_set("uniform", RATIO, n_layers).skipped
    exit_half = LayerSet.exit(n_layers, n_layers // 2).skipped
    domains: dict[str, dict[str, Any]] = {}
    tests: dict[str, Agreement] = {}
    for domain in tqdm(recipe.mix, desc=f"evaluate {recipe.name}", unit="domain"):
        metric, score, outputs, references = writer.answers(domain, ITEMS, evaluation=True)
        seen = writer.answers(domain, CALIBRATION + VALIDATION, evaluation=False)[2]
        calibration = Agreement(network, seen[:CALIBRATION], POSITIONS)
        validation = Agreement(network, seen[CALIBRATION:], POSITIONS)
        tests[domain] = Agreement(network, outputs[:AGREE], POSITIONS)
        starts = [uniform] + ([recipe.spared(domain)] if recipe.spare else [])
        found = [search(calibration, start, n_layers, ROUNDS, recipe.seed) for start in starts]
        # a search that sees few tokens drifts between sets that are equal on them and worse on others
        best = max([*starts[::-1], *found], key=validation.of)
        domains[domain] = {
            "task": corpus.named(domain).task, "metric": metric, "score": score,
            "tokens": median(len(made.output) for made in outputs),
            "repeated": mean(repeated(made.output) for made in outputs), "own": mean(map(repeated, references)),
            "skipped": list(best),
            "best": tests[domain].of(best), "uniform": tests[domain].of(uniform), "exit": tests[domain].of(exit_half),
            "from_uniform": tests[domain].of(found[0]),
        }  # fmt: skip
    for domain, entry in domains.items():
        others = {d: tests[domain].of(other["skipped"]) for d, other in domains.items() if d != domain}
        entry |= {"transferred": mean(others.values()), "transfer": others}
    return {"ratio": len(uniform) / (2 * n_layers), "items": ITEMS, "domains": domains}


def repeated(tokens: Sequence[int]) -> float:
    """Share of the sequences of `GRAM` tokens that stood in the text before; 0 where it is shorter."""
    grams = [tuple(tokens[i : i + GRAM]) for i in range(len(tokens) - GRAM + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


class Writer:
    """Greedy outputs of a checkpoint on the corpus, by the project's own engine.

    Args:
        folder: the checkpoint.
        most: tokens of an answer.
    """

    def __init__(self, folder: Path, most: int):
        checkpoint = Checkpoint(folder)
        self._checkpoint, self._context = checkpoint, checkpoint.config.max_position_embeddings
        decoder = select("cpu", torch.bfloat16).load(checkpoint, torch.bfloat16, [torch.device("cpu")])
        cache = decoder.new_cache(self._context + SCRATCH)
        decoding = Decoding(max_new_tokens=most)
        self._engine = Engine(decoder, cache, decoding, checkpoint.eos_ids, ModelProbe(decoder, cache))

    def answers(self, domain: str, n: int, evaluation: bool) -> tuple[str, float, list[Output], list[tuple[int, ...]]]:
        """The task's metric, its mean over n items of one split, the outputs, and the references' tokens.

        Of a conversation the last answer, after the references of those before it.
        """
        made = corpus.distinct(domain, n, SEED, evaluation)
        task = task_named(corpus.named(domain).task)
        documents = corpus.documents(domain, made, self._checkpoint.tokenizer, self._context)
        scores, outputs = [], []
        for document, item, prompt in zip(documents, made, corpus.prompts(domain, made), strict=True):
            output = self._engine.generate(AR(), document.prompt).output
            text = self._checkpoint.text(output)
            asked = replace(prompt, reference=item.further[-1][1]) if item.further else prompt
            scores.append(task.score(asked, text) or 0.0)  # every item of the corpus has a reference
            outputs.append(Output(document.prompt, output))
        return task.metric, mean(scores), outputs, [document.answer for document in documents]
