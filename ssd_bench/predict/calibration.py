"""Assumptions of GPUs that are known by their data sheets: fitted to measurements of one GPU, with the remaining error.

The measurements are results of `shapes`: passes, AR, searches, and speedups at imposed acceptance. Shares of the data
sheet, host times and launches are assumed to be the same on other GPUs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd

from ssd_bench.contract.shape import Shape
from ssd_bench.cost.machine import Machine
from ssd_bench.cost.roofline import (
    ATTN_KERNELS,
    FLOAT_BYTES,
    MLP_KERNELS,
    PREFIX,
    REST_KERNELS,
    VALUE_BYTES,
    Gpu,
    SimulatedMachine,
    gpu_named,
    simulated_names,
)
from ssd_bench.cost.shapes import shape_named
from ssd_bench.errors import ConfigError
from ssd_bench.predict.acceptance import Steps

FITTED = ("bandwidth_efficiency", "launch_us", "sync_us", "loop_us", "call_us", "compare_us")
"""Settings that measurements decide; the others are from data sheets, or assumed."""
NEEDED = {"machine", "model", "context", "tokens", "pass_ms", "search", "rows"}
"""Keys of a result that are used."""
COMPARISONS = {"knapspec": 4, "clasp": 1}
"""Comparisons of branches with the full model's stream, per block, of the measured searches."""
DIGITS = 2  # significant digits of the fitted values in conf/hardware


def shapes_results(folder: Path) -> list[dict[str, Any]]:
    """Read the results of `shapes` in a folder, in the order of their files.

    Raises:
        ConfigError: a file is damaged, or there is none.
    """
    results = []
    for path in sorted(folder.rglob("*.json")):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError("shapes", str(path), f"a result of `shapes` ({error})") from error
        if not isinstance(content, dict) or not content.keys() >= NEEDED:
            raise ConfigError("shapes", str(path), f"a result of `shapes`, with {', '.join(sorted(NEEDED))}")
        results.append(content)
    if not results:
        raise ConfigError("shapes", str(folder), "a folder with results of `shapes`")
    return results


def fitted_gpu(gpu: Gpu, results: Sequence[Mapping[str, Any]]) -> Gpu:
    """Return a GPU whose settings `FITTED` are those of measurements on it.

    Whole passes over one node and those with half of the sublayers give the time of a byte, of a kernel and of a pass,
    by least squares of relative errors. AR's steps give the decode loop, searches the times of a call and of a
    comparison.
    """
    from scipy.optimize import nnls

    terms, times = [], []
    for result in results:
        shape, measured = shape_named(result["model"]), result["pass_ms"]
        for n_blocks, name in ((shape.n_layers, "1 nodes"), (shape.n_layers / 2, "half, uniform")):
            terms += [_pass_terms(shape, n_blocks, result["context"])]
            times += [measured[name]]
    relative = np.array(terms) / np.array(times)[:, None]
    (ms_per_byte, ms_per_kernel, ms_per_pass), _ = nnls(relative, np.ones(len(times)))
    gpu = replace(
        gpu,
        bandwidth_efficiency=_rounded(1e-6 / ms_per_byte / gpu.bandwidth_gb_s),
        launch_us=_rounded(1e3 * ms_per_kernel),
        sync_us=_rounded(1e3 * ms_per_pass),
    )
    loop_ms = [
        median(row["ar_ms_per_token"] for row in result["rows"]) - result["pass_ms"]["1 nodes"]
        for result in results
        if result["rows"]
    ]
    calls = [terms for result in results for terms in _search_calls(gpu, result)]
    (ms_per_call, ms_per_comparison), _ = nnls(np.array(calls), np.ones(len(calls)))
    return replace(
        gpu,
        loop_us=_rounded(1e3 * median(loop_ms)),
        call_us=_rounded(1e3 * ms_per_call),
        compare_us=_rounded(1e3 * ms_per_comparison),
    )


