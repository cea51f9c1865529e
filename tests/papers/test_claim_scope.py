"""Planted records out of a claim's scope, with degenerate searches, or of toy models do not decide it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from ssd_bench.papers.claims import judge
from ssd_bench.papers.claims.claims import Claim, claims
from ssd_bench.papers.claims.comparisons import Side
from ssd_bench.papers.claims.effect import ClaimEffect, SampledComparison, SampledSide
from ssd_bench.papers.claims.judge import CANNOT_SAY, EQUIVALENT, FAILS, HOLDS, NOT_RUN, Judgement
from ssd_bench.papers.claims.statistics import StatisticSample, _determination
from ssd_bench.papers.ours.cells import Replication, replications
from ssd_bench.papers.runs import grid
from ssd_bench.records.schema import PromptRecord
from ssd_bench.report import answers, verdict_texts, verdicts
from tests import synthetic
from tests.exhibit_runs import MINIATURE, indexed
from tests.papers.test_evidence import searched
from tests.papers.test_modelled_verdicts import counted

PLAIN = {"name": "miniature_plain", "toy": True}
SEARCH = {
    "part": "prepare",
    "calls": 10**6,
    "rows": 1,
    "attentions": synthetic.N_LAYERS,
    "mlps": synthetic.N_LAYERS,
    "heads": 1.0,
    "launches": 2,
    "context": 0.0,
    "ms": None,
}


def named(name: str) -> Claim:
    return next(claim for claim in claims() if claim.id == name)


def units(
    accept: float = 0.7, prompts: int = 10, tokens: int = 48, sets: int | None = None
) -> list[list[PromptRecord]]:
    """Prompts of both arms; with `sets`, the search scored so many layer sets in all."""
    made = searched([synthetic.unit(i, accept=accept, tokens=tokens) for i in range(prompts)], lambda step: step > 2)
    if sets is not None:
        steps = [step for records in made for step in records[1].steps]
        for i, step in enumerate(steps):
            step.est_alpha = 0.5 + 0.01 * i if i < sets else None
    return made


def write(folder: Path, name: str, made: Sequence[list[PromptRecord]], **changes: Any) -> str:
    synthetic.write_record(folder / name, made, **{"run_id": name, "model": MINIATURE} | changes)
    return name


def judged(folder: Path, claim: str, run: Callable[[grid.Job], str | None]) -> Judgement:
    """The verdict on a claim by the records that `run` names for its exhibit's jobs."""
    exhibit = named(claim).exhibit
    indexed(folder, exhibit, "mini", run, own_traces=False)
    (made,) = [replication for replication in replications(folder) if replication.experiment.name == exhibit]
    return judge.judge_claim(named(claim), made)


# --- searches that did not choose -------------------------------------------------------------------------------------


@pytest.mark.parametrize("claim", ["swift/search_is_cheap", "swift/matchness_rises"])
def test_a_search_of_one_set_decides_no_claim_on_searches(claim: str, tmp_path: Path) -> None:
    for sets in (1, 2):
        write(tmp_path, f"{sets}", units(sets=sets))
    one, two = (judged(tmp_path, claim, lambda job, sets=sets: f"{sets}") for sets in (1, 2))
    assert one.verdict == CANNOT_SAY
    assert one.reason == "the search of CNN/DM, SWIFT scored 1 set; at least 2 are required"
    assert "at least 2 sets" in one.decided_by and "scored" not in two.reason


def test_it_is_degenerate_on_either_side(tmp_path: Path) -> None:
    """SWIFT's search, of one set, is far shorter than Self-SD's: that decides nothing."""
    searches = [{"name": "s", "evaluations": 100, "new": 100, "seconds": 100.0}]
    write(tmp_path, "self", units(0.5, sets=0), searches=searches, prepare_work=[SEARCH])
    write(tmp_path, "one", [synthetic.with_work(records, 1) for records in units(sets=1)])
    found = judged(
        tmp_path, "swift/search_is_shorter", lambda job: "self" if job.labels["method"] == "Self-SD" else "one"
    )
    assert found.verdict == CANNOT_SAY and "SWIFT scored 1 set" in found.reason
    assert found.effect is not None and found.effect > 10  # shown, as that of every undecided claim
    assert "[" not in verdict_texts.effect_text(found.claim, verdicts.table([found]).iloc[0])


