"""A command line on Hydra whose errors are one message: exit code 2 for input that cannot work, 1 for a failed run."""

from __future__ import annotations

import errno
import importlib
import io
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import hydra
import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml.reader import ReaderError

from ssd_bench.errors import ConfigError, JobsFailed, LosslessError, Lost, shortened
from ssd_bench.paths import LONGEST_NAME
from ssd_bench.quoting import as_text, unresolved
from ssd_bench.settings import arguments as settings_of
from ssd_bench.stopping import CODE, Stopped

CONF = next(one for one in (Path(__file__).with_name("conf"), Path(__file__).parents[1] / "conf") if one.is_dir())
"""Of an installed package; or of a clone, where it stands at top level."""

CHOSEN = ("model", "method", "task", "data", "hardware", "decode")
"""Groups of which a run has a choice each."""
EXPECTED = (ConfigError, LosslessError, Lost, JobsFailed, HydraException, OmegaConfBaseException)
"""Errors whose message says enough."""

LONGEST_MESSAGE = 5000
FULL = (errno.ENOSPC, errno.EDQUOT)
GOES_ON = "what was done is on record, and the same command goes on where it was"
CLOSED = ("decode", "hardware", "wandb", "model.template")
"""Tables that have all of their settings."""
EXTRAS = {"joblib": "cluster", "submitit": "cluster", "ray": "ray"}
"""Beginning of the name of one of Hydra's launchers -> the extra that has it."""
WITHOUT_JOBS = {"--cfg", "-c", "--info", "-i"}
"""Hydra's options that show a config, of which a sweep has many."""


def command(work: Callable[[DictConfig], object]) -> int:
    """Compose the config from the command line and hand it to `work`, once per job of a sweep.

    A job that fails does not stop the others (`ssd_bench.sweep`). `work` may return the folder of a record.

    Returns:
        0 done; 1 an output was not lossless, a job of a sweep failed unexpectedly, or a disk is full; 2 an option, file
        or environment that cannot work; 130 an interrupt from the keyboard; 143 SIGTERM or SIGUSR1.
    """

    ended: list[Exception] = []

    def job(cfg: DictConfig) -> object:
        _print_anything()  # a launcher's worker has streams of its own
        try:
            return work(cfg)
        except Exception as error:
            if HydraConfig.get().mode is RunMode.MULTIRUN:
                raise
            ended.append(error)  # of an error that is raised Hydra prints lines of its own
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
        with ends() as end:
            hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(job)()
            if ended and not isinstance(ended[0], EXPECTED):
                raise ended.pop()
    except EXPECTED as error:
        ended.append(_advised(error))
    except yaml.YAMLError as error:
        ended.append(_no_yaml(error))
    return report(ended[0]) if ended else end.code


@dataclass
class End:
    """How a program ended, as its exit code."""

    code: int = 0


@contextmanager
def ends() -> Iterator[End]:
    """Say in one line what may end any command: an interrupt, a signal, a full disk, a file that cannot be used."""
    end = End()
    try:
        yield end
    except KeyboardInterrupt:
        end.code = _say(f"interrupted: {GOES_ON}", 130)
    except Stopped:
        end.code = _say(f"stopped by a signal, after the prompt in flight: {GOES_ON}", CODE)
    except OSError as error:
        if (said := disk_fault(error)) is None:
            raise
        end.code = _say(f"error: {said}", 1)


def disk_fault(error: BaseException) -> str | None:
    """Return one line about a full disk, or a file that cannot be read or written; None for any other error."""
    if not isinstance(error, OSError) or (error.errno not in FULL and error.filename is None):
        return None
    goes_on = f": {GOES_ON}" if error.errno in FULL else ""
    return f"{error.strerror or 'no space left'}{f', {error.filename}' if error.filename else ''}{goes_on}"


def _say(line: str, code: int) -> int:
    print(line, file=sys.stderr, flush=True)
    return code


def choices(group: str) -> list[str]:
    """Every choice of a group of `conf`."""
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def _check_choices(arguments: Sequence[str]) -> None:
    """Refuse what Hydra has only a traceback to say of: what is no name for a choice (`method=null`), `-m --cfg`.

    Raises:
        ConfigError: names the group and its choices, or the option.
    """
    odd = WITHOUT_JOBS & {argument.partition("=")[0] for argument in arguments}
    if odd and {"-m", "--multirun"} & set(arguments):
        raise ConfigError("option", min(odd), "without -m, of one run; dry=true describes those of a sweep")
    for argument in arguments:
        group, equals, value = argument.partition("=")
        if equals and not argument.startswith("-"):
            _check_grammar(argument, bool({"-m", "--multirun"} & set(arguments)))
        if equals and group in CHOSEN:
            try:
                said = yaml.safe_load(value)
            except yaml.YAMLError:  # a grammar of Hydra's own, as glob(*)
                continue
            if not isinstance(said, str | list) or max(map(len, value.split(","))) > LONGEST_NAME:
                raise ConfigError(group, shortened(value), f"one of {', '.join(choices(group))}")


