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
FITTED = {
    "passes, total of captured": "measured: pass_ms['n nodes'] is L * (attention + MLP) + rest, at the context of the "
    "results",
    "passes, block over one node": "measured: (pass_ms['1 nodes'] - pass_ms['half, uniform']) over skipped sublayers",
    "passes, attention and MLP": "fitted: a block over one node divided by kernels (6 and 3) * launch time + bytes / "
    "bandwidth, both fitted to all models; growth with nodes divided by FLOPs of attention, MLP and head",
    "passes, slope by context": "fitted: bytes of a position's keys and values over the same bandwidth; growth with "
    "nodes by FLOPs",
    "passes, not captured": "fitted: the largest of call_ms, the table `eager` and the largest captured pass",
    **{
        f"int{b}_passes": f"fitted: `passes` less the time of the bytes that {b}-bit weights save; no {b}-bit product "
        "was measured"
        for b in BITS
    },
    **{
        f"int{b}_draft_rest_ms": f"fitted: draft_rest_ms less the time of the bytes that {a} {b}-bit head saves; not "
        "measured"
        for b, a in zip(BITS, ("an", "a"))
    },
    "eager": "fitted: max(bytes / (share * limits.bandwidth_bytes_per_s), FLOPs / (share * limits.peak_flops)); both "
    "shares from search.knapspec.ms and search.clasp.ms of all models",
    "step_ms": "measured: median of ar.ms and rows[].ar_ms_per_token, less pass_ms['1 nodes']",
    "call_ms": "fitted: to search.knapspec.ms and search.clasp.ms of all models, together with the shares of `eager`",
    "compare_ms": "fitted: as call_ms; two per sublayer of KnapSpec, one per block of CLaSp",
    "draft_rest_ms": "measured: pass_ms['1 nodes'] less all blocks over one node; includes changes of layer set",
}
ASSUMED = {
    "copy_ms": "assumed: a kernel outside of captured graphs, 3 microseconds",
    "draft_start_ms": "assumed: 0, part of step_ms",
    "tree_token_ms": "assumed: three kernels outside of captured graphs, 3 microseconds each, and a wait for the "
    "device, 20 microseconds",
    "tree_node_ms": "assumed: TREE_NODE_MS of cost/roofline.py",
}
SWEPT = {
    "passes, attention and MLP": "measured: sweeps.contexts[].attention and sweeps.mlp, scaled to the block over one "
    "node; growth with nodes divided by these and sweeps.head",
    "passes, slope by context": "measured: line through sweeps.contexts[].attention",
    "passes, not captured": "measured: sweeps.contexts[].passes, attention, sweeps.mlp",
    "eager": "measured: sweeps.contexts[].branches, sweeps.branch_mlp, sweeps.branch_head",
    "step_ms": "measured: sweeps.host.step_ms",
    "call_ms": "measured: sweeps.host.call_ms",
    "compare_ms": "measured: sweeps.host.compare_ms",
}


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
    return FITTED | ASSUMED | (SWEPT if swept else {})


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