def test_sets_by_domain_need_a_search_of_some_length(tmp_path: Path) -> None:
    claim = "knn-ssd/sets_by_domain"
    for evaluations in (25, 100):
        searches = [{"name": "s", "evaluations": evaluations, "new": evaluations, "seconds": 1.0}]
        for name, accept in (("KNN-SSD", 0.9), ("Self-SD(Fix)", 0.5), ("Self-SD(Mix)", 0.6)):
            write(tmp_path, f"{name}{evaluations}", units(accept, sets=0), searches=searches, model=PLAIN)
    short, long = (
        judged(
            tmp_path, claim, lambda job, n=n: f"{job.labels['method']}{n}" if "0.0" in job.labels["setting"] else None
        )
        for n in (25, 100)
    )
    assert short.verdict == CANNOT_SAY and short.reason.startswith("out of scope: the search of ")
    assert "scored 25 sets; at least 100 are required" in short.reason and short.effect == long.effect
    assert "5 seeds are required" in long.reason


# --- lengths, models, devices -----------------------------------------------------------------------------------------


def test_short_outputs_say_nothing_about_long_ones(tmp_path: Path) -> None:
    claim = "knapspec/faster_than_ar"
    write(tmp_path, "short", synthetic.thin(units(0.9)), model=PLAIN)
    write(tmp_path, "long", synthetic.thin(units(0.9, prompts=8, tokens=530)), model=PLAIN)

    def by_task(aime24: str, others: str) -> Judgement:
        def run(job: grid.Job) -> str | None:
            return (
                (aime24 if job.labels["task"] == "AIME24" else others) if job.labels["method"] == "KnapSpec" else None
            )

        return judged(tmp_path, claim, run)

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
    both = judged(
        tmp_path,
        claim,
        lambda job: f"{sizes[job.labels['model']]} {job.labels['setting']}" if job.labels["model"] in sizes else None,
    )
    assert alone.verdict == NOT_RUN and "at least 2 models" in alone.reason and alone.decided_by == "runs of 2 models"
    assert both.verdict == HOLDS


def test_memory_needs_a_gpu(tmp_path: Path) -> None:
    claim = "knapspec/pruning_saves_memory"
    found = {}
    for device in ("cpu", "cuda"):
        for setting, accept, peak in (("tau=0.5", 0.7, 2**32), ("tau=none (no pruning)", 0.6, 2**33)):
            made = units(accept)
            for record in (record for records in made for record in records):
                record.prompt.peak_bytes = peak
            gpus = {"device": {"gpus": ["A GPU"] if device == "cuda" else []}}
            model = {**PLAIN, "device": device}
            write(tmp_path, f"{device} {setting}", made, model=model, provenance=gpus)
        found[device] = judged(
            tmp_path,
            claim,
            lambda job, d=device: (
                f"{d} {job.labels['setting']}" if job.labels["setting"][4:] in ("0.5", NONE) else None
            ),
        )
    assert found["cpu"].verdict == CANNOT_SAY and found["cpu"].decided_by == "runs on a GPU"
    assert found["cpu"].effect is None
    assert found["cuda"].verdict == HOLDS and found["cuda"].effect == pytest.approx(0.5)


NONE = "none (no pruning)"


