"""A command line on Hydra whose errors are one message: exit code 2 for invalid input, 1 for a failed run."""

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

CONF = next(path for path in (Path(__file__).with_name("conf"), Path(__file__).parents[1] / "conf") if path.is_dir())
"""Folder of configs: in an installed package, or at the top level of a clone."""

CHOSEN = ("model", "method", "task", "data", "hardware", "decode")
"""Config groups; a run has one choice of each."""
EXPECTED = (ConfigError, LosslessError, Lost, JobsFailed, HydraException, OmegaConfBaseException)
"""Errors that are reported by their message, without a traceback."""

LONGEST_MESSAGE = 5000
FULL = (errno.ENOSPC, errno.EDQUOT)
RESUME_HINT = "finished work is on record; the same command resumes the run"
CLOSED = ("decode", "hardware", "wandb", "model.template")
"""Tables that list all of their settings, so that no setting can be added with +."""
EXTRAS = {"joblib": "cluster", "submitit": "cluster", "ray": "ray"}
"""Prefix of the name of a launcher of Hydra -> the extra that installs it."""
WITHOUT_JOBS = {"--cfg", "-c", "--info", "-i"}
"""Hydra's options that show the config of one run, so that they cannot be used in a sweep."""


def command(work: Callable[[DictConfig], object]) -> int:
    """Compose the config from the command line and call `work` with it, once per job of a sweep.

    A failing job does not stop the others (`ssd_bench.sweep`). `work` may return the folder of a record.

    Returns:
        Exit code: 0 done; 1 an output was not lossless, a job of a sweep failed unexpectedly, or a disk is full; 2 an
        option, file or environment that cannot work; 130 interrupt from the keyboard; 143 SIGTERM or SIGUSR1.
    """

    errors: list[Exception] = []

    def job(cfg: DictConfig) -> object:
        _print_anything()  # again, because a launcher's worker has its own streams
        try:
            return work(cfg)
        except Exception as error:
            if HydraConfig.get().mode is RunMode.MULTIRUN:
                raise
            errors.append(error)  # not raised: Hydra would print its own lines about it
            return None

    _print_anything()
    try:
        _check_choices(sys.argv[1:])
    except ConfigError as error:
        return report(error)
    OmegaConf.register_new_resolver("settings", _settings, replace=True)  # for the help
    # Without this, Hydra prints its own errors and exits with 1.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        with reported_ends() as end:
            hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(job)()
            if errors and not isinstance(errors[0], EXPECTED):
                raise errors.pop()
    except EXPECTED as error:
        errors.append(_advised(error))
    except yaml.YAMLError as error:
        errors.append(_yaml_fault(error))
    return report(errors[0]) if errors else end.code


@dataclass
class End:
    """Exit code of a program, set when it ends early."""

    code: int = 0


@contextmanager
def reported_ends() -> Iterator[End]:
    """Report an interrupt, a signal, a full disk or an unusable file in one line, instead of a traceback."""
    end = End()
    try:
        yield end
    except KeyboardInterrupt:
        end.code = _say(f"interrupted: {RESUME_HINT}", 130)
    except Stopped:
        end.code = _say(f"stopped by a signal, after the prompt in flight: {RESUME_HINT}", CODE)
    except OSError as error:
        if (fault := disk_fault(error)) is None:
            raise
        end.code = _say(f"error: {fault}", 1)


def disk_fault(error: BaseException) -> str | None:
    """Return one line about a full disk, or a file that cannot be read or written; None for any other error."""
    if not isinstance(error, OSError) or (error.errno not in FULL and error.filename is None):
        return None
    resume = f": {RESUME_HINT}" if error.errno in FULL else ""
    return f"{error.strerror or 'no space left'}{f', {error.filename}' if error.filename else ''}{resume}"


def _say(line: str, code: int) -> int:
    print(line, file=sys.stderr, flush=True)
    return code


def choices(group: str) -> list[str]:
    """Return every choice of a group of `conf`, sorted."""
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def _check_choices(arguments: Sequence[str]) -> None:
    """Refuse arguments for which Hydra has only a traceback: a choice that is no name (`method=null`), `-m --cfg`.

    Raises:
        ConfigError: names the group and its choices, or the option.
    """
    conflicting = WITHOUT_JOBS & {argument.partition("=")[0] for argument in arguments}
    if conflicting and {"-m", "--multirun"} & set(arguments):
        raise ConfigError("option", min(conflicting), "without -m, of one run; dry=true describes those of a sweep")
    for argument in arguments:
        group, equals, value = argument.partition("=")
        if equals and not argument.startswith("-"):
            _check_grammar(argument, bool({"-m", "--multirun"} & set(arguments)))
        if equals and group in CHOSEN:
            try:
                choice = yaml.safe_load(value)
            except yaml.YAMLError:  # Hydra's own grammar, such as glob(*)
                continue
            if not isinstance(choice, str | list) or max(map(len, value.split(","))) > LONGEST_NAME:
                raise ConfigError(group, shortened(value), f"one of {', '.join(choices(group))}")


