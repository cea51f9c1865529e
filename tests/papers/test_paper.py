"""The papers' numbers as data: their content, names, and refused files."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pandas as pd
import pytest

from ssd_bench.errors import ConfigError
from ssd_bench.papers.claims.claims import STATISTIC, STATISTICS, claims, read_claims
from ssd_bench.papers.printed import catalogue, reported
from ssd_bench.papers.printed.reported import find_number, find_numbers
from tests.runs import python

HEADER = ",".join(reported.COLUMNS["results"])
ROW = "knapspec,Table 2,Qwen3-32B,AR,AIME24,decoding=greedy,tpt,19.65,tokens/time,"
PAPER = """\
rank: 1
versions: {knapspec: KnapSpec}
counts: {speedup: {statistic: speedup_e2e, baseline: ar, meaning: a ratio, source: code}}
settings: {telling: [tau], conditions: [decoding]}
prose: {knapspec: {abstract: [Table 2]}}
"""


def made_up(folder: Path, results: str, paper: str = PAPER) -> catalogue.PaperFolder:
    """A folder of that name with one exhibit."""
    folder = folder / "made_up"
    folder.mkdir()
    listed = ",".join(reported.COLUMNS["exhibits"]) + "\nknapspec,Table 2,a,b,,,,yes,\n"
    for name, content in (("paper.yaml", paper), ("exhibits.csv", listed), ("results.csv", results)):
        (folder / name).write_text(content, encoding="utf-8")
    return catalogue.read_folder(folder / "paper.yaml")


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return pd.DataFrame(map(vars, reported.numbers()))


def test_numbers_hold_every_row_once_under_its_own_id(frame: pd.DataFrame) -> None:
    assert len(frame) == 1755
    assert frame["id"].is_unique
    assert frame["id"].str.fullmatch(r"[a-z0-9-]+(/[\w.=@-]+)+").all()
    assert frame["id"].str.len().max() < 130
    for folder in catalogue.paper_folders()[:-1]:
        lines = frame.loc[frame["paper"].isin(folder.versions), "line"]
        assert {*lines} == {*range(2, 2 + len(set(lines)))} and frame[frame["paper"] == folder.latest]["line"].is_unique
    assert frame["value"].dtype == "float64"


def test_ids_stay_as_they_are(frame: pd.DataFrame) -> None:
    assert set(frame["id"]) >= {
        "knapspec/table2/qwen3-32b/knapspec/aime24/tpt",
        "swift/table3/codellama-13b/swift/humaneval/pass@10/M",
        "swift/table9/llama-2-13b/swift/cnn-dm/gamma=32/step_latency_ms",
        "swift/text-c2/llama-70b-series/swift/M/low",
        "knapspec/figure5/llama3.1-8b/knapspec/observation=near-zero-skip-probability/layer_index/33",
    }


def test_numbers_are_found_by_labels_and_settings() -> None:
    wanted = {"model": "Qwen-2.5-14B", "method": "KNN-SSD", "mix_ratio": "0.7"}
    (number,) = find_numbers("knn-ssd", "Table 1", **wanted)
    assert number.id == "knn-ssd/table1/qwen-2.5-14b/knn-ssd/5-task-stream/mix_ratio=0.7/expected_speedup"
    assert find_numbers("swift", task="no such task") == []
    found = find_numbers("swift", **{"pass@k": "10"})
    assert found and all(number.setting.startswith("pass@10;") for number in found)


def test_half_is_half_of_the_last_printed_digit() -> None:
    number = find_number("swift", "Table 8", metric="speedup", method="Vanilla")
    assert (number.printed, number.value, number.half) == ("1.000", 1.0, 0.0005)


def test_settings_exhibits_and_features_are_complete() -> None:
    assert [len(table()) for table in (reported.settings, reported.exhibits, reported.features)] == [280, 83, 138]
    assert len(reported.exhibits("conflayers")) == 12
    assert reported.settings("swift", "Table 2").set_index("key")["value"]["bayes_interval_beta"] == "25"
    features = set(reported.features("swift", "Table 10")["feature"])
    assert features == {"Plug&Play", "Original (output distribution preserved)"}


def test_every_exhibit_with_numbers_in_its_text_has_rows(frame: pd.DataFrame) -> None:
    numbers = set(zip(frame["paper"], frame["exhibit"]))
    features = set(zip(reported.features()["paper"], reported.features()["exhibit"]))
    for row in reported.exhibits().itertuples():
        assert ((row.paper, row.exhibit) in numbers | features) == (row.numbers_in_text != "no"), row


def test_layer_sets_are_the_sixty_that_authors_released() -> None:
    sets = reported.layer_sets()
    assert len(sets) == 60
    for name, entry in sets.items():
        for kind in ("skip_attn", "skip_mlp"):
            assert entry[kind] == sorted(set(entry[kind])), name
            assert set(entry[kind]) <= set(range(entry["n_layers"])), name
    assert reported.released_set("knn_ssd", "LLaMA-2-13B", "WMT16 DE-EN") is not None


def test_parse_setting() -> None:
    assert reported.parse_setting("") == {}
    assert reported.parse_setting("pass@10;decoding=sampling") == {"pass@k": "10", "decoding": "sampling"}
    assert reported.parse_setting("stream=CNN/DM,GSM8K;point=before") == {"stream": "CNN/DM,GSM8K", "point": "before"}
    for text in ("greedy", "a=", "=a", "a=1;a=2"):
        with pytest.raises(ValueError, match=r"not key=value|given twice"):
            reported.parse_setting(text)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (ROW.replace("knapspec", "no-paper", 1), r"made_up/results\.csv:3 paper='no-paper'"),
        (ROW.replace("Table 2", "Table 9"), r"made_up/results\.csv:3 exhibit='Table 9'.*exhibits\.csv"),
        (ROW.replace("tpt", "tpf"), r"made_up/results\.csv:3 metric='tpf'"),
        (ROW.replace("tokens/time", "x"), r"made_up/results\.csv:3 unit='x'.*tokens/time"),
        (ROW.replace("19.65", "19,65"), r"made_up/results\.csv:3 row=.*10 cells"),
        (ROW.replace("19.65", "1e3"), r"made_up/results\.csv:3 value='1e3'.*plain decimal"),
        (ROW.replace("tpt,19.65,tokens/time", "alpha,93.8,fraction"), r"made_up/results\.csv:3 value='93.8'.*0 to 1"),
        (ROW.replace("decoding=greedy", "greedy"), r"made_up/results\.csv:3 setting='greedy'.*key=value"),
        (ROW.replace("decoding=greedy", "colour=red"), r"made_up/results\.csv:3 setting='colour=red'.*keys of paper"),
        (ROW.replace("decoding=greedy", "bound=lower"), r":3 setting='bound=lower'.*low, high, max"),
        (ROW.replace("19.65", "20"), r"made_up/results\.csv:3 id='knapspec/table2/qwen3-32b/ar/aime24/tpt'.*line 2"),
    ],
)
def test_numbers_refuses_a_row_by_file_and_line(row: str, message: str, tmp_path: Path) -> None:
    folder = made_up(tmp_path, "\n".join([HEADER, ROW, row, ""]))
    with pytest.raises(ConfigError, match=message):
        reported.read_numbers(folder)


def test_numbers_refuses_another_header(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"made_up/results\.csv:1 header"):
        reported.read_numbers(made_up(tmp_path, "paper,value\n"))


@pytest.mark.parametrize(
    ("was", "now", "message"),
    [
        ("rank: 1", "rang: 1", "at least the keys rank and versions"),
        ("prose:", "prosa:", "unexpected keyword argument 'prosa'"),
        ("source: code", "origin: code", "unexpected keyword argument 'origin'"),
        ("baseline: ar", "baseline: vanilla", r"counts\.speedup\.baseline='vanilla' .*ar, hf or nothing"),
        ("counts: {speedup:", "counts: {speed:", r"counts=.*'speed'.*a metric of metrics\.yaml"),
        ("prose: {knapspec:", "prose: {swift:", r"prose=\['swift'\].*versions among knapspec"),
        ("settings:", "skip_ratio: outer\nsettings:", r"skip_ratio='outer'.*all or inner"),
    ],
)
def test_a_paper_is_refused_by_file_and_key(was: str, now: str, message: str, tmp_path: Path) -> None:
    assert was in PAPER
    with pytest.raises(ConfigError, match=rf"made_up/paper\.yaml.*{message}"):
        reported.read_numbers(made_up(tmp_path, HEADER + "\n", PAPER.replace(was, now)))


def test_each_paper_has_a_room_of_its_own() -> None:
    folders = [folder.name for folder in catalogue.paper_folders()]
    assert folders == ["knapspec", "knn_ssd", "swift", "conflayers", "ssd_bench"]
    assert catalogue.paper_versions() == ("knapspec", "knn-ssd", "swift", "swift-v1", "conflayers")
    assert catalogue.version_name("swift-v1") == "SWIFT, first version"
    with pytest.raises(ConfigError, match="one of knapspec, knn-ssd"):
        catalogue.folder_of("self-sd")


def test_loading_needs_no_torch() -> None:
    code = "import sys, ssd_bench.papers.printed.reported as r; r.numbers(); print({'torch', 'scipy'} & {*sys.modules})"
    assert python("-c", code).stdout.strip() == "set()"


@pytest.fixture
def knapspec(tmp_path: Path) -> catalogue.PaperFolder:
    """The paper's folder without files."""
    (tmp_path / "knapspec").mkdir()
    return dataclasses.replace(catalogue.find_folder("knapspec"), path=tmp_path / "knapspec")


