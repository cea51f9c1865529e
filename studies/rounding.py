"""Compare formats of rounded weights: bits per weight, and the share of AR's tokens that a draft predicts with them.

`python -m studies.rounding model=qwen2_5_coder_0_5b task=gsm8k limit=10 decode.max_new_tokens=128
hardware.dtype=bfloat16 hardware.costs=h200/llama3_1_8b`

Takes the options of a run. Decodes each prompt by AR, then lets the model with all matrices rounded, the head too,
predict every output token after the true text. A predicted speedup is the best over draft lengths if a drafted token
takes an AR step times the bits per weight over 16. The file of counts is `runs_dir/frontier/MODEL.TASK.formats.csv`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean

import pandas as pd
import torch
from omegaconf import DictConfig
from torch import Tensor
from torch.nn import functional

from ssd_bench.compose.application import command
from ssd_bench.cost.tpt import tpt
from ssd_bench.cost.work import Machine
from ssd_bench.model.decoder import Decoder
from ssd_bench.model.operators import Matrix
from ssd_bench.results.quantity import ratio
from ssd_bench.results.text import format_measured
from ssd_bench.run_warnings import WarningLog
from studies.contexts import decode, load, write_counts
from studies.frontier import costs
from studies.progress import counted

SCALE_BITS = 16  # a scale and a minimum have 16 bits each
CLIPPED = (0.8, 0.85, 0.9, 0.95, 1.0)  # shares of a group's largest magnitude that a symmetric scale may reach
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # magnitudes of MXFP4
MXFP4_BLOCK, MXFP4_SCALE_BITS = 32, 8


def asymmetric(groups: Tensor, bits: int) -> Tensor:
    """Round to 2^bits equidistant values between a group's extremes; [..., group size] as all formats."""
    low, high = groups.aminmax(dim=-1, keepdim=True)
    low = low.half().float()
    scale = ((high - low) / (2**bits - 1)).half().float()
    return low + scale * ((groups - low) / scale.clamp_min(1e-12)).round().clamp(0, 2**bits - 1)


def symmetric(groups: Tensor, bits: int) -> Tensor:
    """Round to equidistant values around 0, at the best of five scales by squared error."""
    largest, peak = 2 ** (bits - 1) - 1, groups.abs().amax(-1, keepdim=True)
    tried = []
    for share in CLIPPED:
        scale = (share * peak / largest).half().float()
        tried.append(scale * (groups / scale.clamp_min(1e-12)).round().clamp(-largest - 1, largest))
    errors = torch.stack([(rounded - groups).square().sum(-1) for rounded in tried])
    best = errors.argmin(0, keepdim=True).unsqueeze(-1)
    return torch.stack(tried).gather(0, best.expand(1, *groups.shape)).squeeze(0)


def mxfp4(groups: Tensor, bits: int = 4) -> Tensor:
    """Round to E2M1 with a power of two as scale (OCP Microscaling Formats 1.0)."""
    peak = groups.abs().amax(-1, keepdim=True).clamp_min(2.0**-100)
    scale = (peak.log2().floor() - 2).exp2()  # 2: the exponent of the largest magnitude, 6
    magnitudes = torch.tensor(E2M1)
    middles = (magnitudes[1:] + magnitudes[:-1]) / 2
    return groups.sign() * scale * magnitudes[torch.bucketize((groups / scale).abs(), middles)]


Format = tuple[Callable[[Tensor, int], Tensor], int, int | None, float]
FORMATS: dict[str, Format] = {  # rounding, bits, group (None: a row), bits of a group's scale and minimum
    "8 bits, a scale per row": (symmetric, 8, None, SCALE_BITS),
    "4 bits, groups of 32, scale and minimum": (asymmetric, 4, 32, 2 * SCALE_BITS),
    "4 bits, groups of 32, scale": (symmetric, 4, 32, SCALE_BITS),
    "4 bits, groups of 64, scale and minimum": (asymmetric, 4, 64, 2 * SCALE_BITS),
    "4 bits, groups of 128, scale and minimum": (asymmetric, 4, 128, 2 * SCALE_BITS),
    "MXFP4": (mxfp4, 4, MXFP4_BLOCK, MXFP4_SCALE_BITS),
    "3 bits, groups of 32, scale and minimum": (asymmetric, 3, 32, 2 * SCALE_BITS),
}


