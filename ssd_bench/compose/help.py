"""Help for `run --help`: every declared setting of the chosen method, task, decoding, machine and log.

Declarations (`ssd_bench.settings`) are read from the source, since methods and tasks import torch, which is slow.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import importlib.util
import math
import textwrap
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from omegaconf import DictConfig, OmegaConf

from ssd_bench.conf import CHOSEN
from ssd_bench.plug_ins import plug_ins
from ssd_bench.settings import describe_type, doc_of

UNTARGETED = {
    "decode": "ssd_bench.engine.sampling.Decoding",
    "hardware": "ssd_bench.run.hardware.Options",
    "wandb": "ssd_bench.run.tracking.Tracking",
}
"""Group without `_target_` -> class of its settings."""

LONGEST = 200  # characters of a value; a longer one, such as the parts of a stream, is shown as ...


class Declared(NamedTuple):
    """A setting: name, type and doc ("" without one)."""

    name: str
    kind: Any
    doc: str


class Option(NamedTuple):
    """A declared setting in the config.

    Attributes:
        path: `GROUP.NAME`, with names between them if nested.
        value: its value; `...` if not in the config.
        allowed: allowed values, in words.
    """

    path: str
    value: Any
    allowed: str
    doc: str


def options_of(section: str, values: Mapping[str, Any], target: str = "") -> Iterator[Option]:
    """Yield the options of a config section, also nested ones; without `_target_` in `values`, of `target`."""
    for setting in declared_settings(values.get("_target_", target)):
        path, value = f"{section}.{setting.name}", values.get(setting.name, ...)
        if isinstance(value, dict) and "_target_" in value:
            yield from options_of(path, value)
        else:
            yield Option(path, value, describe_type(setting.kind), " ".join(setting.doc.split()))


def describe_settings(cfg: DictConfig) -> str:
    """Return every option of the config: `GROUP.NAME=VALUE`, allowed values, and doc."""
    lines: list[str] = []
    for group in ("method", "task", *UNTARGETED):
        values: Any = OmegaConf.to_container(cfg[group], resolve=True)
        for option in options_of(group, values, UNTARGETED.get(group, "")):
            if option.value is not ...:
                flow = yaml.safe_dump(option.value, default_flow_style=True, width=math.inf)
                flow = flow.removesuffix("...\n").strip()
                lines.append(f"  {option.path}={flow if len(flow) < LONGEST else '...'}: {option.allowed}")
                lines += textwrap.wrap(option.doc, 120, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\n".join(lines)


def describe_plug_ins() -> str:
    """Return a line with each plug-in's choices; without plug-ins, where to read about them."""
    lines = []
    for plug_in in plug_ins():
        groups = ((group, ",".join(plug_in.choices(group))) for group in CHOSEN)
        lines.append(f"  {plug_in}: {'; '.join(f'{group}={names}' for group, names in groups if names)}")
    return "\n".join(lines) or "  none is installed (docs/tutorials/plugin.md)"


def declared_settings(target: str) -> list[Declared]:
    """Return a class's declared settings, by its dotted path; bases first."""
    module, _, name = target.rpartition(".")
    source = _source(module)
    node = source.nodes.get(name)
    if not isinstance(node, ast.ClassDef):
        return declared_settings(".".join(source.origins[name])) if name in source.origins else []
    settings = {
        s.name: s for base in node.bases if isinstance(base, ast.Name) for s in declared_settings(f"{module}.{base.id}")
    }
    decorators = [decorator for decorator in node.decorator_list if isinstance(decorator, ast.Call)]
    if any(ast.unparse(decorator.func) == "settings" for decorator in decorators):
        for field, following in zip(node.body, [*node.body[1:], None]):
            if isinstance(field, ast.AnnAssign) and not ast.unparse(field.annotation).startswith("ClassVar"):
                kind = source.evaluate(field.annotation)
                docstring = following.value if isinstance(following, ast.Expr) else None
                doc = docstring.value if isinstance(docstring, ast.Constant) else doc_of(kind)
                settings[ast.unparse(field.target)] = Declared(ast.unparse(field.target), kind, str(doc))
    return list(settings.values())


class _Source(dict[str, Any]):
    """A module's parsed source; as a mapping, the values of names in its annotations.

    Attributes:
        nodes: name -> syntax tree of a class, function or constant.
        origins: name -> module of origin, and name there.
    """

    def __init__(self, module: str):
        super().__init__()
        spec = importlib.util.find_spec(module)
        file = spec.origin if spec and spec.origin else ""
        text = Path(file).read_text(encoding="utf-8") if file.endswith(".py") else ""
        self.module, self.nodes, self.origins = module, dict[str, ast.stmt](), dict[str, tuple[str, str]]()
        for node in ast.parse(text).body:
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                self.origins |= {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}
            elif isinstance(node, ast.ClassDef | ast.FunctionDef):
                self.nodes[node.name] = node
            elif isinstance(node, ast.Assign):
                self.nodes |= {ast.unparse(name): node for name in node.targets}

    def __missing__(self, name: str) -> Any:
        node = self.nodes.get(name)
        if isinstance(node, ast.Assign):
            return self.evaluate(node.value)
        if isinstance(node, ast.FunctionDef):
            return bool  # the condition of a `Fits`, which the help never calls
        if hasattr(builtins, name):
            raise KeyError(name)
        # the module itself, imported, if its source does not tell
        module, attribute = self.origins.get(name, (self.module, name))
        return getattr(importlib.import_module(module), attribute)

    def evaluate(self, node: ast.expr) -> Any:
        return eval(ast.unparse(node), {}, self)


@cache
def _source(module: str) -> _Source:
    return _Source(module)