def _check_grammar(argument: str, sweep: bool) -> None:
    """Refuse an option whose value Hydra's grammar does not take, or takes for several.

    Raises:
        ConfigError: says how to type the value as text.
    """
    name, _, value = argument.partition("=")
    if not name or len(name) > LONGEST_NAME:
        raise ConfigError("option", shortened(argument), "NAME=VALUE, with the name of an option")
    try:
        several = OverridesParser.create().parse_override(argument).is_sweep_override()
    except Exception as error:  # of the parser, of Python's limits for digits and nesting
        reason = " ".join(str(error).split()).partition(" expecting ")[0].partition(" See https://")[0]
        allowed = f"a value in Hydra's grammar ({shortened(reason, 120) or type(error).__name__})"
        raise ConfigError(shortened(name), shortened(value), f"{allowed}; {as_text(name, value)}") from None
    if several and not sweep:
        allowed = f"one value; with -m before it a run of each; {as_text(name, value)}"
        raise ConfigError(name, shortened(value), allowed)


def plain_value(cfg: DictConfig, name: str) -> object:
    """Return the value of an option.

    Raises:
        ConfigError: it names another option that does not exist.
    """
    try:
        return cfg[name]
    except OmegaConfBaseException as error:
        raise unresolved(cfg, name, error) from None


def _no_yaml(error: yaml.YAMLError) -> ConfigError:
    """What is said of a config file that YAML cannot read."""
    if isinstance(error, ReaderError):
        return ConfigError("config", str(error.name), f"YAML (character {error.position + 1}: {error.reason})")
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return ConfigError("config", "a file", f"YAML ({' '.join(str(error).split())})")
    at, begin = error.problem_mark, error.context_mark
    since = f", line {begin.line + 1}" if begin is not None and begin.line != at.line else ""
    why = f"{error.context}{since}: {error.problem}" if error.context else error.problem
    return ConfigError("config", f"{at.name}:{at.line + 1}", f"YAML ({why})")


def _advised(error: Exception) -> Exception:
    """The error of an option that there is not, without Hydra's advice to add it with + where that is refused."""
    found = re.search(r"use \+([^=\s]+)=(.*)", str(error))
    cause = error.__cause__
    if not found or not isinstance(cause, OmegaConfBaseException) or not isinstance(cause.parent_node, DictConfig):
        return error
    table, (place, _, key) = cause.parent_node, str(cause.full_key).rpartition(".")
    try:
        value = yaml.safe_load(found[2])
    except yaml.YAMLError:
        value = found[2]
    names = ", ".join(str(name) for name in table if name != "hydra")
    if not place:
        return ConfigError(found[1], value, f"no option; those are {names}")
    if place in CLOSED:
        return ConfigError(found[1], value, f"no setting of {place}, which has {names}")
    try:  # a setting that the class has by default may be added
        module, _, name = str(table["_target_"]).rpartition(".")
        settings_of(place, getattr(importlib.import_module(module), name), {key: value})
    except ConfigError as refused:
        return ConfigError(found[1], value, refused.allowed) if refused.field == f"{place}.{key}" else error
    except Exception:  # whatever a module raises that is imported
        return error
    return error


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
        with ends() as end:
            work(arguments)
            sys.stdout.flush()
    except ConfigError as error:
        return report(error)
    except BrokenPipeError:  # who reads has seen enough, as head and less do
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at the end of the process
        return 128 + signal.SIGPIPE
    return end.code


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
    if not text.isdecimal() or len(text) > 18 or not int(text):
        raise ConfigError(name, shortened(text), "a whole number, 1 or more")
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


def installed_by(extra: str) -> str:
    """What brings a package that is not here."""
    return f"pip install 'ssd-bench[{extra}]' has it"


def report(error: Exception) -> int:
    """Print one of the `EXPECTED` errors; returns the exit code."""
    message = str(error).strip()
    first, *_ = message.splitlines() or [""]
    for asked in re.findall(r"hydra/launcher/(\w+)", first)[-1:]:  # one of ours names the one that it builds on
        for name, extra in EXTRAS.items():
            message = f"{first.rstrip('.')}: {installed_by(extra)}" if asked.startswith(name) else message
    print(f"error: {shortened(message, LONGEST_MESSAGE)}", file=sys.stderr)
    if isinstance(error, JobsFailed):
        return error.code
    return 1 if isinstance(error, LosslessError | Lost) else 2
