"""Score drafts at a long context: a window of the cache, skipped attentions and rounded weights, alone and together.

`python -m studies.contexts model=qwen2_5_coder_0_5b task=pg19 task.max_prompt_tokens=4096 limit=4
decode.max_new_tokens=64 hardware.dtype=bfloat16 hardware.costs=h200/llama3_1_8b`

Takes the options of a run. Decodes each prompt by AR, then lets every draft predict the output token by token,
`DRAFT_LEN` of them after the true text. One prefill serves all drafts. Shows the acceptance rate α, the product of the
α of a draft's parts, and the cost of a drafted token; writes `runs_dir/frontier/MODEL.TASK.POSITIONS.csv`, a row per
prompt and draft.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import mean

import numpy as np
import pandas as pd
import torch
from omegaconf import DictConfig, open_dict

from methods.ar import AR
from methods.fixed_layers import pattern_set
from ssd_bench.compose.application import command
from ssd_bench.contract.layer_set import BITS, LayerSet
from ssd_bench.contract.window import Window
from ssd_bench.cost.machine import Profile
from ssd_bench.cost.tpt import tpt
from ssd_bench.cost.work import Machine
from ssd_bench.engine.probe import ModelProbe
from ssd_bench.model.decoder import Decoder
from ssd_bench.model.kv_cache import KVCache
from ssd_bench.papers.ssd_bench.plane import FOLDER
from ssd_bench.results.quantity import Array, Measured, measure, ratio
from ssd_bench.results.text import format_measured
from ssd_bench.run.loading import latency_of, load_model
from ssd_bench.run.plan import Plan, plan
from ssd_bench.run_warnings import WarningLog
from studies.frontier import costs, draft_cost
from studies.progress import counted
from studies.set_scores import count_drafted

WINDOW = Window(4, 508)  # 4 sinks, as in StreamingLLM
SKIPPED = 0.4
PARTS = {"window": "window of 512", "attentions": f"{SKIPPED:.0%} of attentions skipped"}
PARTS |= {f"int{bits}": f"{bits} bits" for bits in BITS}


def drafts(n_layers: int) -> dict[tuple[str, ...], LayerSet]:
    """Return every combination of parts with its draft; the full model is not one."""
    sets = {}
    for window, attentions, bits in product((False, True), (False, True), (None, *BITS)):
        parts = [name for name, used in (("window", window), ("attentions", attentions)) if used]
        layer_set = pattern_set("attention", SKIPPED / 2 if attentions else 0.0, n_layers)
        layer_set = replace(layer_set, window=WINDOW if window else None)
        if bits is not None:
            parts.append(f"int{bits}")
            layer_set = layer_set.in_bits(bits)
        sets[tuple(parts)] = layer_set
    del sets[()]
    return sets


def decode(decoder: Decoder, cache: KVCache, prompt: Sequence[int], new: int) -> list[int]:
    """Return `new` tokens of AR's output; EOS does not end it, and the prompt stays in the cache."""
    return ModelProbe(decoder, cache).trial(AR(), prompt, new).output


def score(decoder: Decoder, cache: KVCache, prompt: Sequence[int], new: int, sets: Sequence[LayerSet]) -> list[int]:
    """Return how many of the last `new` - 1 tokens of AR's output each draft predicts."""
    output = decode(decoder, cache, prompt, new)
    with torch.inference_mode():
        scores = [count_drafted(decoder, cache, layer_set, len(prompt), output) for layer_set in sets]
    cache.reset()
    return scores


def rows_of(counts: pd.DataFrame, machine: Machine, n_layers: int) -> pd.DataFrame:
    """Return a table with a row per draft: α, the product of its parts' α, their ratio, cost and predicted speedup.

    Args:
        counts: a row per prompt and draft.
    """
    by_draft = {tuple(str(draft).split("+")): of_draft for draft, of_draft in counts.groupby("draft")}
    correct = {parts: of_draft["correct"].to_numpy(float) for parts, of_draft in by_draft.items()}
    tokens = next(iter(by_draft.values()))["tokens"].to_numpy(float)
    context, rows = mean(counts["context"]), []
    *_, verify = costs(machine, n_layers, context)
    for parts, layer_set in drafts(n_layers).items():
        alone = [correct[part,] for part in parts]

        def over_product(joint: Array, total: Array, *singles: Array) -> Array:
            product_of_parts = np.prod([single.sum(-1) / total.sum(-1) for single in singles], axis=0)
            return np.asarray(joint.sum(-1) / total.sum(-1) / product_of_parts)

        alpha, cost = ratio(correct[parts], tokens, at_most=1.0), draft_cost(machine, layer_set, context)
        assert alpha.value is not None, "tokens were scored"
        excess = measure(over_product, correct[parts], tokens, *alone) if len(parts) > 1 else Measured(None)
        speedup = max(tpt(alpha.value, n, cost, ms) for n, ms in enumerate(verify)) / 1000
        rows.append(
            {
                "draft": " + ".join(PARTS[part] for part in parts),
                "α": format_measured(alpha, 3),
                "α / product of its parts": format_measured(excess, 3),
                "cost of a drafted token, AR steps": f"{cost:.3f}",
                "predicted speedup": f"{speedup:.2f}",
            }
        )
    return pd.DataFrame(rows)


def load(cfg: DictConfig, log: WarningLog | None, bits: Sequence[int] = ()) -> tuple[Plan, Decoder, KVCache, Machine]:
    """Return the plan of a run's options with AR as its method, its model with rounded copies, and the machine."""
    with open_dict(cfg):
        cfg.method = {"_target_": "methods.ar.AR"}
    planned = plan(cfg)
    decoder, cache = load_model(planned)
    for width in bits:
        decoder.quantise(width)
    cache = decoder.new_cache(cache.capacity) if bits else cache  # as `quantise` asks
    return planned, decoder, cache, Profile(latency_of(planned, decoder, cache, log))


def write_counts(counts: pd.DataFrame, planned: Plan, kind: object) -> Path:
    """Write a study's counts next to the planes of its folder of runs, and return the file."""
    name = f"{planned.model.dims.name}.{planned.task.name}.{kind}.csv"
    path = planned.identity.run_dir.parent / FOLDER / name
    path.parent.mkdir(parents=True, exist_ok=True)
    counts.to_csv(path, index=False)
    return path


def study(cfg: DictConfig, _wait: bool = True, log: WarningLog | None = None) -> Path:
    """Score all drafts on the prompts of a run's options; print the table and return the file of counts."""
    planned, decoder, cache, machine = load(cfg, log, BITS)
    n_layers, new = planned.model.dims.n_layers, planned.decoding.max_new_tokens
    assert new is not None, "the plan resolves it"
    sets, rows = drafts(n_layers), []
    for prompt, encoded in enumerate(counted(planned.prompts.encoded, "prompts")):
        for parts, correct in zip(sets, score(decoder, cache, encoded.ids, new, [*sets.values()])):
            rows.append(("+".join(parts), prompt, correct, new - 1, len(encoded.ids) + new / 2))
    counts = pd.DataFrame(rows, columns=["draft", "prompt", "correct", "tokens", "context"])
    context = round(mean(counts["context"]))
    print(f"{len(planned.prompts.encoded)} prompts, {context} positions, {new - 1} tokens each\n")
    print(rows_of(counts, machine, n_layers).to_markdown(index=False))
    return write_counts(counts, planned, context)


def main(arguments: Sequence[str]) -> int:
    """Run the study; return the exit code of `command`."""
    return command(study, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
