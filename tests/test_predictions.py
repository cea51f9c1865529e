"""Predictions for the papers' models: whose acceptance they take, what machine a speedup needs, how good they are."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean

import numpy as np
import pandas as pd
import pytest

from ssd_bench.papers.ours.cells import Replication, replications
from ssd_bench.papers.ours.values import BASELINES
from ssd_bench.papers.printed.catalogue import PaperFolder
from ssd_bench.papers.runs import grid
from ssd_bench.predict import predictions
from ssd_bench.predict.acceptance import Acceptance, Steps, needed_cost, reported_speedups, smallest_argument
from ssd_bench.predict.predictions import FEW, LABELS, NEEDS, PAPER_ACCEPTANCE, RUN_ACCEPTANCE, Skill, skill
from ssd_bench.predict.replay import predict
from ssd_bench.predict.shares import Share, stated_share
from tests.exhibit_runs import indexed, make

DRAWS = 40_000


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Replication]:
    """SWIFT's Table 2: rehearsed in all cells but one, which has a run of the paper's own model."""
    folder = tmp_path_factory.mktemp("predictions")
    make(folder, "toy")
    make(folder, "own", accept=0.5, model={"name": "llama2_70b"})

    def run(job: grid.Job) -> str:
        chosen = grid.choice(job.overrides, "model"), job.labels["task"], job.labels["method"]
        return "own" if chosen == ("llama2_70b", "GSM8K", "SWIFT") else "toy"

    indexed(folder, "swift_table2", "mini", run)
    return replications(folder)


@pytest.fixture(scope="module")
def frame(found: Sequence[Replication]) -> pd.DataFrame:
    return predictions.predictions(found)


@pytest.mark.parametrize(
    ("alpha", "tokens", "draft_len"),
    [(0.95, None, 10), (0.32, None, 10), (None, 4.34, 25), (0.62, 2.17, 12), (0.3, 1.9, 10), (1.0, 4.0, 12)],
)
def test_expected_drafts_are_the_mean_of_those_drawn(alpha: float | None, tokens: float | None, draft_len: int) -> None:
    rng, acceptance = random.Random(0), Acceptance.of(alpha, tokens, draft_len)
    drafts = [acceptance.sample(rng.random(), rng.random()) for _ in range(DRAWS)]
    assert acceptance.accepted == pytest.approx(mean(a for a, _ in drafts), rel=0.02)
    assert acceptance.drafted == pytest.approx(mean(d for _, d in drafts), rel=0.02)


def test_a_share_is_never_assumed() -> None:
    """Sources: r of the inner or of all sublayers, a preset's table, the mean of released sets; else no share."""
    skipped = {
        "CLaSp": {"preset": "clasp_knapspec", "source": "script"},
        "KNN-SSD": {"sets": ["cnndm", "gsm8k"], "models": ["LLaMA-2-13B"], "source": "sets"},
        "Mix": {"sets": ["cnndm", "none"], "source": "sets"},
    }
    plain = PaperFolder(Path("knn_ssd"), 9, {"x": "X"}, imposed={"drafts": "Table 3", "skipped": skipped})
    inner = replace(plain, skip_ratio="inner")
    assert stated_share(inner, "m", "any", 40, printed=0.45) == Share(34 / 80, "Table 3")
    assert stated_share(plain, "m", "any", 40, printed=0.45) == Share(36 / 80, "Table 3")
    assert stated_share(plain, "m", "CLaSp", 64) == Share(20 / 64, "script")
    assert stated_share(plain, "m", "CLaSp", 48) is None  # not the preset's share for other models, which is ours
    assert stated_share(plain, "LLaMA-2-13B", "KNN-SSD", 40) == Share((36 + 29) / 160, "sets")
    for model, method in (("LLaMA-2-13B-Chat", "KNN-SSD"), ("LLaMA-2-13B", "Mix"), ("LLaMA-2-13B", "DEL")):
        assert stated_share(plain, model, method, 40) is None


def test_the_least_number_that_reaches_a_value() -> None:
    assert smallest_argument(lambda x: x * x, 0.25) == pytest.approx(0.5) and smallest_argument(lambda x: x, 2.0) == 1.0


def test_every_row_has_the_papers_own_acceptance_or_that_of_its_own_model(frame: pd.DataFrame) -> None:
    assert tuple(frame.columns[: len(LABELS)]) == LABELS
    assert not set(frame["method"]) & set(BASELINES)
    theirs, ours = (frame[frame["acceptance"] == whose] for whose in (PAPER_ACCEPTANCE, RUN_ACCEPTANCE))
    assert len(theirs) + len(ours) == len(frame) and len(theirs) == len(list(reported_speedups()))
    assert set(ours["run"]) == {"own"} and set(theirs["run"]) == {""} and theirs["measured"].isna().all()
    assert (frame["predicted"].isna() == (frame["reason"] != "")).all() and frame["predicted"].notna().sum() > 50
    stated = frame["machine"].str.contains("not stated by the paper")
    assert (stated == (frame["paper"] == "knapspec")).all() and "swift-v1" not in set(theirs["paper"])


def test_a_run_of_the_papers_model_is_replayed(found: Sequence[Replication], frame: pd.DataFrame) -> None:
    (made,) = {cell.record for one in found for cell in one.recorded_cells() if cell.path.name == "own" and cell.record}
    ours = frame[frame["acceptance"] == RUN_ACCEPTANCE]
    row = ours[ours["paper"] == "swift"].iloc[0]
    assert (row["model"], row["task"], row["method"], row["scale"]) == ("LLaMA-2-70B", "GSM8K", "SWIFT", "mini")
    assert row["predicted"] == predict(made.run, "sim_a6000", "llama2_70b").speedup
    assert row["measured"] == made.summary.speedup.value and row["M"] == made.summary.M.value and np.isnan(row["needs"])