def _check_grammar(argument: str, sweep: bool) -> None:
    """Refuse a value that Hydra's grammar cannot parse, or, without -m, parses as several values.

    Raises:
        ConfigError: says how to type the value as text.
    """
    name, _, value = argument.partition("=")
    if not name or len(name) > LONGEST_NAME:
        raise ConfigError("option", shortened(argument), "NAME=VALUE, with the name of an option")
    try:
        is_sweep = OverridesParser.create().parse_override(argument).is_sweep_override()
    except Exception as error:  # from the parser, or Python's limits for digits and nesting
        reason = " ".join(str(error).split()).partition(" expecting ")[0].partition(" See https://")[0]
        allowed = f"a value in Hydra's grammar ({shortened(reason, 120) or type(error).__name__})"
        raise ConfigError(shortened(name), shortened(value), f"{allowed}; {as_text(name, value)}") from None
    if is_sweep and not sweep:
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


def _yaml_fault(error: yaml.YAMLError) -> ConfigError:
    """Return the error for a config file that YAML cannot read, with file and line."""
    if isinstance(error, ReaderError):
        return ConfigError("config", str(error.name), f"YAML (character {error.position + 1}: {error.reason})")
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return ConfigError("config", "a file", f"YAML ({' '.join(str(error).split())})")
    mark, context = error.problem_mark, error.context_mark
    since_line = f", line {context.line + 1}" if context is not None and context.line != mark.line else ""
    reason = f"{error.context}{since_line}: {error.problem}" if error.context else error.problem
    return ConfigError("config", f"{mark.name}:{mark.line + 1}", f"YAML ({reason})")


def _advised(error: Exception) -> Exception:
    """Return the error for an unknown option, without Hydra's advice to add it with + where that would be refused.

    Any other error is returned as it is.
    """
    suggestion = re.search(r"use \+([^=\s]+)=(.*)", str(error))
    cause = error.__cause__
    if not suggestion or not isinstance(cause, OmegaConfBaseException) or not isinstance(cause.parent_node, DictConfig):
        return error
    parent, (table_name, _, key) = cause.parent_node, str(cause.full_key).rpartition(".")
    try:
        value = yaml.safe_load(suggestion[2])
    except yaml.YAMLError:
        value = suggestion[2]
    names = ", ".join(str(name) for name in parent if name != "hydra")
    if not table_name:
        return ConfigError(suggestion[1], value, f"no option; those are {names}")
    if table_name in CLOSED:
        return ConfigError(suggestion[1], value, f"no setting of {table_name}, which has {names}")
    try:  # + may add a setting that has a default in the class and is not in the config
        module, _, name = str(parent["_target_"]).rpartition(".")
        settings_of(table_name, getattr(importlib.import_module(module), name), {key: value})
    except ConfigError as fault:
        return ConfigError(suggestion[1], value, fault.allowed) if fault.field == f"{table_name}.{key}" else error
    except Exception:  # importing a module may raise anything
        return error
    return error


def run_tool(work: Callable[[Sequence[str]], object], usage: str | None, arguments: Sequence[str]) -> int:
    """Run a command line without Hydra: call `work` with the arguments, or print `usage` for -h and --help.

    Returns:
        Exit code, as of `command`.
    """
    _print_anything()
    if {"-h", "--help"} & set(arguments):
        print(usage)
        return 0
    try:
        with reported_ends() as end:
            work(arguments)
            sys.stdout.flush()
    except ConfigError as error:
        return report(error)
    except BrokenPipeError:  # the reader has closed the pipe, as head and less do
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at the end of the process
        return 128 + signal.SIGPIPE
    return end.code


def options(arguments: Sequence[str], allowed: Sequence[str]) -> dict[str, str]:
    """Parse the arguments NAME=VALUE of a `run_tool`.

    Raises:
        ConfigError: an argument of another form, with another name, or given twice.
    """
    values: dict[str, str] = {}
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if name not in allowed or not equals or not value or name in values:
            raise ConfigError("option", argument, f"each of {', '.join(f'{o}=' for o in allowed)} at most once")
        values[name] = value
    return values


def count(name: str, text: str) -> int:
    """Parse an option of a `run_tool` that is a count.

    Raises:
        ConfigError: not a whole number above 0.
    """
    if not text.isdecimal() or len(text) > 18 or not int(text):
        raise ConfigError(name, shortened(text), "a whole number, 1 or more")
    return int(text)


def _print_anything() -> None:
    """Print escape codes for characters that the locale lacks, instead of raising an exception."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _settings(*, _root_: DictConfig) -> str:
    """Return the settings for the template of the help, where `$` has a meaning of Hydra's and is escaped."""
    from ssd_bench.manual import describe_settings

    return describe_settings(_root_).replace("$", "$$")


def installed_by(extra: str) -> str:
    """Return the command that installs a missing package, for a message."""
    return f"pip install 'ssd-bench[{extra}]' has it"


def report(error: Exception) -> int:
    """Print one of the `EXPECTED` errors; return the exit code."""
    message = str(error).strip()
    first, *_ = message.splitlines() or [""]
    # Hydra names a launcher of this project first, and last the launcher on which it builds
    for launcher in re.findall(r"hydra/launcher/(\w+)", first)[-1:]:
        for name, extra in EXTRAS.items():
            message = f"{first.rstrip('.')}: {installed_by(extra)}" if launcher.startswith(name) else message
    print(f"error: {shortened(message, LONGEST_MESSAGE)}", file=sys.stderr)
    if isinstance(error, JobsFailed):
        return error.code
    return 1 if isinstance(error, LosslessError | Lost) else 2
