"""`python -m ssd_bench miniature`: train the embedded models, evaluate them, write the sample data."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from ssd_bench.miniature.recipe import RECIPES
from ssd_bench.model.checkpoint import EMBEDDED, cache_dir

COMMANDS = ("train", "evaluate", "samples")


def main(arguments: Sequence[str]) -> int:
    """Run the asked commands in order; returns the exit code."""
    import torch

    parser = argparse.ArgumentParser(prog="python -m ssd_bench miniature", description=__doc__)
    parser.add_argument("commands", nargs="+", choices=COMMANDS, help="in this order")
    parser.add_argument("--model", choices=RECIPES, nargs="+", default=list(RECIPES), help="default: all")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="of the training")
    parser.add_argument("--weights", type=Path, default=EMBEDDED, help="folder of the checkpoints")
    parser.add_argument("--work", type=Path, default=cache_dir() / "miniature", help="folder of what a resume needs")
    asked = parser.parse_args(arguments)
    if "train" in asked.commands:
        from ssd_bench.miniature import train, vocabulary

        for recipe in (RECIPES[name] for name in asked.model):
            tokenizer = vocabulary.train(recipe.mix, recipe.size.vocab_size, recipe.seed)
            train.train(
                recipe, tokenizer, torch.device(asked.device), asked.work / recipe.name, asked.weights / recipe.name
            )
    if "evaluate" in asked.commands:
        from ssd_bench.miniature import evaluate

        results = evaluate.evaluate([RECIPES[name] for name in asked.model], asked.weights)
        if asked.weights == EMBEDDED:
            evaluate.publish({name: found for name, found in results.items() if RECIPES[name].spare})
    if "samples" in asked.commands:
        from ssd_bench.miniature import samples

        samples.write()
    return 0
