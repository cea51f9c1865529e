"""Drafts at a long context: each combination of parts is scored on AR's own output, after one prefill."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import torch

from methods.ar import AR
from ssd_bench.contract.layer_set import BITS, LayerSet
from ssd_bench.cost.reference import reference_machine
from ssd_bench.model.decoder import Decoder
from studies.contexts import drafts, main, rows_of, score
from studies.set_scores import SetScores
from tests.conftest import LAYERS
from tests.lossless import engine_for

NEW = 21
PROMPT = [5, 6, 7, 40, 41]


def test_each_draft_scores_as_alone_and_the_full_model_predicts_all(decoders: Callable[..., Decoder]) -> None:
    decoder = decoders()
    for bits in BITS:
        decoder.quantise(bits)
    engine = engine_for(decoder, 40, NEW, frozenset())
    with torch.inference_mode():
        output = engine.generate(AR(), PROMPT).output
    alone = SetScores(engine, [PROMPT], [output])
    sets = [LayerSet.exit(LAYERS, 1), *drafts(LAYERS).values(), LayerSet.full(LAYERS)]
    scores = score(decoder, engine.cache, PROMPT, NEW, sets)
    assert scores == [round(alone.token_by_token(layer_set) * (NEW - 1)) for layer_set in sets]
    assert scores[0] < scores[-1] == NEW - 1


def test_every_combination_of_parts_stands_once() -> None:
    sets = drafts(LAYERS)
    assert len(sets) == 2 * 2 * (1 + len(BITS)) - 1 == len({*sets.values()})
    assert sets["window", "attentions", "int4"].n_rounded.keys() == {4}


def test_a_combination_is_set_against_the_product_of_its_parts() -> None:
    """8 of 10 and 5 of 10: independent parts predict 4 together."""
    correct = {parts: 8 if parts == ("window",) else 5 if parts == ("attentions",) else 4 for parts in drafts(LAYERS)}
    counts = pd.DataFrame(
        [("+".join(parts), prompt, count, 10, 100.0) for prompt in range(2) for parts, count in correct.items()],
        columns=["draft", "prompt", "correct", "tokens", "context"],
    )
    rows = rows_of(counts, reference_machine("h200/llama3_1_8b").of_blocks(LAYERS), LAYERS).set_index("draft")
    joint = rows.loc["window of 512 + 40% of attentions skipped"]
    assert (joint["α"], joint["α / product of its parts"]) == ("0.400", "1.000")
    assert rows.loc["window of 512 + 8 bits", "α / product of its parts"] == "1.250"  # 4 of 10 over 8 and 4 of 10
    costs = rows["cost of a drafted token, AR steps"].astype(float)
    assert costs["4 bits"] < costs["8 bits"] < 1 and costs["window of 512"] == 1.0  # all positions are in the window


def test_the_study_writes_what_it_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["model=miniature", "task=gsm8k", "limit=2", "decode.max_new_tokens=9", f"runs_dir={tmp_path}"]
    assert main([*options, "hardware.costs=h200/llama3_1_8b"]) == 0
    shown = capsys.readouterr().out
    (path,) = (tmp_path / "frontier").iterdir()
    counts = pd.read_csv(path)
    assert "2 prompts" in shown and counts.groupby("draft").size().eq(2).all() and counts["tokens"].eq(8).all()
    assert shown.count("\n|") == 2 + len(drafts(LAYERS))
