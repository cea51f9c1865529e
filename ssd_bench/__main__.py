"""`python -m ssd_bench`: compose a config with Hydra, run it, print a table.

With `-m experiment=NAME[,NAME] scale=paper|small|mini`: the runs behind exhibits of the papers; `--dry` prints them.
"""

from __future__ import annotations

import sys
from pathlib import Path

from omegaconf import DictConfig

from ssd_bench.command import command
from ssd_bench.replicate import dry


def _run(cfg: DictConfig) -> Path:
    from ssd_bench.plan import plan  # torch and transformers only once the config is composed
    from ssd_bench.report.terminal import close
    from ssd_bench.run import execute

    made = execute(plan(cfg))
    close(made)
    return made


def main() -> int:
    """Returns the exit code."""
    swept = {"-m", "--multirun"} & set(sys.argv)
    if not swept and (odd := [a for a in sys.argv[1:] if a == "--dry" or a.startswith(("experiment=", "scale="))]):
        print(f"error: {odd[0]} is for sweeps: python -m ssd_bench -m {' '.join(sys.argv[1:])}", file=sys.stderr)
        return 2
    if "--dry" in sys.argv:
        sys.argv.remove("--dry")
        dry.asked = True
    return command(_run)


if __name__ == "__main__":
    sys.exit(main())
