"""Formats of rounded weights: error by bits, values on their grids, and predictions of the full model's output."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
import pytest
import torch

from methods.ar import AR
from ssd_bench.cost.reference import reference_machine
from ssd_bench.model.decoder import Decoder
from ssd_bench.model.operators import RoundedMatrix
from studies.rounding import E2M1, FORMATS, in_format, predicted, rounded, rows_of
from tests.conftest import LAYERS
from tests.lossless import engine_for

ASYMMETRIC = "4 bits, groups of 32, scale and minimum"


@pytest.fixture(scope="module")
def weight() -> torch.Tensor:
    return torch.randn(64, 256, generator=torch.Generator().manual_seed(0))


def test_more_bits_and_smaller_groups_round_closer(weight: torch.Tensor) -> None:
    errors = [float((rounded(weight, form) - weight).square().mean()) for form in FORMATS.values()]
    eight, four, symmetric, of_64, of_128, mx, three = errors
    assert eight < four < min(symmetric, of_64, mx) and of_64 < of_128 < three and mx < three


def test_the_format_of_drafts_is_theirs(weight: torch.Tensor) -> None:
    own = RoundedMatrix.of([weight], 4).floats(torch.float32)
    assert torch.allclose(rounded(weight, FORMATS[ASYMMETRIC]), own, atol=1e-6)


def test_mxfp4_has_eight_magnitudes_by_a_power_of_two(weight: torch.Tensor) -> None:
    blocks = rounded(weight, FORMATS["MXFP4"]).unflatten(1, (-1, 32))
    scale = (weight.unflatten(1, (-1, 32)).abs().amax(-1, keepdim=True).log2().floor() - 2).exp2()
    assert torch.isin((blocks / scale).abs(), torch.tensor(E2M1)).all()


def test_the_model_itself_predicts_all_and_every_format_less(decoders: Callable[..., Decoder]) -> None:
    decoder = decoders()
    engine = engine_for(decoder, 60, 40, frozenset())
    with torch.inference_mode():
        texts = [(prompt, engine.generate(AR(), prompt).output) for prompt in ([5, 6, 7], [40, 9])]
    assert [*predicted(decoder, 60, texts)] == [39, 39]
    shares = {name: sum(predicted(in_format(decoder, form), 60, texts)) / 78 for name, form in FORMATS.items()}
    assert shares["8 bits, a scale per row"] > 0.9 > shares["3 bits, groups of 32, scale and minimum"]


def test_a_table_has_every_format_with_its_bits() -> None:
    counts = pd.DataFrame(
        [(name, prompt, 9, 10, 100.0) for name in FORMATS for prompt in range(2)],
        columns=["format", "prompt", "correct", "tokens", "context"],
    )
    rows = rows_of(counts, reference_machine("h200/llama3_1_8b").of_blocks(LAYERS), LAYERS).set_index("format")
    assert rows.loc[ASYMMETRIC, "bits per weight"] == "5.00" and rows.loc["MXFP4", "bits per weight"] == "4.25"
    assert set(rows["predicted tokens"]) == {"0.900"}
    speedups = rows["predicted speedup"].astype(float)
    assert speedups["MXFP4"] > speedups[ASYMMETRIC] > speedups["8 bits, a scale per row"]  # equally right: fewer bits
