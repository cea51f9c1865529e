"""A command line on Hydra whose errors are one message: exit code 2 for invalid input, 1 for a failed run."""

from __future__ import annotations

import importlib
import io
import os
import re
import sys
import traceback
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import yaml
from hydra import version
from hydra._internal.hydra import Hydra
from hydra._internal.utils import _run_hydra, get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.main import _get_rerun_conf
from hydra.types import RunMode, TaskFunction
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml.reader import ReaderError

from ssd_bench import plug_ins
from ssd_bench.compose.help import describe_plug_ins, describe_settings
from ssd_bench.conf import CHOSEN, CONF, choices, config_file, plug_ins_chosen, read_yaml
from ssd_bench.console import print_anything, report, reported_ends
from ssd_bench.errors import ConfigError, JobsFailed, LosslessError, Lost, one_line, shortened
from ssd_bench.paths import LONGEST_NAME
from ssd_bench.quoting import as_text
from ssd_bench.run_warnings import WarningLog
from ssd_bench.settings import arguments as settings_of

EXPECTED = (ConfigError, LosslessError, Lost, JobsFailed, HydraException, OmegaConfBaseException)
"""Errors reported without a traceback."""

CLOSED = ("decode", "hardware", "wandb", "model.template")
"""Tables that list all of their settings: none can be added with +."""
NAMED = 3
"""Most choices that a message names."""
WITHOUT_JOBS = {"--cfg", "-c", "--info", "-i"}
"""Hydra's options for the config of one run, invalid in a sweep."""


JobFunction = Callable[[DictConfig, bool, WarningLog | None], object]
"""Work of a command for one config; may return a record's folder. Other arguments: whether to wait for a run that
another process works on, and the log of a sweep's warnings (None: a single run, which shows all)."""


def command(work: JobFunction, arguments: Sequence[str]) -> int:
    """Compose the config from the arguments and call `work` with it, once per job of a sweep.

    A failing job does not stop the others (`ssd_bench.sweep.sweep`).

    Returns:
        Exit code: 0 done; 1 an output was not lossless, a job failed unexpectedly, or a disk is full; 2 an invalid
        option, file or environment; 130 keyboard interrupt; 143 SIGTERM or SIGUSR1.
    """

    errors: list[Exception] = []

    def job(cfg: DictConfig, wait: bool = True, log: WarningLog | None = None) -> object:
        print_anything()  # again, because a launcher's worker has its own streams
        try:
            plug_ins_chosen(HydraConfig.get().runtime.choices)  # refuses a name that several packages have
            return work(cfg, wait, log)
        except Exception as error:
            if HydraConfig.get().mode is RunMode.MULTIRUN:
                raise
            errors.append(error)  # not raised: Hydra would print its own lines about it
            return None
        except SystemExit as end:  # the code of a method or task; Hydra would end quietly with its exit code
            if HydraConfig.get().mode is RunMode.MULTIRUN:
                raise
            raise RuntimeError(f"the code of the run ended the program ({one_line(end)})") from end

    print_anything()
    try:
        _check_choices(arguments)
        for fault in plug_ins.faults():
            print(f"warning: {fault}", file=sys.stderr)
    except ConfigError as error:
        return report(error)
    # for the help's template, in which `$` is escaped
    resolver = OmegaConf.register_new_resolver
    resolver("settings", lambda *, _root_: describe_settings(_root_).replace("$", "$$"), replace=True)
    resolver("plug_ins", lambda: describe_plug_ins().replace("$", "$$"), replace=True)
    # Without this, Hydra prints its own errors and exits with 1.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        with reported_ends() as end:
            _call_hydra(job, _leave_settings_to_jobs(arguments) if _is_sweep(arguments) else arguments)
            if errors and not isinstance(errors[0], EXPECTED):
                raise errors.pop()
    except EXPECTED as error:
        errors.append(_advised(error))
    except yaml.YAMLError as error:
        errors.append(_yaml_fault(error))
    except UnicodeDecodeError as error:
        errors.append(_encoding_fault(error))
    return report(errors[0]) if errors else end.code


def _call_hydra(job: TaskFunction, arguments: Sequence[str]) -> None:
    """Do what `hydra.main` does, but with these arguments, not the process's."""
    version.setbase("1.3")
    parser = get_args_parser()
    options = parser.parse_args(list(arguments))
    if options.experimental_rerun is not None:
        job(_get_rerun_conf(options.experimental_rerun, options.overrides))
    else:
        with _mode_of_command_line(options):
            _run_hydra(args=options, args_parser=parser, task_function=job, config_path=str(CONF), config_name="config")


@contextmanager
def _mode_of_command_line(options: Namespace) -> Iterator[None]:
    """Let Hydra take run or sweep from the command line alone.

    To look for `hydra.mode`, which no config here sets, Hydra composes every config twice.
    """
    elsewhere = options.config_dir or options.config_name or options.config_path
    if elsewhere or any("hydra" in override for override in options.overrides):
        yield
        return
    get_mode = Hydra.get_mode
    Hydra.get_mode = lambda *args, **kwargs: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        Hydra.get_mode = get_mode  # type: ignore[method-assign]


