"""`python -m ssd_bench`: compose a config with Hydra, run it, print a table."""

from __future__ import annotations

import sys

from omegaconf import DictConfig

from ssd_bench.command import command


def _run(cfg: DictConfig) -> None:
    from ssd_bench.run import execute, plan  # torch and transformers only once the config is composed

    execute(plan(cfg))


if __name__ == "__main__":
    sys.exit(command(_run))
