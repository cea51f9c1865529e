"""Recipes of the embedded models: sizes, corpus mix, layer dropout, early-exit loss, schedule."""

from __future__ import annotations

import csv
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

with Path(__file__).with_name("mix.csv").open(newline="", encoding="utf-8") as file:
    _ROWS = [*csv.DictReader(file)]
# Share of the training tokens per domain of the corpus; in the last third less of the domains learnt by then, more of
# the others, and short questions with options: the letters of answers are only a few in a thousand tokens of a trace.
MIX, FINISH = ({row["domain"]: float(row[name]) for row in _ROWS if row[name]} for name in ("mix", "finish"))


@dataclass(frozen=True)
class Size:
    """A Llama decoder with tied embeddings and as many key-value heads as query heads."""

    n_layers: int = 16
    width: int = 128
    n_heads: int = 2
    intermediate: int = 256
    vocab_size: int = 2048
    context: int = 4096
    rope_base: float = 500_000.0
    eps: float = 1e-5


@dataclass(frozen=True)
class Recipe:
    """One training run, a function of these values alone.

    LayerSkip (Elhoushi et al. 2024, arXiv:2404.16710, §4.1) drops whole blocks at rates that grow with depth, at the
    same rates for all data, and adds the loss of early exits through the shared head. Here sublayers are dropped,
    and the rates differ by domain: large models need different layers for different tasks (SWIFT Figure 2b, KNN-SSD
    Figure 2), and a small one trained at uniform rates can spare any half of its layers on any task.

    Attributes:
        name: also the name of the folder in `weights/`.
        size: sizes of the decoder.
        mix: domain -> share of the tokens.
        finish: the same after the share `finish_at` of the steps.
        seed: seed of weights, corpus order, dropout and exits.
        steps: optimiser steps.
        batches: micro-batches per step, each of one domain.
        batch_tokens: tokens of a micro-batch, padding included (a longer document is one by itself).
        prompt_weight: weight of a prompt's tokens in the loss; an answer's tokens weigh 1.
        spare: share of dispensable sublayers, which a domain learns to do without; 0 for no layer dropout.
        spare_attention: share of attention sublayers among these: in large models attention is more redundant than
            MLPs (He et al. 2024, arXiv:2406.15786).
        spare_rate: highest rate at which these are dropped. A draw in [0, 1] for each micro-batch scales all rates,
            so that sublayers are dropped together, as drafting drops them.
        deeper: excess probability of the last sublayers to be among these, relative to the first: 1 for twice, 0 for
            the same.
        other_rate: highest rate of the other sublayers, reached at the last block but one.
        exit_weight: weight of the loss at a random block's exit; 0 for no exit.
        matrix_lr, vector_lr: peak learning rates of Muon (matrices of the blocks) and Adam (embedding, norms).
        copying: whether the initial weights have heads that copy and embeddings that encode numbers (`Network`).
        compute: dtype of the passes.
        shortest: length of items of growing domains at the first step, as a share of their full length.
        growth: share of the steps until items have their full length.
        answer: most tokens of a scored answer.
        warmup, decay: shares of the steps in which the learning rate rises from, and falls to, almost 0.
    """

    name: str
    size: Size = Size()
    mix: Mapping[str, float] = field(default_factory=lambda: dict(MIX))
    finish: Mapping[str, float] = field(default_factory=lambda: dict(FINISH))
    finish_at: float = 2 / 3
    seed: int = 0
    steps: int = 4200
    batches: int = 2
    batch_tokens: int = 1024
    prompt_weight: float = 0.2
    spare: float = 0.47
    spare_attention: float = 0.6
    spare_rate: float = 0.9
    deeper: float = 0.0
    other_rate: float = 0.01
    exit_weight: float = 0.02
    matrix_lr: float = 0.01
    vector_lr: float = 0.004
    copying: bool = True
    compute: str = "bfloat16"
    shortest: float = 0.1
    growth: float = 0.5
    answer: int = 1600
    warmup: float = 0.0227
    decay: float = 0.6

    def drop_rates(self, domain: str) -> list[float]:
        """Return the highest drop rate of each of the 2L sublayers on a domain; 0 in the first and the last block.

        With `deeper`, the first half of the blocks keeps enough to exit from. A domain of `finish` alone drops none.
        """
        if domain not in self.mix:
            return [0.0] * (2 * self.size.n_layers)
        last = 2 * self.size.n_layers - 2
        rates = [0.0] * (2 * self.size.n_layers)
        for i in range(2, last):
            rates[i] = self.other_rate * (i // 2) / (self.size.n_layers - 2)
        for i in self.spared(domain):
            rates[i] = self.spare_rate
        return rates

    def spared(self, domain: str) -> list[int]:
        """Draw the sublayers that a domain learns to do without; ascending, the same at every call."""
        inner = range(2, 2 * self.size.n_layers - 2)
        rng = random.Random(f"{self.seed}/spared/{domain}")
        # weighted draw without replacement: the largest u ** (1 / weight) (Efraimidis & Spirakis 2006)
        keys = {i: rng.random() ** (1 / (1 + self.deeper * i / len(inner))) for i in inner}
        count = round(self.spare * 2 * self.size.n_layers)
        attention = round(self.spare_attention * count)
        parts = ((inner[::2], attention), (inner[1::2], count - attention))
        spared = [i for part, n in parts for i in sorted(part, key=keys.__getitem__, reverse=True)[:n]]
        return sorted(spared)

    def mix_at(self, step: int) -> Mapping[str, float]:
        """Return domain -> share of the tokens at a step."""
        return self.mix if step < round(self.finish_at * self.steps) else self.finish

    def longest(self, step: int) -> float:
        """Return the longest length of items of growing domains at a step, as a share of their full length."""
        return min(1.0, self.shortest + (1 - self.shortest) * step / max(1, round(self.growth * self.steps)))

    def learning_rate(self, step: int) -> float:
        """Return the learning rate at a step as a share of its peak: linear up, constant, linear down."""
        up = (step + 1) / max(1, round(self.warmup * self.steps))
        down = (self.steps - step) / max(1, round(self.decay * self.steps))
        return min(1.0, up, down)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def _with_plain(recipe: Recipe) -> dict[str, Recipe]:
    """Return the recipe, and the same without layer dropout and early-exit loss, by name."""
    plain = replace(recipe, name=f"{recipe.name}_plain", spare=0.0, other_rate=0.0, exit_weight=0.0)
    return {recipe.name: recipe, plain.name: plain}


RECIPES = _with_plain(Recipe("miniature"))