def _pass_terms(shape: Shape, n_blocks: float, context: int) -> tuple[float, float, float]:
    """Return bytes, kernels and 1 of a pass over one node with a number of blocks."""
    cache = shape.cache_row * VALUE_BYTES * (context + 2)
    blocks = n_blocks * ((shape.attn_params + shape.mlp_params) * VALUE_BYTES + cache)
    head = shape.head_params * VALUE_BYTES + shape.vocab_size * 2 * (VALUE_BYTES + FLOAT_BYTES)
    return blocks + head, n_blocks * (ATTN_KERNELS + MLP_KERNELS) + REST_KERNELS, 1.0


def _search_calls(gpu: Gpu, result: Mapping[str, Any]) -> list[tuple[float, float]]:
    """Return calls and comparisons of each measured search, per millisecond that its sublayers do not explain."""
    machine, terms = SimulatedMachine(gpu, shape_named(result["model"])), list[tuple[float, float]]()
    n_layers = machine.shape.n_layers
    for name, search in result["search"].items():
        rows, context = np.full(1, float(search["tokens"])), np.full(1, float(result["context"]))
        attn, mlp, _ = machine.pass_ms(rows, context)  # `tokens` are the mean rows of its 2L sublayers
        remaining = search["ms"] - n_layers * float((attn + mlp)[0])
        terms += [(2 * n_layers / remaining, COMPARISONS[name] * n_layers / remaining)]
    return terms


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def row_errors(machine: Machine, result: Mapping[str, Any]) -> pd.DataFrame:
    """Predict the measured speedups of a result of `shapes`, at the acceptance that its rows had.

    Rows without an accepted token are left out: their draft length is unknown.

    Returns:
        Columns model, speedup and token: predicted / measured - 1 of the speedup over AR, and of the time of a token.
    """
    shape = shape_named(result["model"])
    steps = Steps(machine, shape.n_layers, result["context"] + result["tokens"] / 2)
    errors = []
    for row in result["rows"]:
        if row["realised_alpha"] > 0:
            tokens = row["realised_M"]
            drafted = (tokens - 1) / row["realised_alpha"]  # of M tokens of a step one is the target's
            token_ms = (drafted * steps.draft_ms(row["skipped"]) + steps.verify_ms(drafted)) / tokens
            speedup = steps.plain_ms / token_ms
            errors += [(result["model"], speedup / row["speedup"] - 1, token_ms / row["ms_per_token"] - 1)]
    return pd.DataFrame(errors, columns=["model", "speedup", "token"])


def sheet_errors(results: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return the errors of the data sheet of the GPU of some results (`row_errors`), over all its models.

    Raises:
        ConfigError: no simulated GPU is the measured one.
    """
    machines = [
        SimulatedMachine(gpu_named(sheet_of(result["machine"])), shape_named(result["model"])) for result in results
    ]
    return pd.concat([row_errors(machine, result) for machine, result in zip(machines, results)], ignore_index=True)


def sheet_of(gpu: str) -> str:
    """Return the name of the simulated GPU with the vendor's name of a measured one, such as NVIDIA H200.

    Raises:
        ConfigError: there is none.
    """
    for name in simulated_names():
        if gpu_named(name).name.startswith(gpu):
            return name
    raise ConfigError("shapes", gpu, f"measurements of a GPU with a data sheet: {PREFIX}<gpu> in conf/hardware")


def error_table(errors: pd.DataFrame) -> pd.DataFrame:
    """Return medians and maxima of the absolute errors by model and over all, as texts."""
    rows = []
    for name, group in [*errors.groupby("model"), ("all", errors)]:
        speedup, token = group["speedup"].abs(), group["token"].abs()
        shares = (speedup.median(), speedup.max(), token.median(), token.max())
        rows.append((name, str(len(group)), *(f"{share:.1%}" for share in shares)))
    heads = ["model", "rows", "speedup: median |error|", "largest", "ms per token: median |error|", "largest"]
    return pd.DataFrame(rows, columns=heads)
