"""`python -m ssd_bench options [about=TEXT]`: every option of a run, of every method, task, machine and decoding.

A Markdown table: the option, the choices that have it, what it may be, what it means; about=TEXT shows those whose row
has the text. `run method=NAME --help` has the chosen ones alone, with their values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from ssd_bench.command import CONF, options, tool
from ssd_bench.manual import UNTARGETED, Declared, declared
from ssd_bench.settings import words


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code: 0, or 2 if an option cannot work."""
    return tool(_print, __doc__, arguments)


def _print(arguments: Sequence[str]) -> None:
    about = options(arguments, ("about",)).get("about", "").lower()
    print("| option | of | may be | |\n|---|---|---|---|")
    for row in every():
        line = "| " + " | ".join(text.replace("|", "\\|") for text in row) + " |"
        if about in line.lower():
            print(line)


def every() -> Iterator[tuple[str, str, str, str]]:
    """Option, the choices of its group that have it, what it may be, and what it means; those of a run first.

    A run's own are as `conf/config.yaml` comments on them, all others as their classes declare them.
    """
    top = (CONF / "config.yaml").read_text(encoding="utf-8").split("_self_")[1]
    for name, default, doc in re.findall(r"^(\w+): (\S+) # (.+)$", top, re.MULTILINE):
        yield f"`{name}`", "a run", f"by default {default}", doc
    for group, target in UNTARGETED.items():
        for setting in declared(target):
            yield _row(f"{group}.{setting.name}", "a run", setting)
    for group in ("method", "task"):
        found: dict[tuple[str, str, str], list[str]] = {}
        for path in sorted((CONF / group).glob("*.yaml")):
            for option, _, may_be, doc in _chosen(group, yaml.safe_load(path.read_text(encoding="utf-8"))):
                found.setdefault((option, may_be, doc), []).append(f"`{path.stem}`")
        for (option, may_be, doc), choices in sorted(found.items()):
            yield option, ", ".join(choices), may_be, doc


def _chosen(place: str, values: Any) -> Iterator[tuple[str, str, str, str]]:
    """The options of a choice that names its class; one that refines another has the same."""
    for setting in declared(values["_target_"]) if "_target_" in values else ():
        inner = values.get(setting.name)
        if isinstance(inner, dict) and "_target_" in inner:
            yield from _chosen(f"{place}.{setting.name}", inner)
        else:
            yield _row(f"{place}.{setting.name}", "", setting)


def _row(option: str, of: str, setting: Declared) -> tuple[str, str, str, str]:
    return f"`{option}`", of, words(setting.kind), " ".join(setting.doc.split())
