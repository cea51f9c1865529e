"""Train the embedded models, evaluate them, write the sample data: `python -m studies.miniature --help`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ssd_bench.model.checkpoint import EMBEDDED
from ssd_bench.paths import cache_dir
from studies.miniature.recipe import RECIPES

COMMANDS = ("train", "evaluate", "samples")


def main(arguments: Sequence[str]) -> int:
    """Run the given commands in the order train, evaluate, samples; return the exit code."""
    import torch

    parser = argparse.ArgumentParser(prog="python -m studies.miniature", description=__doc__)
    parser.add_argument("commands", nargs="+", choices=COMMANDS, help="in this order")
    parser.add_argument("--model", choices=RECIPES, nargs="+", default=list(RECIPES), help="default: all")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="of the training")
    parser.add_argument("--weights", type=Path, default=EMBEDDED, help="folder of the checkpoints")
    parser.add_argument("--work", type=Path, default=cache_dir() / "miniature", help="folder of what a resume needs")
    parsed = parser.parse_args(arguments)
    if "train" in parsed.commands:
        from studies.miniature import train, vocabulary

        for recipe in (RECIPES[name] for name in parsed.model):
            tokenizer = vocabulary.train(recipe.mix, recipe.size.vocab_size, recipe.seed)
            train.train(
                recipe, tokenizer, torch.device(parsed.device), parsed.work / recipe.name, parsed.weights / recipe.name
            )
    if "evaluate" in parsed.commands:
        from studies.miniature import evaluate

        results = evaluate.evaluate([RECIPES[name] for name in parsed.model], parsed.weights)
        if parsed.weights == EMBEDDED:
            evaluate.publish({name: result for name, result in results.items() if RECIPES[name].spare})
    if "samples" in parsed.commands:
        from studies.miniature import samples

        samples.write()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
