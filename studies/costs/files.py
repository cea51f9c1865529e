"""Files of reference machines, `conf/costs/GPU/MODEL.yaml`: their text, with the source of every value."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pandas as pd

from ssd_bench import tables
from ssd_bench.bench.shapes import slug
from ssd_bench.conf import read_yaml
from ssd_bench.contract.layer_set import BITS
from ssd_bench.cost.latency import NodeTimes
from ssd_bench.cost.reference import COLUMNS, ReferenceMachine
from ssd_bench.errors import ConfigError
from ssd_bench.paths import write_atomic
from ssd_bench.predict.gpu_results import read_gpu_results
from studies.costs.fit import ShapesResult, agreement, fit_costs
from studies.costs.searches import left_out_errors

RESULTS = "results"
DIGITS = 5
FEWEST = 2  # models from which the rates of searches can be fitted
HEADER = """\
# Costs of {model} on one {gpu}, {dtype}, in milliseconds. Written by
#   python -m studies.costs results=FOLDER out=conf/costs
# from the results of `shapes` in FOLDER, {slug}/{model}.json; `sources` names their keys.
"""
SOURCES: dict[str, dict[str, str]] = read_yaml(Path(__file__).with_name("sources.yaml"))
"""Sources of the values of a file by their names: fitted ones, assumed ones, and those of a result with sweeps."""


def gpu_folder(machine: str) -> str:
    """Return the folder of a GPU in `conf/costs`, such as h200."""
    return slug(machine).removeprefix("nvidia-")


def file_text(content: Mapping[str, Any], swept: bool) -> str:
    """Return the text of a machine's file.

    Args:
        content: an item of `fit_costs`.
        swept: whether the result has sweeps.
    """
    lines = [HEADER.format(**content, slug=slug(content["gpu"]))]
    lines += [f"{key}: {content[key]}" for key in ("gpu", "model", "n_layers", "dtype", "captured_nodes")]
    for section in ("host", "draft"):
        lines += [f"{section}:", *(f"  {key}: {_number(ms)}" for key, ms in content[section].items())]
    for table in ("passes", *(f"int{bits}_passes" for bits in BITS), "eager"):
        lines += [f"{table}: # {', '.join(COLUMNS)}", *map(_row, content[table])]
    lines += ["sources:", *(f"  {key}: {json.dumps(text)}" for key, text in sources(swept).items())]
    return "\n".join(lines) + "\n"


def sources(swept: bool) -> dict[str, str]:
    """Return the source of every value of a file."""
    return SOURCES["fitted"] | SOURCES["assumed"] | (SOURCES["swept"] if swept else {})


def _row(times: NodeTimes) -> str:
    nodes, *values = astuple(times)
    return f"  - [{nodes}, {', '.join(map(_number, values))}]"


def _number(value: float) -> str:
    """Return a number as text; YAML takes an exponent for a number only after a decimal point."""
    text = f"{value:.{DIGITS}g}"
    return re.sub(r"^(-?\d+)e", r"\1.0e", text)


def machines(contents: Sequence[Mapping[str, Any]]) -> dict[str, tuple[str, ReferenceMachine]]:
    """Return the file's text and the machine of every model, by model; results are of one GPU."""
    import yaml

    swept = {content["model"]: "sweeps" in content for content in contents}
    texts = {model: file_text(table, swept[model]) for model, table in fit_costs(contents).items()}
    folder = gpu_folder(contents[0]["machine"])
    return {
        model: (text, ReferenceMachine.read(f"{folder}/{model}", yaml.safe_load(text))) for model, text in texts.items()
    }


def write_costs(folder: Path, out: Path | None) -> str:
    """Fit the machines of the results in a folder, write their files, and return the table of their agreement.

    Args:
        out: folder of the files, GPU/MODEL.yaml; None: write none.
    """
    contents = [*read_gpu_results(folder).values()]
    if not contents:
        raise ConfigError(RESULTS, str(folder), "a folder with results of `shapes`")
    fitted = machines(contents)
    lines = []
    for text, machine in fitted.values():
        if out is not None:
            path = out / f"{machine.name}.yaml"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, text.encode())
            lines.append(str(path))
    frame = pd.DataFrame([agreement(fitted[content["model"]][1], content) for content in contents])
    parts = [tables.terminal(frame, [*map(str, frame)][1:])]
    if len(contents) > FEWEST:
        results = [ShapesResult.of(content) for content in contents]
        errors = pd.DataFrame(left_out_errors([(result.model, result.content) for result in results]))
        errors = errors.map("{:+.1%}".format)
        errors.insert(0, "model left out of the fit of searches", [content["model"] for content in contents])
        parts += ["", tables.terminal(errors, [*map(str, errors)][1:])]
    return "\n".join([*parts, *lines])
