"""List all options of runs, methods and tasks, or those that contain a text.

`python -m ssd_bench options [about=TEXT]`

Prints a Markdown table: option, the choices that have it, allowed values, meaning; with about=TEXT only rows that
contain the text. `run method=NAME --help` prints the options of one choice, with their values.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence

from ssd_bench.compose.help import UNTARGETED, Option, options_of
from ssd_bench.conf import CONF, choices, config_file, read_yaml
from ssd_bench.console import options, tool
from ssd_bench.errors import one_line


@tool(__doc__)
def main(arguments: Sequence[str]) -> None:
    """Print the options."""
    about = options(arguments, ("about",)).get("about", "").lower()
    print("| option | belongs to | allowed values | meaning |\n|---|---|---|---|")
    for row in all_options():
        line = "| " + " | ".join(text.replace("|", "\\|") for text in row) + " |"
        if about in line.lower():
            print(line)


def all_options() -> Iterator[tuple[str, str, str, str]]:
    """Yield option, choices that have it, allowed values and meaning; options of every run first.

    Options in `conf/config.yaml` have its comments as meaning, all others the docs of their classes.
    """
    top = (CONF / "config.yaml").read_text(encoding="utf-8").split("_self_")[1]
    for name, default, doc in re.findall(r"^(\w+): (\S+) # (.+)$", top, re.MULTILINE):
        yield f"`{name}`", "a run", f"default: {default}", doc
    for group, target in UNTARGETED.items():
        for option in options_of(group, {}, target):
            yield f"`{option.path}`", "a run", option.allowed, option.doc
    for group in ("method", "task"):
        choices_of_option: dict[tuple[str, str, str], list[str]] = {}
        for choice in choices(group):
            for option in _choice_options(group, choice):
                key = f"`{option.path}`", option.allowed, option.doc
                choices_of_option.setdefault(key, []).append(f"`{choice}`")
        for (name, allowed, doc), names in sorted(choices_of_option.items()):
            yield name, ", ".join(names), allowed, doc


def _choice_options(group: str, choice: str) -> list[Option]:
    """Return the options of a choice; a plug-in whose files cannot be read is named on stderr and has none."""
    file = config_file(group, choice)
    assert file is not None
    try:
        values = read_yaml(file)
        # a choice without a class refines another and has the same options
        return list(options_of(group, values)) if "_target_" in values else []
    except (Exception, SystemExit) as error:  # the code of a plug-in may raise anything
        if file.is_relative_to(CONF):
            raise
        print(f"warning: no options of {group}={choice} in {file}: {one_line(error)}", file=sys.stderr)
        return []
