"""Run sets, scales, the sweep that runs each distinct job once, and the index of each cell's run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from ssd_bench.errors import ConfigError
from ssd_bench.papers.claims import claims
from ssd_bench.papers.ours import cells
from ssd_bench.papers.runs import grid, index, scale
from ssd_bench.records.reader import load_run
from ssd_bench.sweep import sweep
from ssd_bench.sweep.experiments import spread_repeats
from ssd_bench.sweep.forecast import BETWEEN, Forecast
from ssd_bench.sweep.overrides import experiment_names
from tests.runs import GIVEN_LATENCY, composed, program

NAME = "swift_tiny2"
TINY = """
overrides: [seed=42]
grids:
  text:
    model: {LLaMA-2-13B: qwen3_14b, LLaMA-2-70B: llama3_70b}
    task: {CNN/DM: cnn_dm, GSM8K: [gsm8k, limit=1000]}
    method: {Parallel: jacobi}
  windows:
    model: {LLaMA-2-13B: qwen3_14b}
    task: {GSM8K: gsm8k}
    method: {SWIFT: swift}
    setting: {gamma=16: [method.context_window=16], gamma=32: [method.context_window=32, seed=7]}
    overrides: [method.draft_len=5]
exhibits:
  tiny2:
    kind: table
    also: [{paper: swift-v1, exhibit: Tiny 2}]
    not_run: [{what: the rest, why: a test}]
  figure9b:
    jobs:
      - {grid: windows, setting: [gamma=32: ""]}
      - {grid: text, model: [LLaMA-2-70B, LLaMA-2-13B], task: [GSM8K: mathematics], method: [Parallel]}
"""
OTHER = """
exhibits:
  figure1: {jobs: [{from: swift/tiny, grid: text, task: [CNN/DM]}]}