# --- planted by training, and classes of evidence ---------------------------------------------------------------------


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
    found = judged(
        tmp_path,
        "swift/sets_are_task_specific",
        lambda job: "run" if job.labels["setting"] == "skip_set=CNN/DM" else None,
    )
    assert (found.verdict, found.evidence_class) == (verdict, evidence)
    assert found.effect is not None and found.effect > 0.2 and found.low is not None and found.high is not None
    if verdict == CANNOT_SAY:
        assert found.reason.startswith("planted by training: ") and "miniature_plain" in found.decided_by
    (row,) = verdicts.table([found]).to_dict("records")
    assert row["evidence_class"] == evidence and row["claim_sha256"] == found.claim.sha256
    text = verdict_texts.verdict_text(pd.Series(row))
    assert text == (f"on the toy model: {verdict}" if evidence == judge.TOY else verdict)


def test_a_toys_failure_stands_under_the_toy_alone(tmp_path: Path) -> None:
    write(tmp_path, "toy", units(0.1), model=PLAIN)
    found = judged(tmp_path, "swift/faster_than_ar", lambda job: "toy" if job.labels["method"] == "SWIFT" else None)
    assert found.verdict == FAILS
    frame = verdicts.table([found])
    assert "on the toy model: fails" in verdict_texts.document(frame) and "| fails |" not in verdict_texts.document(
        frame
    )
    assert verdict_texts.class_counts(frame) == {
        "the paper's model": "no runs",
        "another real model": "no runs",
        "toy model, miniature_plain, size not recorded, scale mini": "1 fails",
    }


def test_every_model_has_its_totals_and_a_claim_is_undecided_if_no_model_decides_it(tmp_path: Path) -> None:
    write(tmp_path, "toy", units(0.1), model=PLAIN)
    found = judged(tmp_path, "swift/faster_than_ar", lambda job: "toy" if job.labels["method"] == "SWIFT" else None)
    frame = verdicts.table([found])
    other = frame.assign(model="miniature", verdict=CANNOT_SAY)
    totals = {
        total.model: {mark.sign: count for mark, count in total.counts if count}
        for total in answers.verdict_totals(verdicts.merge_verdicts(frame, other))
    }
    assert totals == {
        "": {"–": len(claims())},
        "miniature_plain, size not recorded, scale mini": {"○": 1, "–": len(claims()) - 1},
        "miniature, size not recorded, scale mini": {"?": 1, "–": len(claims()) - 1},
    }
    assert verdict_texts.undecided_claims(verdicts.merge_verdicts(frame, other)) == 0
    assert verdict_texts.undecided_claims(other) == 1


def test_verdicts_on_an_older_statement_are_not_shown(tmp_path: Path) -> None:
    write(tmp_path, "toy", units(0.1), model=PLAIN)
    found = judged(tmp_path, "swift/faster_than_ar", lambda job: "toy" if job.labels["method"] == "SWIFT" else None)
    (tmp_path / "verdicts").mkdir()
    file = tmp_path / "verdicts" / "kept.csv"
    frame = verdicts.table([found])
    for shown, content in (
        (1, frame),
        (0, frame.assign(claim_sha256="0123456789ab")),
        (0, frame.drop(columns="claim_sha256")),
    ):
        content.to_csv(file, index=False)
        assert len(verdicts.read_verdicts(tmp_path)) == shown


# --- equivalence, losslessness, the worst combination -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.98, 1.02, EQUIVALENT),
        (0.96, 1.02, FAILS),
        (0.98, 1.06, CANNOT_SAY),
        (1.06, 1.2, HOLDS),
        (1.001, 1.02, EQUIVALENT),
    ],
)
def test_equivalence_is_an_interval_inside_the_margin(low: float, high: float, verdict: str) -> None:
    claim = named("swift/search_beats_uniform")
    assert claim.equivalence == pytest.approx((1 / 1.03, 1.03))
    assert judge._verdict(claim, (low, high), (low, high)) == verdict


