"""`python -m ssd_bench`: compose a config with Hydra, run it, print a table. Input errors end with exit code 2."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from ssd_bench.errors import ConfigError

BAD_INPUT = 2


@hydra.main(version_base="1.3", config_path="../conf", config_name="config")
def _run(cfg: DictConfig) -> None:
    from ssd_bench.run import execute, plan  # torch and transformers only once the config is composed

    execute(plan(cfg))


def reported(command: Callable[[], None]) -> int:
    """Run a Hydra command; exit code 0 done, 1 not lossless, 2 an option that cannot work (one message, no traceback)."""
    # Hydra prints its own errors with exit code 1 unless it is told to let them through
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        command()
    except (ConfigError, HydraException, OmegaConfBaseException) as error:
        print(f"error: {str(error).strip()}", file=sys.stderr)
        return BAD_INPUT
    except RuntimeError as error:
        if type(error).__name__ != "LosslessError":
            raise
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(reported(_run))