CLAIM = """\
fastest:
  says: It is the fastest.
  section: §1
  theirs: [knapspec/table2/*/speedup]
  refuted_by: A ratio below it.
  written: "2026-11-23T00:00:00+00:00"
  test:
    {exhibit: table2, statistic: speedup, effect: ratio, of: {method: [KnapSpec]}, over: {method: [SWIFT]},
     at_least: 1.1, noise: 0.02, needs: {sets: 2}, margin: 0.05, given: alpha}
"""


def test_each_paper_has_its_claims() -> None:
    for paper in {catalogue.folder_of(paper).latest for paper in catalogue.paper_versions()}:
        own = [claim for claim in claims() if claim.id.startswith(f"{paper}/")]
        assert len(own) >= 8 and len({claim.id for claim in own}) == len(own)
    others = {other for claim in claims() for other in claim.over.get(STATISTIC, ())}
    assert {claim.statistic for claim in claims()} | others == set(STATISTICS)


def test_the_hash_of_a_claim_changes_with_what_was_stated_before_the_runs(knapspec: catalogue.PaperFolder) -> None:
    hashes = {}
    for part, (was, now) in {
        "nothing": ("", ""),
        "order": ("section: §1\n  theirs: [knapspec/table2/*/speedup]", "theirs: []\n  section: §1"),
        "refutation": ("below it.", "below 1.1."),
        "statement": ("It is the fastest.", "It is the slowest."),
        "section": ("section: §1", "section: §2"),
        "threshold": ("at_least: 1.1", "at_least: 1.2"),
        "scope": ("{sets: 2}", "{sets: 3}"),
    }.items():
        (knapspec.path / "claims.yaml").write_text(CLAIM.replace(was, now, 1), encoding="utf-8")
        hashes[part] = read_claims(knapspec)[0].sha256
    (claim,) = read_claims(knapspec)
    assert (claim.id, claim.prompts) == ("knapspec/fastest", 8)
    assert hashes["nothing"] == hashes["order"] == hashes["refutation"] and len(set(hashes.values())) == 5
    assert all(len(digits) == 12 and int(digits, 16) for digits in hashes.values())
    assert len({claim.sha256 for claim in claims()}) == len(claims())


