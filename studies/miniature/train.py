"""Training of the embedded models: a loop that can be killed at any step and resumed."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from studies.miniature import vocabulary
from studies.miniature.corpus import Batch, Batches
from studies.miniature.network import Network
from studies.miniature.optimiser import Muon
from studies.miniature.recipe import Recipe

if TYPE_CHECKING:
    import random

    from transformers import PreTrainedTokenizerBase

CHECKPOINT_EVERY = 100  # steps
LOG, STATE, SUMMARY = "training_log.csv", "state.pt", "training.json"


class Training:
    """Training run of one recipe.

    Args:
        recipe: determines the weights.
        tokenizer: tokenizer of the recipe's corpus.
        device: device of the network; batches are made on the CPU.
    """

    def __init__(self, recipe: Recipe, tokenizer: PreTrainedTokenizerBase, device: torch.device):
        self.recipe, self.device, self.step = recipe, device, 0
        compute: torch.dtype = getattr(torch, recipe.compute)
        numbers = vocabulary.numbers(tokenizer)
        self.network = Network(recipe.size, recipe.seed, compute, recipe.copying, numbers).to(device)
        self.batches = Batches(
            tokenizer,
            recipe.size.context,
            recipe.mix_at,
            recipe.batch_tokens,
            recipe.prompt_weight,
            recipe.seed,
            recipe.longest,
        )
        self.rates = {domain: torch.tensor(recipe.drop_rates(domain)) for domain in {**recipe.mix, **recipe.finish}}
        parts = (3, 1, 2, 1)  # q, k, v and gate, up are matrices of their own
        self.optimisers: list[torch.optim.Optimizer] = [
            Muon(self.network.matrices(), parts, recipe.matrix_lr, momentum=0.95, decay=0.01, compute=compute),
            torch.optim.Adam(self.network.vectors(), recipe.vector_lr, betas=(0.9, 0.95), fused=True),
        ]
        self.log: list[dict[str, Any]] = []
        self.seconds = 0.0

    def run(self, until: int) -> Iterator[dict[str, Any]]:
        """Train up to step `until`; yield the log entry of each step: step, loss, tokens so far."""
        while self.step < until:
            begin = time.perf_counter()
            losses, tokens = [], 0
            for number in range(self.recipe.batches):
                batch, rng = self.batches.at(self.step, number)
                loss, last_block_loss = self._loss(batch, rng)
                (loss / self.recipe.batches).backward()
                losses.append(last_block_loss)
                tokens += batch.tokens.numel()
            self._update()
            self.seconds += time.perf_counter() - begin
            earlier_tokens = self.log[-1]["tokens"] if self.log else 0
            self.log.append(
                {"step": self.step, "loss": float(torch.stack(losses).mean()), "tokens": earlier_tokens + tokens}
            )
            self.step += 1
            yield self.log[-1]

    def _update(self) -> None:
        scale = self.recipe.learning_rate(self.step)
        for optimiser, peak in zip(self.optimisers, (self.recipe.matrix_lr, self.recipe.vector_lr)):
            for group in optimiser.param_groups:
                group["lr"] = peak * scale
            optimiser.step()
            optimiser.zero_grad()

    def _loss(self, batch: Batch, rng: random.Random) -> tuple[Tensor, Tensor]:
        """Return the loss to minimise, and its part at the last block (detached)."""
        recipe, n_layers = self.recipe, self.recipe.size.n_layers
        dropped = self._dropped(batch.domain, rng)
        exit_after = rng.randrange(1, n_layers) if recipe.exit_weight else None
        tokens, weights = batch.tokens.to(self.device), batch.weights.to(self.device)
        streams = self.network(tokens[:, :-1], dropped, exit_after)
        losses = [self._weighted(stream, tokens[:, 1:], weights) for stream in streams]
        total = losses[0] if exit_after is None else losses[0] + recipe.exit_weight * losses[1]
        return total, losses[0].detach()

    def _dropped(self, domain: str, rng: random.Random) -> set[int]:
        # One severity for all sublayers of a batch: near 1, all dispensable ones are dropped together, as in drafts.
        severity = rng.random()
        return {i for i, rate in enumerate(self.rates[domain].tolist()) if rng.random() < severity * rate}

    def _weighted(self, stream: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        # The LM head runs only on tokens with a weight: not on padding nor, with prompt_weight 0, on prompts.
        counts = weights > 0
        losses = F.cross_entropy(self.network.logits(stream[counts]).float(), targets[counts], reduction="none")
        return (losses * weights[counts]).sum() / weights.sum()

    def state(self) -> dict[str, Any]:
        """Return everything that `restore` needs; batches and dropout are functions of the step."""
        optimisers = [optimiser.state_dict() for optimiser in self.optimisers]
        return {
            "recipe": self.recipe.as_dict(),
            "step": self.step,
            "seconds": self.seconds,
            "log": self.log,
            "network": self.network.state_dict(),
            "optimisers": optimisers,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state`."""
        self.step, self.seconds, self.log = state["step"], state["seconds"], state["log"]
        self.network.load_state_dict(state["network"])
        for optimiser, saved in zip(self.optimisers, state["optimisers"]):
            optimiser.load_state_dict(saved)


def train(recipe: Recipe, tokenizer: PreTrainedTokenizerBase, device: torch.device, work: Path, target: Path) -> None:
    """Train a recipe to its end and write the checkpoint, its log and its summary into `target`.

    Args:
        work: folder of the resumable state, which stays there afterwards.
        target: folder of the Hugging Face checkpoint.
    """
    work.mkdir(parents=True, exist_ok=True)
    training, saved = Training(recipe, tokenizer, device), work / STATE
    if saved.is_file():
        state = torch.load(saved, map_location=device, weights_only=True)
        if state["recipe"] == recipe.as_dict():
            training.restore(state)
    with tqdm(total=recipe.steps, initial=training.step, desc=recipe.name, unit="step", mininterval=1.0) as bar:
        for entry in training.run(recipe.steps):
            bar.set_postfix_str(f"loss {entry['loss']:.3f}, {entry['tokens'] / training.seconds:.0f} tokens/s", False)
            bar.update()
            if training.step % CHECKPOINT_EVERY == 0 or training.step == recipe.steps:
                torch.save(training.state(), saved.with_suffix(".new"))
                os.replace(saved.with_suffix(".new"), saved)
    _write(training, tokenizer, target)


def _write(training: Training, tokenizer: PreTrainedTokenizerBase, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    training.network.save(target, tokenizer.bos_token_id, tokenizer.eos_token_id)
    tokenizer.save_pretrained(target)
    with (target / LOG).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["step", "loss", "tokens"], lineterminator="\n")
        writer.writeheader()
        writer.writerows({**entry, "loss": f"{entry['loss']:.5f}"} for entry in training.log)
    weights = (target / "model.safetensors").read_bytes()
    summary = {
        "recipe": training.recipe.as_dict(),
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
        "parameters": sum(p.numel() for p in training.network.parameters()),
        "tokens": training.log[-1]["tokens"],
        "minutes": round(training.seconds / 60, 1),
        "device": str(training.device),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    (target / SUMMARY).write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