def rounded(weight: Tensor, form: Format) -> Tensor:
    """Return a float32 matrix [rows, columns] with its rounded values; zeros fill up the last group."""
    rounding, bits, group, _ = form
    columns = weight.shape[1]
    groups = functional.pad(weight, (0, -columns % (group or columns))).unflatten(1, (-1, group or columns))
    return rounding(groups, bits).flatten(1)[:, :columns]


def in_format(decoder: Decoder, form: Format) -> Decoder:
    """Return the model with all matrices rounded, but the embedding."""
    operators = decoder.operators(decoder.arithmetic)

    def pack(matrix: Matrix) -> Matrix:
        floats = operators.embed(matrix, torch.arange(matrix.shape[0])).float()
        return operators.pack(rounded(floats, form).to(decoder.weights.dtype))

    copies = decoder.weights.rounded(pack)
    return type(decoder)(decoder.arithmetic, replace(decoder.weights, blocks=copies.blocks, head=copies.head))


def predicted(decoder: Decoder, capacity: int, texts: Iterable[tuple[Sequence[int], Sequence[int]]]) -> Iterator[int]:
    """Yield, for each prompt and output, how many output tokens after the first are predicted."""
    cache = decoder.new_cache(capacity)
    for prompt, output in texts:
        with torch.inference_mode():
            ids, last = [*prompt, *output[:-1]], 2 * decoder.arch.n_layers
            _, taps = decoder.prefill(decoder.ids(ids), cache, (last,), len(output) - 1)
            assert taps is not None
            guesses = decoder.predict(taps[0]).tolist()
        yield sum(a == b for a, b in zip(guesses, output[1:], strict=True))


def rows_of(counts: pd.DataFrame, machine: Machine, n_layers: int) -> pd.DataFrame:
    """Return a table with a row per format; `counts` has a row per prompt and format."""
    context, rows = mean(counts["context"]), []
    *_, verify = costs(machine, n_layers, context)
    for name, (_, bits, group, scale_bits) in FORMATS.items():
        counted_rows = counts[counts["format"] == name]
        alpha = ratio(counted_rows["correct"].to_numpy(float), counted_rows["tokens"].to_numpy(float), at_most=1.0)
        assert alpha.value is not None, "tokens were scored"
        width = bits + (scale_bits / group if group else 0.0)
        speedup = max(tpt(alpha.value, n, width / 16, ms) for n, ms in enumerate(verify)) / 1000
        texts = f"{width:.2f}", format_measured(alpha, 3), f"{speedup:.2f}"
        rows.append((name, *texts))
    return pd.DataFrame(rows, columns=["format", "bits per weight", "predicted tokens", "predicted speedup"])


def study(cfg: DictConfig, _wait: bool = True, log: WarningLog | None = None) -> Path:
    """Score all formats on the prompts of a run's options; print the table and return the file of counts."""
    planned, decoder, cache, machine = load(cfg, log)
    new = planned.decoding.max_new_tokens
    assert new is not None, "the plan resolves it"
    prompts = [encoded.ids for encoded in planned.prompts.encoded]
    texts = [(prompt, decode(decoder, cache, prompt, new)) for prompt in counted(prompts, "prompts")]
    rows = []
    for name, form in FORMATS.items():
        scores = predicted(in_format(decoder, form), cache.capacity, counted(texts, name))
        rows += [(name, i, correct, new - 1, len(prompts[i]) + new / 2) for i, correct in enumerate(scores)]
    counts = pd.DataFrame(rows, columns=["format", "prompt", "correct", "tokens", "context"])
    print(f"{len(prompts)} prompts, {new - 1} tokens each\n")
    print(rows_of(counts, machine, decoder.arch.n_layers).to_markdown(index=False, disable_numparse=True))
    return write_counts(counts, planned, "formats")


def main(arguments: Sequence[str]) -> int:
    """Run the study; return the exit code of `command`."""
    return command(study, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
