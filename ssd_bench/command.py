"""A command line on Hydra whose errors are one message: exit code 2 for input that cannot work, 1 for a failed run."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import hydra
import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ssd_bench.errors import ConfigError, JobsFailed, LosslessError

CONF = next(one for one in (Path(__file__).with_name("conf"), Path(__file__).parents[1] / "conf") if one.is_dir())
"""Of an installed package; or of a clone, where it stands at top level."""

CHOSEN = ("model", "method", "task", "data", "hardware", "decode")
"""Groups of which a run has a choice each."""
EXPECTED = (ConfigError, LosslessError, JobsFailed, HydraException, OmegaConfBaseException)
"""Errors whose message says enough."""


def command(work: Callable[[DictConfig], object]) -> int:
    """Compose the config from the command line and hand it to `work`, once per job of a sweep.

    A job that fails does not stop the others (`ssd_bench.sweep`). `work` may return the folder of a record.

    Returns:
        0 done; 1 an output was not lossless, or a job of a sweep failed unexpectedly; 2 an option, file or environment
        that cannot work.
    """

    ended: list[Exception] = []

    def job(cfg: DictConfig) -> object:
        _print_anything()  # a launcher's worker has streams of its own
        try:
            return work(cfg)
        except EXPECTED as error:
            if HydraConfig.get().mode is RunMode.MULTIRUN:
                raise
            ended.append(error)  # of an error that is raised Hydra prints more than its message
            return None

    _print_anything()
    try:
        _check_choices(sys.argv[1:])
    except ConfigError as error:
        return report(error)
    OmegaConf.register_new_resolver("settings", _settings, replace=True)  # for the help
    # Hydra prints its own errors with exit code 1 unless it is told to let them through
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(job)()
    except EXPECTED as error:
        ended.append(error)
    return report(ended[0]) if ended else 0


def choices(group: str) -> list[str]:
    """Every choice of a group of `conf`."""
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def _check_choices(arguments: Sequence[str]) -> None:
    """Refuse what is no name for a choice (`method=null`), of which Hydra has only a traceback to say.

    Raises:
        ConfigError: names the group and its choices.
    """
    for argument in arguments:
        group, equals, value = argument.partition("=")
        if equals and group in CHOSEN:
            try:
                said = yaml.safe_load(value)
            except yaml.YAMLError:  # a grammar of Hydra's own, as glob(*)
                continue
            if not isinstance(said, str | list):
                raise ConfigError(group, value, f"one of {', '.join(choices(group))}")


def tool(work: Callable[[Sequence[str]], object], usage: str | None, arguments: Sequence[str]) -> int:
    """A command line without Hydra: hand the arguments to `work`, or print `usage` for -h and --help.

    Returns:
        As `command`.
    """
    _print_anything()
    if {"-h", "--help"} & set(arguments):
        print(usage)
        return 0
    try:
        work(arguments)
    except ConfigError as error:
        return report(error)
    return 0


def options(arguments: Sequence[str], known: Sequence[str]) -> dict[str, str]:
    """The arguments NAME=VALUE of a `tool`, each at most once.

    Raises:
        ConfigError: another argument.
    """
    found: dict[str, str] = {}
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if name not in known or not equals or not value or name in found:
            raise ConfigError("option", argument, f"each of {', '.join(f'{o}=' for o in known)} at most once")
        found[name] = value
    return found


def count(name: str, text: str) -> int:
    """The value of an option of a `tool` that is a number of things.

    Raises:
        ConfigError: it is no whole number above 0.
    """
    if not text.isdecimal() or not int(text):
        raise ConfigError(name, text, "a whole number, 1 or more")
    return int(text)


def _print_anything() -> None:
    """A terminal or log whose locale lacks the letters of the tables gets their codes, not an exception."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _settings(*, _root_: DictConfig) -> str:
    """What the template of the help says of the settings; `$` is Hydra's there."""
    from ssd_bench.manual import described

    return described(_root_).replace("$", "$$")


def report(error: Exception) -> int:
    """Print one of the `EXPECTED` errors; returns the exit code."""
    print(f"error: {str(error).strip()}", file=sys.stderr)
    if isinstance(error, JobsFailed):
        return error.code
    return 1 if isinstance(error, LosslessError) else 2
