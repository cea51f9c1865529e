"""Planted records out of a claim's scope, with degenerate searches, or of toy models do not decide it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from ssd_bench.papers.claims import judge
from ssd_bench.papers.claims.claims import claims
from ssd_bench.papers.claims.judge import CANNOT_SAY, EQUIVALENT, FAILS, HOLDS, NOT_RUN, Judgement
from ssd_bench.papers.claims.statistics import StatisticSample, _determination
from ssd_bench.papers.ours.cells import Replication, replications
from ssd_bench.papers.runs import grid
from ssd_bench.report import answers, verdict_texts, verdicts
from tests import synthetic
from tests.exhibit_runs import MINIATURE, indexed
from tests.papers.claim_runs import (
    PLAIN,
    Units,
    ablation,
    by_label,
    effect,
    judged,
    named,
    samples,
    searched,
    write,
)
from tests.papers.test_modelled_verdicts import counted

SEARCH = {"part": "prepare", "calls": 10**6, "rows": 1, "heads": 1.0, "launches": 2, "context": 0.0, "ms": None}
SEARCH |= {"attentions": synthetic.N_LAYERS, "mlps": synthetic.N_LAYERS}


def units(accept: float = 0.7, prompts: int = 10, tokens: int = 48, sets: int | None = None) -> Units:
    """Prompts of both arms; with `sets`, the search scored so many layer sets in all."""
    made = searched([synthetic.unit(i, accept=accept, tokens=tokens) for i in range(prompts)])
    if sets is not None:
        steps = [step for records in made for step in records[1].steps]
        for i, step in enumerate(steps):
            step.est_alpha = 0.5 + 0.01 * i if i < sets else None
    return made


@pytest.fixture(scope="module")
def failure(tmp_path_factory: pytest.TempPathFactory) -> Judgement:
    """A claim that fails on a toy model."""
    folder = tmp_path_factory.mktemp("failure")
    write(folder, "toy", units(0.1), model=PLAIN)
    return judged(folder, "swift/faster_than_ar", by_label("method", {"SWIFT": "toy"}))


def test_a_search_of_one_set_decides_no_claim_on_searches(tmp_path: Path) -> None:
    for sets in (1, 2):
        write(tmp_path, f"{sets}", units(sets=sets))
    for claim in ("swift/search_is_cheap", "swift/matchness_rises"):
        one, two = (judged(tmp_path, claim, lambda job, sets=sets: f"{sets}") for sets in (1, 2))
        assert one.verdict == CANNOT_SAY
        assert one.reason == "the search of CNN/DM, SWIFT scored 1 set; at least 2 are required"
        assert "at least 2 sets" in one.decided_by and "scored" not in two.reason


def test_it_is_degenerate_on_either_side(tmp_path: Path) -> None:
    """SWIFT's search, of one set, is far shorter than Self-SD's: that decides nothing."""
    searches = [{"name": "s", "evaluations": 100, "new": 100, "seconds": 100.0}]
    write(tmp_path, "self", units(0.5, sets=0), searches=searches, prepare_work=[SEARCH])
    write(tmp_path, "one", [synthetic.with_work(records, 1) for records in units(sets=1)])
    runs = by_label("method", {"Self-SD": "self", "SWIFT": "one"})
    found = judged(tmp_path, "swift/search_is_shorter", runs)
    assert found.verdict == CANNOT_SAY and "SWIFT scored 1 set" in found.reason
    assert found.effect is not None and found.effect > 10  # shown, as that of every undecided claim
    assert "[" not in verdict_texts.effect_text(found.claim, verdicts.table([found]).iloc[0])


def test_sets_by_domain_need_a_search_of_some_length(tmp_path: Path) -> None:
    def run(job: grid.Job) -> str | None:
        return job.labels["method"] if "0.0" in job.labels["setting"] else None

    for evaluations in (25, 100):
        searches = [{"name": "s", "evaluations": evaluations, "new": evaluations, "seconds": 1.0}]
        for name, accept in (("KNN-SSD", 0.9), ("Self-SD(Fix)", 0.5), ("Self-SD(Mix)", 0.6)):
            write(tmp_path / f"{evaluations}", name, units(accept, sets=0), searches=searches, model=PLAIN)
    short, long = (judged(tmp_path / name, "knn-ssd/sets_by_domain", run) for name in ("25", "100"))
    assert short.verdict == CANNOT_SAY and short.reason.startswith("out of scope: the search of ")
    assert "scored 25 sets; at least 100 are required" in short.reason and short.effect == long.effect
    assert "5 seeds are required" in long.reason


def test_short_outputs_say_nothing_about_long_ones(tmp_path: Path) -> None:
    write(tmp_path, "short", synthetic.thin(units(0.9)), model=PLAIN)
    write(tmp_path, "long", synthetic.thin(units(0.9, prompts=8, tokens=530)), model=PLAIN)

    def by_task(aime24: str, others: str) -> Judgement:
        def run(job: grid.Job) -> str | None:
            name = aime24 if job.labels["task"] == "AIME24" else others
            return name if job.labels["method"] == "KnapSpec" else None

        return judged(tmp_path, "knapspec/faster_than_ar", run)

    short, long = (by_task(name, name) for name in ("short", "long"))
    assert short.verdict == CANNOT_SAY and short.reason.startswith("out of scope: ")
    assert "at least 512 tokens or prompts of at least 2,048 tokens are needed" in short.reason
    assert short.effect is not None and short.low is not None and short.out_of_scope == 1
    assert long.verdict == HOLDS and not long.reason
    both = by_task("long", "short")
    assert (both.verdict, both.comparisons, both.out_of_scope) == (HOLDS, 1, 1) and both.effect == long.effect


def test_claims_on_model_size_need_several_models(tmp_path: Path) -> None:
    claim = "swift/gain_grows_with_size"
    for i, setting in enumerate(("r=0.40", "r=0.45", "r=0.50", "r=0.55")):  # each with a trace of its own
        write(tmp_path, f"small {setting}", units(0.4 - 0.02 * i), model=PLAIN)
        write(tmp_path, f"large {setting}", units(0.9 - 0.02 * i), model={"name": "larger", "toy": True})
    alone = judged(tmp_path, claim, lambda job: f"small {job.labels['setting']}")
    sizes = {"LLaMA-2-70B": "large", "LLaMA-2-7B": "small"}

    def run(job: grid.Job) -> str | None:
        size = sizes.get(job.labels["model"])
        return size and f"{size} {job.labels['setting']}"

    both = judged(tmp_path, claim, run)
    assert alone.verdict == NOT_RUN and "at least 2 models" in alone.reason and alone.decided_by == "runs of 2 models"
    assert both.verdict == HOLDS


def test_memory_needs_a_gpu(tmp_path: Path) -> None:
    found, names = {}, {"tau=0.5": "with", "tau=none (no pruning)": "without"}
    for device, gpus in (("cpu", []), ("cuda", ["A GPU"])):
        for name, accept, peak in (("with", 0.7, 2**32), ("without", 0.6, 2**33)):
            made = units(accept)
            for record in (record for records in made for record in records):
                record.prompt.peak_bytes = peak
            changes: dict[str, Any] = {"model": {**PLAIN, "device": device}, "provenance": {"device": {"gpus": gpus}}}
            write(tmp_path / device, name, made, **changes)
        found[device] = judged(tmp_path / device, "knapspec/pruning_saves_memory", by_label("setting", names))
    assert found["cpu"].verdict == CANNOT_SAY and found["cpu"].decided_by == "runs on a GPU"
    assert found["cpu"].effect is None
    assert found["cuda"].verdict == HOLDS and found["cuda"].effect == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("model", "verdict", "evidence"),
    [
        (MINIATURE, CANNOT_SAY, judge.TOY),
        (PLAIN, HOLDS, judge.TOY),
        ({"name": "real"}, HOLDS, judge.REAL_MODEL),
        ({"name": "llama2_13b"}, HOLDS, judge.PAPERS_MODEL),
    ],
)
def test_training_that_drops_by_domain_decides_nothing_on_domains(
    model: dict[str, Any], verdict: str, evidence: str, tmp_path: Path
) -> None:
    made = []
    for i in range(20):  # the first domain of the stream, on which the run searched, is accepted more often
        made.append(searched([synthetic.unit(i, accept=0.9 if i < 10 else 0.4)], lambda step: True)[0])
        for record in made[-1]:
            record.prompt.domain = "cnn_dm" if i < 10 else "gsm8k"
    write(tmp_path, "run", made, model=model)
    found = judged(tmp_path, "swift/sets_are_task_specific", by_label("setting", {"skip_set=CNN/DM": "run"}))
    assert (found.verdict, found.evidence_class) == (verdict, evidence)
    assert found.effect is not None and found.effect > 0.2 and found.low is not None and found.high is not None
    if verdict == CANNOT_SAY:
        assert found.reason.startswith("planted by training: ") and "miniature_plain" in found.decided_by
    (row,) = verdicts.table([found]).to_dict("records")
    assert row["evidence_class"] == evidence and row["claim_sha256"] == found.claim.sha256
    text = verdict_texts.verdict_text(pd.Series(row))
    assert text == (f"on the toy model: {verdict}" if evidence == judge.TOY else verdict)


def test_a_toys_failure_stands_under_the_toy_alone(failure: Judgement) -> None:
    assert failure.verdict == FAILS
    frame = verdicts.table([failure])
    text = verdict_texts.document(frame)
    assert "on the toy model: fails" in text and "| fails |" not in text
    assert verdict_texts.class_counts(frame) == {
        "the paper's model": "no runs",
        "another real model": "no runs",
        "toy model, miniature_plain, size not recorded, scale mini": "1 fails",
    }


def test_every_model_has_its_totals_and_a_claim_is_undecided_if_no_model_decides_it(failure: Judgement) -> None:
    frame = verdicts.table([failure])
    other = frame.assign(model="miniature", verdict=CANNOT_SAY)
    totals = {
        total["model"]: {mark.sign: count for mark, count in total["counts"] if count}
        for total in answers.verdict_totals(verdicts.merge_verdicts(frame, other))
    }
    assert totals == {
        "": {"–": len(claims())},
        "miniature_plain, size not recorded, scale mini": {"○": 1, "–": len(claims()) - 1},
        "miniature, size not recorded, scale mini": {"?": 1, "–": len(claims()) - 1},
    }
    assert verdict_texts.undecided_claims(verdicts.merge_verdicts(frame, other)) == 0
    assert verdict_texts.undecided_claims(other) == 1


def test_verdicts_on_an_older_statement_are_not_shown(failure: Judgement, tmp_path: Path) -> None:
    (tmp_path / "verdicts").mkdir()
    frame = verdicts.table([failure])
    older = frame.assign(claim_sha256="0123456789ab")
    for shown, content in ((1, frame), (0, older)):
        content.to_csv(tmp_path / "verdicts" / "kept.csv", index=False)
        assert len(verdicts.read_verdicts(tmp_path)) == shown


def test_only_a_claimed_difference_can_be_absent() -> None:
    assert named("conflayers/transfers").equivalence is None  # "loses little"
    assert named("knapspec/search_is_cheap").equivalence is None  # a value
    difference = named("swift/sets_are_task_specific")
    assert difference.equivalence is None  # without a margin
    assert replace(difference, margin=0.02).equivalence == pytest.approx((-0.02, 0.02))
    for name in ("knapspec/pruning_saves_search", "swift/faster_than_ar", "swift/search_beats_uniform"):
        assert named(name).equivalence == pytest.approx((1 / 1.03, 1.03))


def test_runs_of_equal_speed_are_equivalent(tmp_path: Path) -> None:
    """Times are modelled; measured ones vary as much as the margin."""
    for name in ("own", "other"):
        counted(tmp_path, name, 0.6)
    indexed(tmp_path, "swift_table8", "mini", ablation("own", "other"))
    (made,) = replications(tmp_path)
    never = replace(made, cells=made.cells)
    never.__dict__["exclusions"] = dict.fromkeys(never.cells, "")  # the two have one trace
    assert judge.judge_claim(named("swift/more_candidates_help"), never).verdict == EQUIVALENT


@pytest.mark.parametrize(("wrong", "verdict"), [(0, HOLDS), (1, FAILS)])
def test_a_mismatch_is_no_near_tie(wrong: int, verdict: str, tmp_path: Path) -> None:
    """One mismatch in 60 outputs refutes losslessness; near-ties do not count."""
    made = [synthetic.unit(i) for i in range(60)]
    for i in range(wrong + 2):  # and two near-ties
        made[i] = synthetic.unit(i, lossless="bug" if i < wrong else "tie", divergence_index=3, divergence_gap=0.0)
    write(tmp_path, "run", made)
    claim = "swift/lossless"
    found = judged(tmp_path, claim, lambda job: "run" if grid.choice(job.overrides, "method") == "swift" else None)
    assert found.verdict == verdict and found.effect == wrong
    text = verdict_texts.effect_text(found.claim, verdicts.table([found]).iloc[0])
    assert text == f"{wrong} mismatch{'' if wrong == 1 else 'es'}"


def test_a_claim_on_every_combination_is_judged_by_the_worst() -> None:
    claim, ratios = named("knapspec/highest_tpt"), (1.5, 1.2, 0.9)
    pairs = [[samples([[ratio, 1]] * 10, f"{i}-"), samples([[1, 1]] * 10, f"{i}-")] for i, ratio in enumerate(ratios)]
    assert claim.every and effect(claim, pairs).value == pytest.approx(0.9)
    assert effect(replace(claim, every=False), pairs).value == pytest.approx((1.5 * 1.2 * 0.9) ** (1 / 3))
    assert effect(replace(claim, at_least=None, at_most=1.1), pairs).value == pytest.approx(1.5)


def raw_points(run: Path) -> np.ndarray[Any, Any]:
    """TPT, α and tokens/s of each prompt of the method, from the record's files alone: [prompts, 3]."""
    latency = json.loads((run / "run.json").read_bytes())["latency"]
    slope, intercept, mlp = (latency[f"t_{name}_ms"] for name in ("attn_slope", "attn_intercept", "mlp"))
    prompts, steps, sets = (
        pq.read_table(run / f"{name}.parquet").to_pandas() for name in ("prompts", "steps", "layer_sets")
    )
    kept = {
        int(row.layer_set_id): (row.n_layers - len(row.skip_attn), row.n_layers - len(row.skip_mlp), row.n_layers)
        for row in sets.itertuples()
    }
    n_layers = next(iter(kept.values()))[2]
    points = []
    for row in prompts[prompts["arm"] == "method"].itertuples():
        mine = steps[(steps["arm"] == "method") & (steps["prompt_index"] == row.prompt_index)]
        k, m = mine["draft_len"].to_numpy(dtype=float), mine["accepted_len"].to_numpy(dtype=float)
        context = mine["context_len"].mean()
        attention = slope * context + intercept
        costs = [
            0.0 if pd.isna(i) else kept[int(i)][0] * attention + kept[int(i)][1] * mlp for i in mine["layer_set_id"]
        ]
        a, g = m.sum() / np.minimum(k, m + 1).sum(), k.mean()
        draft = float((np.array(costs) * k).sum() / k.sum())
        expected = g + 1 if a == 1 else (1 - a ** (g + 1)) / (1 - a)
        tpt = 1000 * expected / (g * draft + n_layers * (attention + mlp))
        points.append((tpt, m.sum() / k.sum(), 1000 * (row.new_tokens - 1) / row.decode_ms))
    return np.array(points)


