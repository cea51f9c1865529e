"""Properties that comparable runs share."""

from __future__ import annotations

from typing import Any

from ssd_bench.records.header import RunHeader
from ssd_bench.records.reader import Run


def conditions(run: Run) -> dict[str, Any]:
    """Return what comparable runs share: task, prompts, model, hardware and decoding settings."""
    header = run.header
    task, model, decode = header.task, header.model, header.decode
    hashes = run.prompts.drop_duplicates("prompt_index").sort_values("prompt_index")["prompt_sha256"]
    return {
        "task": (task.name, task.version),
        "prompts": tuple(hashes),
        "model": tuple((k, getattr(model, k)) for k in ("name", "dtype", "n_layers", "n_params", "weights")),
        "hardware": tuple(sorted((k, str(v)) for k, v in header.hardware.items())),
        "decode": tuple((k, getattr(decode, k)) for k in ("max_new_tokens", "temperature", "top_p", "top_k")),
    }


def differing_settings(a: RunHeader, b: RunHeader) -> dict[str, tuple[Any, Any]]:
    """Return the differing properties of model and decoding -> both values.

    Names of models count only without digests of weights, and sampling settings only if one run samples.
    """
    names = ["weights", "dtype", "n_layers", "n_params"] if a.model.weights and b.model.weights else ["name", "dtype"]
    fields = [("model", name) for name in names] + [("decode", "mode"), ("decode", "max_new_tokens")]
    if not (a.decode.greedy and b.decode.greedy):
        fields += [("decode", name) for name in ("temperature", "top_p", "top_k")]
    differences = {}
    for group, name in fields:
        first, second = getattr(getattr(a, group), name), getattr(getattr(b, group), name)
        if first != second:
            differences[f"{group}.{name}"] = first, second
    return differences
