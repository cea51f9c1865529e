"""The papers' claims: each is complete, rests on what there is, and says what would refute it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from ssd_bench.errors import ConfigError
from ssd_bench.papers.claims import STATISTIC, STATISTICS, Claim, claims, read
from ssd_bench.papers.rooms import named, papers, room_of

ONE = """\
fastest:
  says: It is the fastest.
  section: §1
  theirs: [knapspec/table2/*/speedup]
  exhibit: table2
  statistic: speedup
  effect: ratio
  of: {method: [KnapSpec]}
  over: {method: [SWIFT]}
  at_least: 1.1
  noise: 0.02
"""


def test_each_paper_has_its_claims() -> None:
    for paper in {room_of(paper).latest for paper in papers()}:
        own = [claim for claim in claims() if claim.id.startswith(f"{paper}/")]
        assert len(own) >= 8 and len({claim.id for claim in own}) == len(own)
    others = {other for claim in claims() for other in claim.over.get(STATISTIC, ())}
    assert {claim.statistic for claim in claims()} | others == set(STATISTICS)


@pytest.mark.parametrize("claim", claims(), ids=lambda claim: claim.id)
def test_a_threshold_can_be_missed_on_either_side(claim: Claim) -> None:
    """An effect that counts is not what no effect would be, and larger than noise; only a loss may be as small."""
    none = claim.none if claim.none is not None else float(claim.effect == "ratio")
    limit = claim.at_least if claim.at_least is not None else claim.at_most
    assert limit is not None and limit != none and claim.noise <= abs(limit - none)
    assert claim.section and (claim.effect != "ratio" or limit > 0)


@pytest.mark.parametrize(
    ("was", "now", "message"),
    [
        ("section: §1", "sections: §1", "section"),
        ("  noise: 0.02\n", "", "noise"),
        ("fastest.", "fastest", "says=.*a sentence"),
        ("knapspec/table2/*", "knapspec/table9/*", "theirs=.*ids of reported numbers"),
        ("exhibit: table2", "exhibit: table9", "exhibit='knapspec_table9'"),
        ("statistic: speedup", "statistic: speed", "statistic='speed'.*one of speedup"),
        ("effect: ratio", "effect: factor", "effect='factor'"),
        ("effect: ratio", "effect: value", "over=.*none of a value"),
        ("at_least: 1.1", "at_least: 1.1\n  at_most: 2", "at_least=1.1.*where at_most is none"),
        ("at_least: 1.1", "at_least: 1.1\n  none: 1", "none=1"),
        ("noise: 0.02", "noise: -1", "noise=-1"),
        ("[SWIFT]", "[Medusa]", r"over\.method=\['Medusa'\].*DEL, KnapSpec, SWIFT"),
        ("{method: [SWIFT]}", "{context: [middle]}", r"over\.context=\['middle'\].*first third, last third"),
    ],
)
def test_a_claim_that_nothing_could_decide_is_refused(was: str, now: str, message: str, tmp_path: Path) -> None:
    assert was in ONE
    room = dataclasses.replace(named("knapspec"), folder=tmp_path / "knapspec")
    room.folder.mkdir()
    (room.folder / "claims.yaml").write_text(ONE, encoding="utf-8")
    (claim,) = read(room)
    assert (claim.id, claim.prompts) == ("knapspec/fastest", 20)
    (room.folder / "claims.yaml").write_text(ONE.replace(was, now, 1), encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"knapspec/claims\.yaml fastest.*{message}"):
        read(room)
