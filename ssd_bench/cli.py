"""Entry point of all commands: `ssd-bench [COMMAND] name=value …`, or `python -m ssd_bench [COMMAND] name=value …`.

Only the chosen command is imported, so that commands without torch start fast.
"""

from __future__ import annotations

import ast
import importlib
import os
import pkgutil
import re
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from ssd_bench import commands
from ssd_bench.console import closed_pipes_end, report
from ssd_bench.errors import ConfigError
from ssd_bench.plug_ins import plug_ins

COMMANDS = tuple(sorted(module.name for module in pkgutil.iter_modules(commands.__path__)))
BESIDE = ("methods", "tasks", "hydra_plugins")
"""This project's packages imported from the folder that holds `ssd_bench`."""

HELP = """\
ssd-bench [COMMAND] name=value ..., or python -m ssd_bench: self-speculative decoding, every method in one engine
{commands}
  ssd-bench -m method=ar,knapspec task=gsm8k,govreport     a sweep (experiment=NAME scale=mini: runs of a paper's table)
Every group, choice and option of a run: ssd-bench run --help; of another command: ssd-bench COMMAND --help"""


def entry() -> NoReturn:
    """Run `ssd-bench`; exit with the command's exit code."""
    sys.exit(closed_pipes_end(lambda: dispatch(sys.argv[1:])))


def dispatch(arguments: Sequence[str]) -> int:
    """Run the named command, `run` by default, and return its exit code; 2 if it is unknown."""
    arguments = [expand_home(argument) for argument in arguments]
    first = arguments[0] if arguments else "run"
    if first in ("-h", "--help"):
        listed = "\n".join(f"  {name:10} {describe(name)}" for name in COMMANDS)
        print(HELP.format(commands=listed))
        return 0
    if "=" in first or first.startswith(("-", "~")):
        first, arguments = "run", ["run", *arguments]
    if first not in COMMANDS:
        print(f"error: unknown command {first}; available: {', '.join(COMMANDS)}, or name=value", file=sys.stderr)
        return 2
    try:
        check_imports()
        plug_ins()  # a package whose entry points cannot be read stops the import of torch
    except ConfigError as error:
        return report(error)
    code: int = importlib.import_module(f"{commands.__name__}.{first}").main(arguments[1:])
    return code


def check_imports() -> None:
    """Refuse a file or folder imported instead of a package of this project.

    `python -m` imports from the current folder first, and PYTHONPATH comes before installed packages.

    Raises:
        ConfigError: names the file that would be imported.
    """
    home = Path(__file__).resolve().parents[1]
    for name in BESIDE:
        spec = find_spec(name)
        folders = list(spec.submodule_search_locations or ()) if spec else []
        if (home / name).resolve() not in [Path(folder).resolve() for folder in folders]:
            other = spec and (spec.origin or folders[0])
            reason = f"it is imported instead of {home / name}; rename it, or start ssd-bench in another folder"
            raise ConfigError("module", other or name, reason=reason)


def describe(command: str) -> str:
    """Return the first line of a command's docstring from its source, without an import."""
    file = Path(commands.__path__[0], f"{command}.py")
    first, *_ = (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").splitlines()
    return first


def expand_home(argument: str) -> str:
    """Expand a leading ~ in an option's value, quoted or not; shells do so only at the start of a word."""
    match = re.fullmatch(r"""([^=]*=['"]?)(~/.*)""", argument, re.DOTALL)
    return match[1] + os.path.expanduser(match[2]) if match else argument
