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
from pathlib import Path
from typing import NoReturn

from ssd_bench import commands

COMMANDS = tuple(sorted(module.name for module in pkgutil.iter_modules(commands.__path__)))
"""Names of the commands: the modules of `ssd_bench.commands`."""

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
        listed = "\n".join(f"  {name:10} {describe(name)}" for name in COMMANDS)
        print(HELP.format(commands=listed))
        return 0
    if "=" in first or first.startswith(("-", "~")):
        first, arguments = "run", ["run", *arguments]
    if first not in COMMANDS:
        print(f"error: unknown command {first}; available: {', '.join(COMMANDS)}, or name=value", file=sys.stderr)
        return 2
    code: int = importlib.import_module(f"{commands.__name__}.{first}").main(arguments[1:])
    return code


def describe(command: str) -> str:
    """Return the first line of a command's docstring, which is read from its source and not imported."""
    file = Path(commands.__path__[0], f"{command}.py")
    first, *_ = (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").splitlines()
    return first


def expand_home(argument: str) -> str:
    """Expand a leading ~ in an option's value, quoted or not; shells expand it only at the start of a word."""
    match = re.fullmatch(r"""([^=]*=['"]?)(~/.*)""", argument, re.DOTALL)
    return match[1] + os.path.expanduser(match[2]) if match else argument