def _is_sweep(arguments: Sequence[str]) -> bool:
    return bool({"-m", "--multirun"} & set(arguments))


def _leave_settings_to_jobs(arguments: Iterable[str]) -> list[str]:
    """Write each setting of a chosen config, such as method.max_steps=4, as a sweep over two equal values.

    Hydra composes what all jobs share with the groups' defaults, and the default method may lack a setting that the
    methods of the sweep, or of an experiment, have. It has no sweep over null alone.
    """
    settings = []
    for argument in arguments:
        name, _, value = argument.partition("=")
        if name.partition(".")[0] in CHOSEN and "." in name and value:
            is_sweep = OverridesParser.create().parse_override(argument).is_sweep_override()
            argument = argument if is_sweep else f"{name}={value},{value}"
        settings.append(argument)
    return settings


def _check_choices(arguments: Sequence[str]) -> None:
    """Refuse arguments that give a traceback in Hydra: a choice that is no name (`method=null`), `-m --cfg`."""
    conflicting = WITHOUT_JOBS & {argument.partition("=")[0] for argument in arguments}
    if conflicting and _is_sweep(arguments):
        raise ConfigError("option", min(conflicting), "one run, without -m; dry=true describes the runs of a sweep")
    for argument in arguments:
        group, equals, value = argument.partition("=")
        if equals and not argument.startswith("-"):
            _check_grammar(argument, _is_sweep(arguments))
        if equals and group in CHOSEN:
            try:
                choice = yaml.safe_load(value)
            except yaml.YAMLError:  # Hydra's own grammar, such as glob(*)
                continue
            if not isinstance(choice, str | list) or max(map(len, value.split(","))) > LONGEST_NAME:
                raise ConfigError(group, shortened(value), f"one of {', '.join(choices(group))}")


def _check_grammar(argument: str, sweep: bool) -> None:
    """Refuse a value that Hydra's grammar cannot parse, or, without -m, parses as several values."""
    name, _, value = argument.partition("=")
    if not name or len(name) > LONGEST_NAME:
        raise ConfigError("option", shortened(argument), "NAME=VALUE, where NAME is an option")
    try:
        is_sweep = OverridesParser.create().parse_override(argument).is_sweep_override()
    except Exception as error:  # from the parser, or Python's limits for digits and nesting
        reason = " ".join(str(error).split()).partition(" expecting ")[0].partition(" See https://")[0]
        expected = f"a value in Hydra's grammar ({shortened(reason, 120) or type(error).__name__})"
        raise ConfigError(shortened(name), shortened(value), f"{expected}; {as_text(name, value)}") from None
    if is_sweep and not sweep:
        expected = f"one value; -m before it runs each value; {as_text(name, value)}"
        raise ConfigError(name, shortened(value), expected)


def _yaml_fault(error: yaml.YAMLError) -> ConfigError:
    """Return the error for an unreadable YAML file, with file and line."""
    if isinstance(error, ReaderError):
        return ConfigError("config", str(error.name), f"valid YAML (character {error.position + 1}: {error.reason})")
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return ConfigError("config", "a file", f"valid YAML ({' '.join(str(error).split())})")
    mark, context = error.problem_mark, error.context_mark
    since_line = f", line {context.line + 1}" if context is not None and context.line != mark.line else ""
    reason = f"{error.context}{since_line}: {error.problem}" if error.context else error.problem
    return ConfigError("config", f"{mark.name}:{mark.line + 1}", f"valid YAML ({reason})")


def _encoding_fault(error: UnicodeDecodeError) -> ConfigError:
    """Return the error for a config file that is not UTF-8, by the file that Hydra had open, if it was one."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        file = frame.f_locals.get("f")
        if isinstance(file, io.TextIOWrapper) and file.name.endswith(".yaml"):
            return ConfigError("config", file.name, f"text in UTF-8 (byte {error.start + 1}: {error.reason})")
    raise error


def _advised(error: Exception) -> Exception:
    """Return the error without Hydra's advice to add an unknown option with + where that would be refused."""
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
        return ConfigError(suggestion[1], value, reason=f"there is no such option; the options are {names}")
    if table_name in CLOSED:
        reason = f"{table_name} has no such setting; its settings are {names}{_elsewhere(table_name, key)}"
        return ConfigError(suggestion[1], value, reason=reason)
    try:  # + may add a setting that has a default in the class and is not in the config
        module, _, name = str(parent["_target_"]).rpartition(".")
        settings_of(table_name, getattr(importlib.import_module(module), name), {key: value})
    except ConfigError as fault:
        if fault.field == f"{table_name}.{key}":
            advised = ConfigError(suggestion[1], value, fault.expected, fault.reason)
            return advised.with_note(_elsewhere(table_name, key))
    except (Exception, SystemExit):  # importing a module may raise anything
        pass
    return error


def _elsewhere(group: str, key: str) -> str:
    """Return a note on the choices of a config group that have a setting; "" if none has."""
    if group not in CHOSEN:
        return ""
    files = {name: config_file(group, name) for name in choices(group)}
    names = [name for name, file in files.items() if file is not None and key in (read_yaml(file) or {})]
    if len(names) > NAMED:
        names[NAMED:] = ["another"]
    return f"; {group}={' or '.join(names)} has it" if names else ""
