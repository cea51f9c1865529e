"""The papers' experiments: each composes, and each reported number has its job."""

import json
from collections.abc import Iterable
from copy import deepcopy
from fnmatch import fnmatch
from functools import cache
from itertools import product
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import OverrideType
from omegaconf import DictConfig, OmegaConf

from ssd_bench.compose.build import build
from ssd_bench.conf import CONF
from ssd_bench.contract.shape import ModelDims
from ssd_bench.errors import ConfigError
from ssd_bench.papers.ours import select
from ssd_bench.papers.ours.values import BASELINES
from ssd_bench.papers.printed import reported
from ssd_bench.papers.runs.grid import AXES, FOLDER, Job, choice, load, names, sets
from ssd_bench.records import schema
from ssd_bench.sweep import dry

# diagrams, and tables of features with numbers of other exhibits
NO_RESULTS = {
    *(("knapspec", exhibit) for exhibit in ("Table 1", "Figure 1")),
    *((paper, exhibit) for paper in ("swift", "swift-v1") for exhibit in ("Table 1", "Figure 1")),
    *((paper, f"Figure {i}") for paper in ("swift", "swift-v1") for i in (3, 4, 5)),
    ("knn-ssd", "Figure 3"),
    *(("conflayers", f"Figure {i}") for i in (1, 2, 3)),
}
GROUPS = ("model", "method", "task", "data", "hardware", "decode")
CHOICES = {"model": "llama2_13b", "method": "ar", "task": "", "hardware": "sim_h100"}


def jobs() -> list[Job]:
    return [job for name in names() for job in load(name).jobs]


@cache
def chosen(choices: tuple[str, ...]) -> DictConfig:
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        return compose("config", overrides=list(choices))


def composed(overrides: Iterable[str]) -> DictConfig:
    """Hydra's config, with one slow composition for each choice of groups; unknown options are refused."""
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    groups = [o for o in parsed if o.key_or_group in GROUPS]
    cfg = deepcopy(chosen(tuple(str(o.input_line) for o in groups)))
    for override in parsed:
        if override not in groups:
            assert override.type is OverrideType.CHANGE, override.input_line
            OmegaConf.update(cfg, override.key_or_group, override.value(), force_add=False)
    return cfg


def jobs_of(number: reported.Number) -> list[Job]:
    """The jobs to compare a reported number with."""
    exhibit = select.experiments()[number.paper, number.exhibit]
    return select.matching_items(number, [job for experiment in exhibit for job in experiment.jobs])


def missing(number: reported.Number) -> bool:
    """Return whether an experiment lists the number as not run."""
    return select.why_not_run(number, select.experiments()[number.paper, number.exhibit]) is not None


def exhibited() -> list[reported.Number]:
    return [number for number in reported.numbers() if (number.paper, number.exhibit) in select.experiments()]


def test_every_exhibit_with_results_has_an_experiment() -> None:
    listed = set(reported.exhibits()[["paper", "exhibit"]].itertuples(index=False, name=None))
    names = "Comparison, Drafts, Windows, Noise, Population, Real, Real dispute, Real measured"
    assert set(select.experiments()) == listed - NO_RESULTS | {("ssd-bench", name) for name in names.split(", ")}
    assert listed >= NO_RESULTS


def test_no_key_of_a_run_set_is_written_twice() -> None:
    for path in FOLDER.rglob("*.yaml"):
        OmegaConf.load(path)  # refuses it


def test_the_readme_lists_the_run_sets_and_their_exhibits() -> None:
    rows = [
        line.split("|") for line in (FOLDER / "README.md").read_text(encoding="utf-8").splitlines() if "` |" in line
    ]
    listed = {row[1].strip(" `"): row[3].strip().split(", ") for row in rows}
    assert listed == {
        name: [exhibit.removeprefix(f"{name.partition('/')[0]}_") for exhibit in one.exhibits]
        for name, one in sets().items()
    }


def test_no_job_is_written_twice_and_every_job_is_shown() -> None:
    written = [
        (grid.overrides(labels), one.name)
        for one in sets().values()
        for grid in one.grids.values()
        for labels in product(*(grid.axes[axis] for axis in AXES))
    ]
    homes = dict(written)
    assert [pair for pair in written if homes[pair[0]] != pair[1]] == [] and len(homes) == len(written)
    assert {job.overrides for job in jobs()} == set(homes)


def test_every_number_has_its_job_or_a_reason() -> None:
    for number in exhibited():
        assert bool(jobs_of(number)) != missing(number), number.id


def test_a_number_of_a_table_has_one_job_unless_it_is_a_mean() -> None:
    for number in exhibited():
        if not number.exhibit.startswith("Table") or number.method in BASELINES or missing(number):
            continue
        mean = number.task in ("Overall", "Average") or number.settings.get("mix_ratio") == "overall"
        mean = mean or (number.paper, number.exhibit) == ("knn-ssd", "Table 2")  # its M and α are the means of Table 6
        count = len({job.overrides for job in jobs_of(number)})
        assert count in ((3, 4) if mean else (1,)), number.id


def test_reasons_are_sentences_and_name_numbers_that_exist() -> None:
    ids = [number.id for number in reported.numbers()]
    for name in names():
        for entry in load(name).not_run:
            assert {"what", "why"} <= set(entry) <= {"what", "why", "numbers"}
            assert entry["why"].endswith(".")
            assert all(any(fnmatch(known, glob) for known in ids) for glob in entry.get("numbers", ()))


def test_models_are_those_of_the_papers() -> None:
    for model in {choice(job.overrides, "model") for job in jobs()}:
        source = build(chosen((f"model={model}",)), "model")
        assert source.name == model
        assert (source.hub or source.gguf) and source.shape and not source.toy


