"""Measure the speed of the engine on one model and one machine.

`python -m ssd_bench bench [record=true] name=value ...`

Takes the options of a run (`python -m ssd_bench run --help`: model, task, hardware, runs_dir, ...), decodes with the
first prompts of the task, and prints tables: ratios within one run, and each time with its lower limit by the
machine's memory and arithmetic, both measured first.

  record=true    write the result to runs_dir/bench/MACHINE/MODEL-DTYPE-KERNELS-ISA.json, replacing an older one;
                 default: a new file for every result, runs_dir/bench/TIME.json

Git ignores both, like everything in runs/ except the reference records.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig

from ssd_bench.bench.bench import RECORD, bench
from ssd_bench.compose.application import command
from ssd_bench.console import report
from ssd_bench.errors import ConfigError
from ssd_bench.run_warnings import WarningLog


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark of a command line; return the exit code, as of a run."""
    if {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0
    record_options = [argument for argument in arguments if argument.startswith(f"{RECORD}=")]
    values = [argument.partition("=")[2] for argument in record_options]
    if len(values) > 1 or not {"true", "false"}.issuperset(values):
        return report(ConfigError(RECORD, " ".join(values), "true or false, once"))
    remaining = [argument for argument in arguments if argument not in record_options]  # those of a run

    def work(cfg: DictConfig, wait: bool, log: WarningLog | None) -> Path:
        return bench(cfg, values == ["true"], remaining)

    return command(work, remaining)
