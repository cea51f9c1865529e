"""Decode with a method, paired with AR, and record it; with -m a sweep. The default command.

`python -m ssd_bench [run] name=value …`
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from ssd_bench.run_warnings import WarningLog


def main(arguments: Sequence[str]) -> int:
    """Compose a config and run it, or sweep with -m; return the exit code."""
    from ssd_bench.compose.application import command
    from ssd_bench.console import report
    from ssd_bench.errors import ConfigError

    sweep = bool({"-m", "--multirun"} & set(arguments))
    odd = [argument for argument in arguments if argument.startswith(("experiment=", "experiment/", "scale="))]
    if odd or sweep or {"-h", "--help", "-sc", "--shell-completion"} & set(arguments):
        from ssd_bench.sweep.overrides import register_experiments

        try:
            register_experiments(arguments)
        except ConfigError as error:
            return report(error)
    if odd and not sweep:
        print(f"error: {odd[0]} needs a sweep: python -m ssd_bench -m {' '.join(arguments)}", file=sys.stderr)
        return 2
    return command(partial(_run, arguments=arguments), arguments)


def _run(cfg: DictConfig, wait: bool, log: WarningLog | None, arguments: Sequence[str]) -> Path | None:
    """Run one job, or describe it (`dry=true`); return the record's folder.

    The record names the command line's `arguments`; `wait` and `log` are as in `run.execute`.
    """
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    from ssd_bench.sweep import dry

    if dry.is_requested(cfg.dry):
        hydra = HydraConfig.get()
        # unresolved: a value may contain an interpolation
        overrides: Any = OmegaConf.to_container(hydra.overrides.task, resolve=False)
        planned = dry.Planned(overrides, hydra.runtime.choices, cfg)
        print(dry.describe("1 run", [planned], lambda _: None))
        return None
    from ssd_bench.report.closing import print_record
    from ssd_bench.run.plan import plan  # torch and transformers only once the config is composed
    from ssd_bench.run.run import execute
    from ssd_bench.run.shards import execute_shard

    job = plan(cfg, arguments, HydraConfig.get().runtime.choices)
    record = execute(job, wait, log) if cfg.shard is None else execute_shard(job, wait, log)
    if record is not None:
        print_record(record, log)
    return record