def test_a_threshold_can_be_missed_on_either_side() -> None:
    """An effect that counts is neither no effect nor noise; only a loss may be as small.

    A count of mismatches has no interval, so none at all can be required.
    """
    for claim in claims():
        none = claim.none if claim.none is not None else float(claim.effect == "ratio")
        limit = claim.at_least if claim.at_least is not None else claim.at_most
        is_count = STATISTICS[claim.statistic].is_count
        assert limit is not None and (limit != none or is_count) and claim.noise <= abs(limit - none), claim.id
        assert claim.section and (claim.effect != "ratio" or limit > 0), claim.id


@pytest.mark.parametrize(
    ("was", "now", "message"),
    [
        ("section: §1", "sections: §1", "section"),
        (", noise: 0.02", "", "noise"),
        ("fastest.", "fastest", "says=.*a sentence"),
        ("knapspec/table2/*", "knapspec/table9/*", "theirs=.*ids of reported numbers"),
        ("exhibit: table2", "exhibit: table9", "exhibit='knapspec_table9'"),
        ("statistic: speedup", "statistic: speed", "statistic='speed'.*one of speedup"),
        ("effect: ratio", "effect: factor", "effect='factor'"),
        ("effect: ratio", "effect: value", "over=.*nothing for a value"),
        ("at_least: 1.1", "at_least: 1.1, at_most: 2", "at_least=1.1.*if at_most is not set"),
        ("at_least: 1.1", "at_least: 1.1, none: 1", "none=1"),
        ("noise: 0.02", "noise: -1", "noise=-1"),
        ("  refuted_by: A ratio below it.\n", "", "refuted_by"),
        ("below it.", "below it", "refuted_by=.*a sentence"),
        ("T00:00:00+00:00", "", "written=.*a time with its offset from UTC"),
        ("{sets: 2}", "{set: 2}", "needs=.*integers >= 1 for models"),
        ("{sets: 2}", "{sets: 0}", "needs="),
        ("margin: 0.05", "margin: 0", "margin=0"),
        ("given: alpha", "given: beta", "given='beta'.*one of speedup"),
        ("[SWIFT]", "[Medusa]", r"over\.method=\['Medusa'\].*DEL, KnapSpec, SWIFT"),
        ("{method: [SWIFT]}", "{context: [middle]}", r"over\.context=\['middle'\].*first third, last third"),
    ],
)
def test_a_claim_that_nothing_could_decide_is_refused(
    was: str, now: str, message: str, knapspec: catalogue.PaperFolder
) -> None:
    assert was in CLAIM
    (knapspec.path / "claims.yaml").write_text(CLAIM.replace(was, now, 1), encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"knapspec/claims\.yaml fastest.*{message}"):
        read_claims(knapspec)
