"""`python -m ssd_bench`: compose a config with Hydra, run it, print a table.

With `-m experiment=NAME[,NAME] scale=paper|small|mini`: the runs behind exhibits of the papers. `dry=true` prints what
would run.
"""

from __future__ import annotations

import sys
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from ssd_bench.command import command


def _run(cfg: DictConfig) -> Path | None:
    from ssd_bench.replicate import dry

    if dry.asked(cfg.dry):
        hydra = HydraConfig.get()
        print(dry.describe("1 run", [dry.Planned(list(hydra.overrides.task), hydra.runtime.choices, cfg)]))
        return None
    from ssd_bench.plan import plan  # torch and transformers only once the config is composed
    from ssd_bench.report.terminal import close
    from ssd_bench.run import execute

    made = execute(plan(cfg))
    close(made)
    return made


def main() -> int:
    """Returns the exit code."""
    swept = {"-m", "--multirun"} & set(sys.argv)
    if not swept and (odd := [a for a in sys.argv[1:] if a.startswith(("experiment=", "scale="))]):
        print(f"error: {odd[0]} is for sweeps: python -m ssd_bench -m {' '.join(sys.argv[1:])}", file=sys.stderr)
        return 2
    return command(_run)


if __name__ == "__main__":
    sys.exit(main())