def test_whole_jobs_compose_with_hydra() -> None:
    for paper in ("knapspec", "swift", "conflayers", "knn-ssd"):
        longest = max((job.overrides for job in jobs() if load(job.experiment).paper == paper), key=len)
        assert chosen(longest) == composed(longest)


def test_methods_compose_and_accept_their_options() -> None:
    dims = ModelDims("llama2_13b", n_layers=40, n_params=13_000_000_000, context=4096, vocab_size=32000)
    for overrides in {tuple(o for o in job.overrides if o.startswith("method")) for job in jobs()}:
        build(composed(overrides), "method").check(dims)


def test_tasks_and_the_rest_compose() -> None:
    for overrides in {tuple(o for o in job.overrides if not o.startswith(("method", "model"))) for job in jobs()}:
        cfg = composed(overrides)
        assert OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
        assert build(cfg, "task").max_new_tokens >= 64


def test_streams_are_estimated() -> None:
    """A dry run counts the prompts of all parts."""
    tasks = {choice(job.overrides, "task") for job in jobs()}
    for stream in filter(select.stream_parts, tasks):
        cfg = composed(("model=llama2_13b", f"task={stream}"))
        assert dry.estimate(cfg, "sim_h100").prompts == len(cfg.task.parts) * cfg.task["items"]


def test_a_dry_run_counts_every_turn_of_the_rows_at_hand(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    rows = [{"prompt": ["a ferry", "shorter", "again"]}, {"prompt": "a lease"}, {"prompt": ["a café", "and?"]}]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    options = ("model=llama2_13b", "method=ar", "repeats=2")
    for limit, prompts, answers in (("null", 6, 12), ("2", 4, 8), ("9", 6, 12)):
        own = composed((*options, "task=jsonl", f"task.path={file}", f"limit={limit}"))
        found = dry.estimate(own, "sim_h100")
        assert (found.prompts, found.answers, found.unknown) == (prompts, answers, False)
        told = dry.describe("1 run", [dry.Planned([], CHOICES, own)], lambda _: None)
        assert f"at most {2 * answers * found.new_tokens:,} new tokens in all arms, about" in told
    samples = dry.estimate(composed((*options, "task=mt_bench")), "sim_h100")
    assert samples.answers > samples.prompts == 2 * 60


def test_a_dry_run_says_what_it_cannot_count(tmp_path: Path) -> None:
    options = ("model=llama2_13b", "method=ar", "limit=null")
    for more, prompts in (
        (("task=mt_bench", "data=hub"), 80),
        (("task=mt_bench", "data=local", f"data.root={tmp_path / 'elsewhere'}"), 80),
        (("task=jsonl", "data=hub"), 0),
        (("task=jsonl", "data=hub", "limit=5"), 5),
    ):
        cfg = composed((*options, *more))
        found = dry.estimate(cfg, "sim_h100")
        assert (found.prompts, found.answers, found.unknown) == (prompts, prompts, True)
        told = dry.describe("1 run", [dry.Planned([], CHOICES, cfg)], lambda _: None)
        assert "at most" not in told and "unknown" in told
        assert told.splitlines()[-1].split()[-4:-1] == [str(prompts or "?"), str(found.new_tokens), "?"]
        both = [dry.Planned([], CHOICES, one) for one in (cfg, composed((*options, "task=gsm8k", "limit=3")))]
        told = dry.describe("2 runs", both, lambda _: None)
        assert (
            "at most 384 new tokens" in told and "not counted: 1 of 2 runs, whose data are not on this machine" in told
        )
    assert not dry.estimate(composed((*options, "task=gsm8k", "data=hub")), "sim_h100").unknown


def test_a_dry_run_counts_every_arm_and_copy_of_the_weights() -> None:
    options = ("model=llama2_13b", "method=ar", "task=gsm8k", "limit=3")
    found = {name: dry.estimate(composed((*options, f"baseline={name}")), "sim_h100") for name in schema.BASELINES}
    hours, memory = ({name: getattr(one, what) for name, one in found.items()} for what in ("hours", "gigabytes"))
    assert hours["paired"] == pytest.approx(2 * hours["none"]) and hours["hf"] == pytest.approx(3 * hours["none"])
    assert memory["paired"] == memory["none"] and memory["hf"] == pytest.approx(2 * memory["none"])
    with pytest.raises(ConfigError, match="one of none, paired, hf"):
        dry.estimate(composed((*options, "baseline=other")), "sim_h100")


@pytest.mark.parametrize(
    ("model", "hardware", "said"),
    [
        ("llama2_70b", "sim_h100", "80GB: 138 GB of weights and cache, 80 GB of memory; at least 2 GPUs: "),
        ("llama2_13b", "sim_3090", "24 GB of memory; at least 2 GPUs: hardware.device=[cuda:0,cuda:1]"),
        ("llama2_13b", "sim_h100", ""),
        ("llama2_70b", "cpu", ""),
    ],
)
def test_a_dry_run_names_a_model_that_does_not_fit_the_gpu(model: str, hardware: str, said: str) -> None:
    cfg = composed((f"model={model}", "method=ar", "task=gsm8k", "limit=3"))
    run = dry.Planned([], {"model": model, "method": "ar", "task": "gsm8k", "hardware": hardware}, cfg)
    lines = [line for line in dry.describe("2 runs", [run, run], lambda _: None).splitlines() if "does not fit" in line]
    assert len(lines) == bool(said)
    assert all(line.startswith(f"{model} does not fit one") and said in line for line in lines)


def test_no_run_and_no_name_stands_twice_in_an_exhibit() -> None:
    for name in names():
        found = load(name).jobs
        labels = {tuple(job.labels.values()) for job in found}
        assert len({job.overrides for job in found}) == len(labels) == len(found), name