"""
MINI = """
model: miniature
overrides: [data=sample]
limit: 2
new_tokens: 12
caps: {method.draft_len: 3, method.search.iterations: 4}
"""


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for module, name, text in ((grid, "swift/tiny", TINY), (grid, "knn_ssd/other", OTHER), (scale, "mini", MINI)):
        path = tmp_path / module.__name__ / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        monkeypatch.setattr(module, "FOLDER", tmp_path / module.__name__)
    monkeypatch.setattr(claims, "claims", lambda: ())  # whose exhibits are not there
    monkeypatch.setattr(sweep, "REFERENCE", tmp_path / "none")  # to read its times takes seconds
    cached = (grid.read_run_sets, scale.load, scale.load_checked)
    for read in cached:
        read.cache_clear()
    yield tmp_path
    for read in cached:
        read.cache_clear()


def rewrite(name: str, old: str, new: str) -> None:
    path = grid.FOLDER / f"{name}.yaml"
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    grid.read_run_sets.cache_clear()


def test_a_grid_is_a_product_in_the_papers_names(folders: Path) -> None:
    tiny = grid.load(NAME)
    assert (tiny.paper, tiny.exhibit, tiny.kind, tiny.also) == ("swift", "Tiny 2", "table", (("swift-v1", "Tiny 2"),))
    assert len(tiny.jobs) == 2 * 2 + 2
    labels = [tuple(job.labels.values()) for job in tiny.jobs]
    assert labels[1] == ("LLaMA-2-13B", "GSM8K", "Parallel", "") and len(set(labels)) == 6
    assert tiny.jobs[1].overrides == ("model=qwen3_14b", "task=gsm8k", "method=jacobi", "limit=1000", "seed=42")
    assert tiny.jobs[5].labels["setting"] == "gamma=32"
    options = ("method.context_window=32", "method.draft_len=5", "seed=7")  # the setting's seed replaces the common one
    assert tiny.jobs[5].overrides == ("model=qwen3_14b", "task=gsm8k", "method=swift", *options)


def test_an_exhibit_takes_jobs_in_its_own_order_and_words(folders: Path) -> None:
    tiny, panel, other = (grid.load(name) for name in (NAME, "swift_figure9b", "knn_ssd_figure1"))
    assert (panel.paper, panel.exhibit, panel.kind) == ("swift", "Figure 9", "figure")
    assert [job.overrides for job in panel.jobs] == [tiny.jobs[i].overrides for i in (5, 3, 1)]
    assert [tuple(job.labels.values()) for job in panel.jobs] == [
        ("LLaMA-2-13B", "GSM8K", "SWIFT", ""),
        ("LLaMA-2-70B", "mathematics", "Parallel", ""),
        ("LLaMA-2-13B", "mathematics", "Parallel", ""),
    ]
    assert other.paper == "knn-ssd" and {job.experiment for job in other.jobs} == {"knn_ssd_figure1"}
    assert [job.overrides for job in other.jobs] == [tiny.jobs[i].overrides for i in (0, 2)]


def test_a_name_stands_for_an_exhibit_or_for_those_of_a_run_set(folders: Path) -> None:
    assert grid.names() == ["knn_ssd_figure1", "swift_figure9b", NAME]
    assert [*grid.sets()] == ["knn_ssd/other", "swift/tiny"]
    assert grid.expand_name("swift/tiny") == [NAME, "swift_figure9b"] and grid.expand_name(NAME) == [NAME]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("swift/tiny,swift_figure9b", [NAME, "swift_figure9b"]),
        ("glob(*)", ["knn_ssd_figure1", "swift_figure9b", NAME]),
        ("glob(swift_*,exclude=*9b)", [NAME]),
        ("glob([knn*,*9b])", ["knn_ssd_figure1", "swift_figure9b"]),
    ],
)
def test_experiments_are_expanded_from_names(text: str, names: list[str], folders: Path) -> None:
    assert experiment_names(OverridesParser.create().parse_override(f"experiment={text}")) == names


FAULTS = {
    "swift/tiny": [
        ("grids:", "grid:", r"experiment swift/tiny='grid' .*of overrides, grids, exhibits"),
        ("kind: table", "kind: picture", r"swift/tiny exhibits.tiny2.kind='picture' .*one of table, figure"),
        ("    method: {Parallel: jacobi}\n", "", r"swift/tiny grids.text=.*method is missing"),
        ("    setting:", "    settings:", r"swift/tiny grids.windows='settings' "),
        ("{GSM8K: gsm8k}", "gsm8k", r"swift/tiny grids.windows.task='gsm8k' .*a mapping"),
    ],
    "knn_ssd/other": [
        (OTHER, "grids: {}", r"experiment knn_ssd/other=\['grids'\] .*exhibits is missing"),
        ("\n  figure1:", " {} #", r"experiment knn_ssd/other exhibits=\{\} .*at least one"),
        ("exhibits:", "exhibits: {} #", r"experiment knn_ssd/other='other.yaml' .*YAML .*line 3"),
        ("{jobs:", "{job:", r"experiment knn_ssd/other exhibits.figure1='job' "),
        ("{jobs: [{from: swift/tiny, grid: text, task: [CNN/DM]}]}", "", r"figure1.jobs=\[\] .*at least"),
        ("figure1:", "figure-1:", r"experiment knn_ssd/other exhibits='figure-1' .*as figure2a"),
        ("swift/tiny", "swift/small", r"exhibits.figure1.jobs\[0\].from='swift/small' .*swift/tiny"),
        ("grid: text", "grid: texts", r"exhibits.figure1.jobs\[0\].grid='texts' .*one of text, windows"),
        ("grid: text, ", "", r"exhibits.figure1.jobs\[0\]=.*grid is missing"),
        ("[CNN/DM]", "[XSUM]", r"figure1.jobs\[0\].task='XSUM' .*labels of the grid: 'CNN/DM', 'GSM8K'"),
        ("[CNN/DM]", "[]", r"figure1.jobs\[0\].task=\[\] .*a list of labels"),
        ("[CNN/DM]", "CNN/DM", r"figure1.jobs\[0\].task='CNN/DM' .*a list of labels"),
        ("task: [CNN/DM]", "tasks: [CNN/DM]", r"figure1.jobs\[0\]='tasks' "),
    ],
}


@pytest.mark.parametrize(
    ("name", "old", "new", "message"), [(name, *fault) for name, faults in FAULTS.items() for fault in faults]
)
def test_a_run_set_with_a_fault_is_refused_with_file_and_key(
    name: str, old: str, new: str, message: str, folders: Path
) -> None:
    rewrite(name, old, new)
    with pytest.raises(ConfigError, match=message):
        grid.names()


def test_two_run_sets_cannot_fill_one_exhibit(folders: Path) -> None:
    (grid.FOLDER / "swift" / "twice.yaml").write_text(TINY, encoding="utf-8")
    grid.read_run_sets.cache_clear()
    with pytest.raises(ConfigError, match=rf"experiment swift/twice exhibits='{NAME}' .*swift/tiny does not use"):
        grid.names()


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("swift_figure9", "swift_figure9b"),
        ("swift", f"swift/tiny, swift_figure9b, {NAME}"),
        ("knn_ssd_figure3", "knn_ssd_figure1"),
        ("none", "knn_ssd/other, swift/tiny"),
    ],
)
def test_a_name_of_nothing_is_refused_with_those_near_it(name: str, near: str, folders: Path) -> None:
    with pytest.raises(
        ConfigError, match=rf"experiment='{name}' .*a table, a figure or a run set, such as {near}; python"
    ):
        grid.expand_name(name)
    with pytest.raises(ConfigError, match=r"scale='none' .*one of long, mini"):
        scale.load("none")


def test_a_scale_maps_models_and_caps_what_is_larger(folders: Path) -> None:
    mini, jobs = scale.load("mini"), grid.load(NAME).jobs
    mapped = [mini.map_job(job) for job in jobs]
    assert mapped[0] == mapped[2] == ("data=sample", "model=miniature", "task=cnn_dm", "method=jacobi", "seed=42")
    capped = [mini.apply_caps(each, composed(*each), mini.limit) for each in mapped]
    assert {"limit=2", "decode.max_new_tokens=12"} <= set(capped[1]) and "limit=1000" not in capped[1]
    assert "method.draft_len=3" in capped[4] and not any("iterations" in o for o in capped[4])
    unlimited = scale.Scale("s", new_tokens=10**6, limit=10**6, caps={"method.draft_len": 99})
    wide = unlimited.apply_caps(mapped[4], composed(*mapped[4]), unlimited.limit)
    assert wide == grid.merge_overrides([*mapped[4], "limit=1000000"])


def test_what_a_claim_reads_has_its_rank(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def claim(**side: dict[str, list[str]]) -> claims.Claim:
        return claims.Claim("p/c", "So.", "§1", [], NAME, "speedup", "value", 0.03, **side)  # type: ignore[arg-type]

    made = (claim(cells={"task": ["GSM8K"]}), claim(of={"model": ["LLaMA-2-70B"], "domain": ["own"]}))
    monkeypatch.setattr(claims, "claims", lambda: made)
    jobs = grid.load(NAME).jobs
    assert [claims.claim_jobs(one) for one in made] == [
        [job for job in jobs if job.labels["task"] == "GSM8K"],
        [job for job in jobs if job.labels["model"] == "LLaMA-2-70B"],
    ]
    size = scale.Scale("s", limit=2, limits={NAME: 4})
    assert [size.prompt_limit(job) for job in jobs] == [4] * len(jobs)
    assert [claims.claim_ranks(size).get(size.map_job(job)) for job in jobs if job.labels["task"] == "GSM8K"] == [0] * 4
    assert scale.Scale("s", limit=2).prompt_limit(jobs[0]) == 2 and scale.Scale("s").prompt_limit(jobs[0]) is None


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_moments_are_shared_out_evenly(count: int) -> None:
    runs, moments = [(f"r{i}",) for i in range(12)], [(f"m{i}",) for i in range(count)]
    found = spread_repeats(runs, moments)
    assert [one for one in found if one in runs] == runs and [one for one in found if one in moments] == moments
    at = [found.index(one) for one in moments]
    if count > 1:
        gaps = [b - a for a, b in zip(at, at[1:])]
        assert at[0] == 0 and at[-1] == len(found) - 1 and max(gaps) - min(gaps) <= 1


def test_a_sweep_runs_distinct_jobs_once_and_says_which_run_is_which_cells(folders: Path) -> None:
    runs = folders / "runs"
    options = ("-m", f"experiment={NAME}", "scale=mini", f"runs_dir={runs}", f"hydra.sweep.dir={folders}/sweep")
    end = program(*options, "dry=true")
    assert end.returncode == 0 and not runs.exists()
    assert "1 experiments at scale mini: 6 results, 4 distinct runs" in end.stdout
    # a value that cannot work is one failed cell, not the end
    rewrite("swift/tiny", "method.context_window=16", "method.context_window=0")
    quick = ("hardware.warmup=0", "hardware.threads=1", GIVEN_LATENCY, "++task.shots=0")
    assert program(*options, *quick).returncode == 2
    (path,) = index.find(runs)
    name, size, found = index.read(path)
    assert (name, size, len(found)) == (NAME, "mini", 6)
    assert found[0].run == found[2].run and len({cell.run for cell in found}) == 4
    assert found[4].run is None and "method.context_window=0" in str(found[4].error)
    (replication,) = cells.replications(runs)
    assert replication.command == f"python -m ssd_bench -m experiment={NAME} scale=mini"
    results = list(replication.recorded_cells(task="GSM8K", method="Parallel"))
    assert [r.labels["model"] for r in results] == ["LLaMA-2-13B", "LLaMA-2-70B"] and len(replication.cells) == 6
    assert results[0].record is results[1].record and results[0].record is not None
    assert results[0].summary.n_prompts == 2
    record = load_run(results[0].path)
    assert record.header.config["model"]["name"] == "miniature" and "experiment" not in record.header.config
    what_is_on_record_takes_its_time(runs, *options, *quick)


def what_is_on_record_takes_its_time(runs: Path, *options: str) -> None:
    rewrite("swift/tiny", "method.context_window=0", "method.context_window=16")
    headers = Forecast([runs]).headers
    assert len(headers) == 3 and all(header.model.name == "miniature" for header in headers.values())
    end = program(*options, "dry=true")
    assert end.returncode == 0
    assert "as fast as AR, except 3 of 4 runs, which are on record" in end.stdout
    (first, *_) = (load_run(path) for path in sorted(runs.glob("miniature-jacobi-cnn_dm-*")))
    enough = (first.header.wall_s + BETWEEN) / 60 + 1e-6
    said = program(*options, "dry=true", f"minutes={enough}").stdout
    assert "left out: 3 of 4 runs" in said and "minutes=N sets another limit" in said
    assert said.count("miniature  ") == 1  # the one row of the table


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("method=ar scale=mini", "scale='method=ar, scale=mini' is invalid: expected experiment=NAME with this option"),
        ("method=ar minutes=3", "minutes='method=ar, minutes=3' is invalid: expected experiment=NAME with this option"),
        (
            f"experiment={NAME} scale=mini minutes=1e-9",
            "minutes='1e-09' is invalid: expected enough time for the first",
        ),
        ("method=ar dry=maybe", "dry='maybe' is invalid: expected true or false"),
        ("seed=interval(0,1)", "seed='seed=interval(0,1)' is invalid: expected values that can be listed"),
        (f"experiment={NAME} scale=mini seed=1,2", "seed='seed=1,2' is invalid: expected one value"),
        (  # results of both tasks would have the run of one
            f"experiment={NAME} scale=mini task=gsm8k",
            f"task='gsm8k' is invalid: results of {NAME} differ in it: task=cnn_dm, task=gsm8k; runs of one value",
        ),
        ("experiment=glob(knapspec_*)", "experiment='glob(knapspec_*)' is invalid: expected a pattern"),
        ("experiment/swift=tiny", "experiment/swift='tiny' is invalid: expected experiment=swift/tiny"),
    ],
)
def test_what_no_sweep_can_do_is_refused(line: str, message: str, folders: Path) -> None:
    end = program("-m", *line.split(), f"hydra.sweep.dir={folders}/sweep")
    assert end.returncode == 2 and message in end.stderr


def test_an_index_of_an_unknown_experiment_is_named(tmp_path: Path) -> None:
    index.write(tmp_path, "swift_table99", "mini", [])
    with pytest.raises(ConfigError, match=r"swift_table99\.mini\.json.*unknown experiment swift_table99"):
        cells.replications(tmp_path)


@pytest.mark.parametrize("name", ["long", "mini", "paper", "real", "small"])
def test_every_key_of_the_scales_matches_something(name: str) -> None:
    assert scale.load_checked(name).name == name


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("replace: {method=jacobi: [], method=jacoby: []}", r"scale mini replace='method=jacoby'"),
        ("models: {swift_tiny2: {qwen3_8b: miniature_plain}}", r"scale mini models='swift_tiny2\.qwen3_8b'"),
        ("replace: {model=qwen3_14b: []}", r"scale mini replace='model=qwen3_14b'"),  # its model is the miniature
        ("notes: {swift_tiny2: a, swift_table99: b}", r"scale mini notes='swift_table99'"),
        ("caps: {repeats: 1, method.draft_length: 3}", r"scale mini caps='method.draft_length'"),
        ("caps: {method.search.iterations: 1, repeat: 1}", r"scale mini caps='repeat'"),
    ],
)
def test_a_key_of_a_scale_that_matches_nothing_is_refused(more: str, message: str, folders: Path) -> None:
    (scale.FOLDER / "mini.yaml").write_text(MINI.replace("caps:", "items: 2 #") + more, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        scale.load_checked("mini")
    options = (f"experiment={NAME}", "scale=mini", f"hydra.sweep.dir={folders}/sweep", f"runs_dir={folders}/runs")
    end = program("-m", *options)
    assert end.returncode == 2 and "scale mini" in end.stderr and not (folders / "runs").exists()


def test_two_sizes_stand_for_two_sizes() -> None:
    real = scale.load_checked("real")
    models = {job.labels["model"]: grid.choice(real.map_job(job), "model") for job in grid.load("swift_figure8b").jobs}
    small, large = "qwen2_5_coder_0_5b", "qwen2_5_coder_1_5b"
    assert models == {"LLaMA-2-7B": small, "LLaMA-2-13B": small, "LLaMA-2-70B": large}
    elsewhere = next(job for job in grid.load("swift_table2").jobs if "model=llama2_70b" in job.overrides)
    assert grid.choice(real.map_job(elsewhere), "model") == small


def test_a_damaged_index_is_named(tmp_path: Path) -> None:
    path = index.write(tmp_path, NAME, "mini", [index.IndexEntry({"model": "m"}, ["a=1"], "run", None)])
    assert index.read(path)[2] == [index.IndexEntry({"model": "m"}, ["a=1"], "run", None)]
    path.write_text(json.dumps({"experiment": NAME}), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"swift_tiny2\.mini\.json.*damaged"):
        cells.replications(tmp_path)
