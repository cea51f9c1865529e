"""Entry point of all commands: `ssd-bench [COMMAND] name=value …`, or `python -m ssd_bench [COMMAND] name=value …`.

Only the chosen command is imported, so that commands without torch start fast.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from omegaconf import DictConfig

COMMANDS = {
    "run": ("ssd_bench.cli", "decode with a method, paired with AR, and record it (also without a COMMAND)"),
    "report": ("ssd_bench.report.command", "tables and figures of the recorded runs, next to those of the papers"),
    "claims": ("ssd_bench.report.verdicts", "the papers' claims, each checked against the records"),
    "status": ("ssd_bench.status", "state of the runs in a folder: running, failed, stopped, waiting"),
    "explain": ("ssd_bench.explain", "why a run is as fast as it is, and its largest loss"),
    "replay": ("ssd_bench.replay.command", "speed of a recorded run, predicted for another machine"),
    "advise": (
        "ssd_bench.advise",
        "whether self-drafting pays for a model on a machine, and with which method",
    ),
    "export": ("ssd_bench.exchange.export", "a run's acceptance in vLLM's format, or one of its layer sets"),
    "acceptance": ("ssd_bench.exchange.acceptance", "acceptance that a vLLM server reports, compared with a run's"),
    "frontier": ("ssd_bench.frontier", "the layer sets of the runs, compared with the best ones"),
    "searches": ("ssd_bench.records.search_store", "the layer searches on disk"),
    "pack": ("ssd_bench.records.pack", "pack the complete runs of a folder into one file"),
    "coverage": ("ssd_bench.coverage", "coverage of the confidence intervals, simulated on recorded runs"),
    "data": ("ssd_bench.data.command", "data of the tasks: list, fetch, check"),
    "audit": ("ssd_bench.papers.command", "contradictions between the papers' own numbers"),
    "bench": ("ssd_bench.bench", "speed of the engine on this machine"),
    "shapes": ("ssd_bench.bench.shapes", "speed of known model sizes on this GPU, at the papers' acceptance"),
    "kernels": ("ssd_bench.model.backends.cpu.command", "compile the CPU kernels, or say why that fails"),
    "options": ("ssd_bench.every_option", "all options of runs, methods and tasks, or those that contain about=TEXT"),
    "weights": ("ssd_bench.model.convert", "convert SmolLM2's weights, so that runs start at once"),
    "miniature": ("ssd_bench.miniature.command", "train the embedded models, evaluate them, write the samples"),
}
"""Command -> module with its `main`, and its description."""

HELP = """\
ssd-bench [COMMAND] name=value ..., or python -m ssd_bench: self-speculative decoding, every method in one engine
{commands}
  ssd-bench -m method=ar,knapspec task=gsm8k,govreport     a sweep (experiment=NAME scale=mini: runs of a paper's table)
Every group, choice and option of a run: ssd-bench run --help; of another command: ssd-bench COMMAND --help"""


def entry() -> NoReturn:
    """Run the program `ssd-bench`; exit with the command's exit code."""
    sys.exit(dispatch(sys.argv[1:]))


def dispatch(arguments: Sequence[str]) -> int:
    """Run the command that the arguments name, `run` by default.

    Returns:
        The command's exit code; 2 for an unknown command.
    """
    arguments = [expand_home(argument) for argument in arguments]
    first = arguments[0] if arguments else "run"
    if first in ("-h", "--help"):
        listed = "\n".join(f"  {name:10} {line}" for name, (_, line) in COMMANDS.items())
        print(HELP.format(commands=listed))
        return 0
    if "=" in first or first.startswith(("-", "~")):
        first, arguments = "run", ["run", *arguments]
    if first not in COMMANDS:
        print(f"error: unknown command {first}; available: {', '.join(COMMANDS)}, or name=value", file=sys.stderr)
        return 2
    remaining = list(arguments[1:])
    sys.argv = [sys.argv[0], *remaining]  # read there by Hydra, and for the command that a record names
    code: int = importlib.import_module(COMMANDS[first][0]).main(remaining)
    return code


def expand_home(argument: str) -> str:
    """Expand a leading ~ in an option's value, quoted or not; shells expand it only at the start of a word."""
    match = re.fullmatch(r"""([^=]*=['"]?)(~/.*)""", argument, re.DOTALL)
    return match[1] + os.path.expanduser(match[2]) if match else argument


def main(arguments: Sequence[str]) -> int:
    """Compose a config and run it, or sweep with -m; return the exit code."""
    from ssd_bench.command import command
    from ssd_bench.console import report
    from ssd_bench.errors import ConfigError

    odd = [argument for argument in arguments if argument.startswith(("experiment=", "experiment/", "scale="))]
    if odd and not {"-m", "--multirun"} & set(arguments):
        print(f"error: {odd[0]} needs a sweep: python -m ssd_bench -m {' '.join(arguments)}", file=sys.stderr)
        return 2
    if {"-m", "--multirun", "-h", "--help", "-sc", "--shell-completion"} & set(arguments):
        from ssd_bench.sweep.sweep import register_experiments

        try:
            register_experiments(arguments)
        except ConfigError as error:
            return report(error)
    return command(_run)


def _run(cfg: DictConfig) -> Path | None:
    """Run one job, or describe it (`dry=true`); return the record's folder."""
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    from ssd_bench.sweep import dry

    if dry.is_requested(cfg.dry):
        hydra = HydraConfig.get()
        overrides: Any = OmegaConf.to_container(
            hydra.overrides.task, resolve=False
        )  # unresolved: a value may contain an interpolation
        planned = dry.Planned(overrides, hydra.runtime.choices, cfg)
        print(dry.describe("1 run", [planned], lambda _: None))
        return None
    from ssd_bench.lease import PATIENT
    from ssd_bench.report.runs import print_record
    from ssd_bench.run.plan import plan  # torch and transformers only once the config is composed
    from ssd_bench.run.run import execute

    record = execute(plan(cfg), PATIENT.get())
    if record is not None:
        print_record(record)
    return record