def r2(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> float:
    line = np.polyval(np.polyfit(x, y, 1), x)
    return float(1 - ((y - line) ** 2).sum() / ((y - y.mean()) ** 2).sum())


def test_r2_of_tpt_and_alpha_are_those_of_the_raw_tables(reference: list[Replication]) -> None:
    (made,) = [one for one in reference if (one.experiment.name, one.scale) == ("knapspec_figure2", "mini")]
    methods = [raw_points(cell.path) for cell in made.recorded_cells()]
    pooled = np.concatenate(methods)
    difference = r2(pooled[:, 0], pooled[:, 2]) - r2(pooled[:, 1], pooled[:, 2])
    found = judge.judge_claim(named("knapspec/tpt_predicts"), made)
    assert found.effect == pytest.approx(difference, abs=1e-6)
    within = np.mean([r2(one[:, 0], one[:, 2]) - r2(one[:, 1], one[:, 2]) for one in methods])
    found_within = judge.judge_claim(named("knapspec/tpt_predicts_within"), made)
    assert found_within.effect == pytest.approx(within, abs=1e-6) and found_within.comparisons == len(methods) == 4
    # better within methods, not over all of them, because TPT leaves out the cost of the search; but SWIFT's prompts
    # share one search
    assert found.effect < 0.1 < found_within.effect and {found.verdict, found_within.verdict} == {CANNOT_SAY}


def test_a_negative_correlation_predicts_as_well_as_a_positive_one() -> None:
    x = np.arange(10.0)
    up, down = (StatisticSample(x.astype(str), np.stack([sign * x, x], axis=1), _determination) for sign in (1.0, -1.0))
    assert effect(named("knapspec/tpt_predicts"), [[up, down]]).value == pytest.approx(0.0)