def test_only_a_claimed_difference_can_be_absent() -> None:
    assert named("conflayers/transfers").equivalence is None  # "loses little"
    assert named("knapspec/search_is_cheap").equivalence is None  # a value
    assert named("swift/sets_are_task_specific").equivalence is None  # a difference without a margin
    difference = replace(named("swift/sets_are_task_specific"), margin=0.02)
    assert difference.equivalence == pytest.approx((-0.02, 0.02))
    assert named("knapspec/pruning_saves_search").equivalence == pytest.approx((1 / 1.03, 1.03))
    assert named("swift/faster_than_ar").equivalence == pytest.approx((1 / 1.03, 1.03))


def test_runs_of_equal_speed_are_equivalent(tmp_path: Path) -> None:
    """Times are modelled; measured ones vary as much as the margin."""
    for name in ("own", "other"):
        counted(tmp_path, name, 0.6)
    runs = {"ablation=none": "own", "ablation=w/o dynamic ver.": "other"}
    indexed(tmp_path, "swift_table8", "mini", lambda job: runs.get(job.labels["setting"]))
    (made,) = replications(tmp_path)
    never = replace(made, cells=made.cells)
    never.__dict__["exclusions"] = dict.fromkeys(never.cells, "")  # the two have one trace
    assert judge.judge_claim(named("swift/more_candidates_help"), never).verdict == EQUIVALENT


@pytest.mark.parametrize(("wrong", "verdict"), [(0, HOLDS), (1, FAILS), (6, FAILS)])
def test_a_mismatch_is_no_near_tie(wrong: int, verdict: str, tmp_path: Path) -> None:
    """One mismatch in 60 outputs refutes losslessness; near-ties do not count."""
    made = [synthetic.unit(i) for i in range(60)]
    for i in range(60):
        if i < wrong + 2:  # and two near-ties
            made[i] = synthetic.unit(i, lossless="bug" if i < wrong else "tie", divergence_index=3, divergence_gap=0.0)
    write(tmp_path, "run", made)
    claim = "swift/lossless"
    found = judged(tmp_path, claim, lambda job: "run" if grid.choice(job.overrides, "method") == "swift" else None)
    assert found.verdict == verdict and found.effect == wrong
    effect = verdict_texts.effect_text(found.claim, verdicts.table([found]).iloc[0])
    assert effect == f"{wrong} mismatch{'' if wrong == 1 else 'es'}"


def effect(claim: Claim, values: Sequence[float]) -> ClaimEffect:
    """The effect of comparisons with these ratios, each on ten prompts."""
    side = Side((), {}, claim.statistic)

    def sampled(value: float, name: str) -> SampledSide:
        prompts = np.array([f"{name}{i}" for i in range(10)])
        return SampledSide(side, StatisticSample(prompts, np.full((10, 1), value), np.mean))

    pairs = [SampledComparison(sampled(value, f"{i}-"), sampled(1.0, f"{i}-")) for i, value in enumerate(values)]
    return ClaimEffect(claim, pairs)


def test_a_claim_on_every_combination_is_judged_by_the_worst() -> None:
    claim = named("knapspec/highest_tpt")
    assert claim.every and effect(claim, [1.5, 1.2, 0.9]).value == pytest.approx(0.9)
    assert effect(replace(claim, every=False), [1.5, 1.2, 0.9]).value == pytest.approx((1.5 * 1.2 * 0.9) ** (1 / 3))
    assert effect(replace(claim, at_least=None, at_most=1.1), [1.5, 1.2, 0.9]).value == pytest.approx(1.5)


# --- TPT and acceptance as predictors of speed ------------------------------------------------------------------------


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
    claim = named("knapspec/tpt_predicts")
    side = Side((), {}, claim.statistic)
    up, down = (
        SampledSide(side, StatisticSample(x.astype(str), np.stack([sign * x, x], axis=1), _determination))
        for sign in (1.0, -1.0)
    )
    assert ClaimEffect(claim, [SampledComparison(up, down)]).value == pytest.approx(0.0)
