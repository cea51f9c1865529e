"""No verdict follows from a scale or training: searches cut short, scaled settings, planted effects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ssd_bench.papers.claims.claims import Claim, claims
from ssd_bench.papers.claims.judge import CANNOT_SAY, HOLDS, NOT_RUN, Judgement
from ssd_bench.report import verdict_texts, verdicts
from tests.exhibit_runs import MINIATURE
from tests.papers.claim_runs import PLAIN, Units, by_label, judged, named, timed
from tests.papers.test_claim_rules import sharing, units, write
from tests.synthetic import with_work

FASTER = {"swift": "SWIFT", "knn-ssd": "KNN-SSD", "conflayers": "ConfLayers"}


def judged_as(folder: Path, claim: str | Claim, *methods: str, options: Sequence[str] = ()) -> Judgement:
    """Judge a claim by the record of each method's name, of one method by "run"."""
    runs = dict(zip(methods, methods)) if len(methods) > 1 else dict.fromkeys(methods, "run")
    return judged(folder, claim, by_label("method", runs), options)


def test_a_search_that_never_ended_is_out_of_scope_for_all_methods(tmp_path: Path) -> None:
    made = units(0.1, prompts=20)
    for records in made:  # sets of earlier prompts draft, and the search goes on to the last prompt
        first, *others = records[1].steps
        first.est_alpha, others[-1].est_alpha = None, 0.9
    write(tmp_path, "run", made)
    for paper, method in FASTER.items():
        found = judged_as(tmp_path, f"{paper}/faster_than_ar", method)
        assert found.verdict == CANNOT_SAY and "had not ended by the run's last prompt" in found.reason


def scoring(sets: int) -> Units:
    """Prompts that share one online search, which scored so many sets in the first."""
    made = sharing(units(0.1, prompts=20, tokens=60))
    for i, step in enumerate(made[0][1].steps):
        step.est_alpha = 0.5 if i < sets else None
    return made


def test_a_search_that_a_scale_stopped_has_not_ended(tmp_path: Path) -> None:
    for limit, sets, reason in (
        (10, 10, "short: max_steps 10 for 1000"),
        (10, 4, "5 seeds are required"),  # it ended below its limit, by itself
        (1000, 10, "5 seeds are required"),  # the paper's limit
    ):
        folder = tmp_path / f"{limit}-{sets}"
        write(folder, "run", scoring(sets))
        found = judged_as(folder, "swift/faster_than_ar", "SWIFT", options=[f"method.max_steps={limit}"])
        assert found.verdict == CANNOT_SAY and reason in found.reason


@pytest.mark.parametrize(("evaluations", "cut"), [(24, True), (100, False)])
def test_an_offline_search_that_a_scale_cut_to_few_sets_has_not_ended(
    evaluations: int, cut: bool, tmp_path: Path
) -> None:
    """A tenth of the papers' 1,000 sets counts, and is in the row; a fortieth does not."""
    made = units(0.1, prompts=20)
    for step in (step for records in made for step in records[1].steps):
        step.est_alpha = None
    searches = [{"name": "s", "evaluations": evaluations, "new": evaluations, "seconds": 1.0}]
    write(tmp_path, "run", made, searches=searches)
    options = [f"method.search.iterations={evaluations}"]
    found = judged_as(tmp_path, "knn-ssd/faster_than_ar", "KNN-SSD", options=options)
    assert found.verdict == CANNOT_SAY and found.out_of_scope == cut
    assert found.reason.startswith("out of scope: the scale cut the search of ") == cut
    assert cut or "5 seeds are required" in found.reason


def test_the_scores_of_one_search_are_one_number(tmp_path: Path) -> None:
    """A run's matchness is one number, whatever its prompts: without further seeds it has no interval."""
    made = sharing(units(0.7, prompts=20))
    for i, step in enumerate(made[0][1].steps):
        step.est_alpha = (0.1, 0.9)[i] if i < 2 else None
    write(tmp_path, "run", made)
    found = judged(tmp_path, "swift/matchness_rises", lambda job: "run")
    assert found.effect == pytest.approx(0.8) and (found.n, found.low, found.by_seed) == (1, None, True)
    assert found.verdict == CANNOT_SAY and "5 seeds are required" in found.reason


def test_a_claim_without_a_record_of_its_statistic_is_not_run(tmp_path: Path) -> None:
    write(tmp_path, "run", units())
    found = judged(tmp_path, "knapspec/cosine_predicts", lambda job: "run")
    assert found.verdict == NOT_RUN and found.reason.startswith("records lack the cosine and the acceptance rate")


def test_scaled_settings_stand_in_the_row(tmp_path: Path) -> None:
    write(tmp_path, "run", units(tokens=60))
    for claim, method, option, text in (
        ("knapspec/faster_than_ar", "KnapSpec", "method.interval=32", "interval 32 for the paper's rule"),
        ("swift/faster_than_ar", "SWIFT", "method.max_steps=100", "max_steps 100 for 1000"),
        ("knn-ssd/types_form_clusters", "KNN-SSD", "method.calibration=3", "calibration 3 for 16"),
        ("knn-ssd/faster_than_ar", "KNN-SSD", "method.search.iterations=24", "search.iterations 24 for 1000"),
    ):
        found = judged_as(tmp_path, claim, method, options=[option])
        row = verdicts.table([found]).iloc[0]
        assert f"scaled settings: {text}" in verdict_texts.evidence_text(found.claim, row)


RIVALS = ("DEL", "SWIFT", "CLaSp")


@pytest.mark.parametrize(("model", "verdict"), [(MINIATURE, CANNOT_SAY), (PLAIN, HOLDS)])
def test_exits_from_training_make_no_rival(model: dict[str, Any], verdict: str, tmp_path: Path) -> None:
    """The rivals accept less, or in the last claim more at many times the cost."""
    for names, slow in ((("fastest", "highest_tpt"), False), (("alpha_is_not_speed",), True)):
        folder = tmp_path / names[0]
        write(folder, "KnapSpec", units(0.8, prompts=20, tokens=60), model=model)
        for i, rival in enumerate(RIVALS):
            made = timed(units((0.9 if slow else 0.2) + 0.02 * i, prompts=20, tokens=60), 5.0 if slow else 1.0)
            # the times that decide are modelled, from the work
            write(folder, rival, [with_work(records, 3000 if slow else 0) for records in made], model=model)
        for name in names:
            found = judged_as(folder, replace(named(f"knapspec/{name}"), needs={}), "KnapSpec", *RIVALS)
            assert found.verdict == verdict, (name, found.effect, found.reason)
            assert (verdict == HOLDS) == ("planted by training" not in found.reason)


def test_claims_that_the_training_bears_on_are_marked() -> None:
    """Speed over AR and other methods, acceptance, kinds and number of skipped sublayers, and search time."""
    plain = {claim.id for claim in claims() if not claim.planted}
    for claim in claims():
        methods = {label for side in (claim.of, claim.over, claim.cells) for label in side.get("method", ())}
        over_ar = claim.statistic == "speedup_e2e" and claim.effect == "value"
        between = claim.statistic in ("speedup_e2e", "tpt", "alpha", "M") and len(methods) > 1
        skipped = claim.statistic in ("attention_skipped", "mlp_skipped", "skip_depth", "matchness")
        if (over_ar or between or skipped) and claim.exhibit != "knn_ssd_table3":  # not by type of problem
            assert claim.planted == ["miniature"], claim.id
    assert {claim for claim in plain if claim.endswith("/lossless")} == {
        f"{paper}/lossless" for paper in ("knapspec", *FASTER)
    }