def test_what_a_speedup_needs_gives_it_back(frame: pd.DataFrame) -> None:
    """Where a verification takes a plain step, drafting at the needed cost is exactly as fast as the paper says."""
    counted = 0
    for row in (row for row in reported_speedups() if not row.missing):
        acceptance = Acceptance.of(row.alpha, row.tokens, row.draft_len)
        cost = needed_cost(acceptance, row.number.value)
        step = acceptance.drafted * cost + 1
        assert (acceptance.accepted + 1) / step == pytest.approx(row.number.value)
        counted += 1
    theirs = frame[frame["needs"].notna()]
    assert (theirs["share_source"] != "").all() and (frame.loc[frame["share"].isna(), "share_source"] == "").all()
    assert counted == len(theirs) and (theirs["share"] < theirs["c"]).all()


def test_what_machine_the_papers_need(frame: pd.DataFrame) -> None:
    kinds = [predictions.machine_need(cost, share) for cost, share in ((0.6, 0.5), (0.5, 0.5), (0.4, 0.5), (-0.1, 0.5))]
    assert kinds == ["any", "any", "cheaper", "impossible"]
    told = predictions.machine_needs(frame)
    asked = frame[frame["needs"].notna() & (frame["metric"] == "speedup")]
    assert list(told) == list(dict.fromkeys(asked["paper"])) and "knn-ssd" not in told  # it has expected ones only
    for paper, sentence in told.items():
        own = asked[asked["paper"] == paper]
        words = [predictions.machine_need(cost, share) for cost, share in zip(own["needs"], own["share"])]
        for word, what in NEEDS.items():
            assert (f"{words.count(word)} {what}" in sentence) == (word in words)
        assert (own["derived"] == "alpha").any() == ("even if every drafted token were accepted" in sentence)
    assert NEEDS["impossible"] in next(iter(predictions.machine_needs(asked.head(1).assign(needs=-0.2)).values()))


def scored(printed: Sequence[str], predicted: Sequence[float], metric: str = "speedup") -> pd.DataFrame:
    return pd.DataFrame({"metric": metric, "printed": printed, "predicted": predicted})


def test_skill_is_of_the_speedups_that_papers_measured() -> None:
    printed = ["1.00", "1.10", "1.20", "1.30", "1.40"]
    assert skill(scored(printed, [float(text) for text in printed])) == Skill(
        5, 0.0, 0.0, pytest.approx(1 / 11), pytest.approx(1.0)
    )
    worse = skill(scored(printed, [1.4, 1.3, 1.2, 1.1, 1.0]))
    assert worse is not None and worse.rank == pytest.approx(-1) and worse.miss == pytest.approx(2 / 11)
    flat = skill(scored(printed, [1.2] * 5))
    assert flat is not None and flat.rank is None and flat.miss == flat.constant and "–" in flat.text
    assert skill(scored(printed[: FEW - 1], [1.0] * (FEW - 1))) is None
    assert skill(scored(printed, [1.0] * 5, "expected_speedup")) is None
    assert skill(scored(printed, [float("nan")] * 5)) is None


def test_what_is_not_predicted_is_told_in_a_sentence(found: Sequence[Replication], frame: pd.DataFrame) -> None:
    own, text = skill(frame), predictions.document(frame)
    assert own is not None and text.split("\n\n")[1].startswith(f"{own.n} speedups that the papers measured")
    assert own.text in text and predictions.INTRO in text
    calculated = frame[(frame["metric"] == "expected_speedup") & frame["predicted"].notna()]
    assert f"does not count {len(calculated)} expected speedups" in text and len(calculated) == 16
    assert all(sentence in text for sentence in predictions.machine_needs(frame).values())
    alone = predictions.predictions([])
    assert set(alone["acceptance"]) == {PAPER_ACCEPTANCE}


def test_a_reader_sees_no_empty_column(frame: pd.DataFrame) -> None:
    shown = predictions.readable_table(frame)
    own = {"measured, ours: speedup, decode", "run"}
    assert {*own, "PREDICTED speedup, decode", "c needed"} <= set(shown.columns) and len(shown) == len(frame)
    alone = predictions.readable_table(frame[frame["acceptance"] == PAPER_ACCEPTANCE])
    assert not {"measured, ours: speedup, decode", "run", "scale"} & set(alone.columns)
    marked = shown.loc[frame["derived"] == "M", "M"]
    assert len(marked) and marked.str.startswith("≈").all() and not alone.isna().any(axis=None)


def test_more_skipped_is_cheaper_to_draft_and_the_loop_is_in_both_arms() -> None:
    steps: Steps = predictions._steps("sim_a6000", "llama2_13b")
    costs = [steps.draft_ms(share) for share in np.linspace(0, 1, 11)]
    assert costs == sorted(costs, reverse=True)
    loop = steps.machine.loop_ms
    attn, mlp, rest = steps.machine.pass_ms(np.ones(1), np.full(1, float(steps.context)))
    assert loop and steps.plain_ms == pytest.approx((steps.n_layers * (attn + mlp) + rest + loop).item())
    assert steps.speedup(Acceptance(1.0, 0.0, 4), 0.5) > 1 > steps.speedup(Acceptance(0.0, 1.0, 4), 0.5)
