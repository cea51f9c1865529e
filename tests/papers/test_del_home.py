"""DEL on weights trained for exits and on stock ones: grid, scales, table and decisions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import pandas as pd
import pytest

from ssd_bench.errors import ConfigError
from ssd_bench.papers.ours import cells
from ssd_bench.papers.ours.cells import Replication, replications
from ssd_bench.papers.printed.reported import numbers
from ssd_bench.papers.runs import grid, scale
from ssd_bench.papers.ssd_bench import del_home
from ssd_bench.papers.ssd_bench.del_home import ALL, EXPLAINS, HELPS, LOWERS, OVER, UNDECIDED, VERDICT, verdict
from ssd_bench.papers.ssd_bench.own import OWN
from ssd_bench.report import page, write
from ssd_bench.results.effect import Effect
from ssd_bench.results.evidence import VariationLevel
from ssd_bench.results.quantity import Measured, Spread
from tests import synthetic
from tests.exhibit_runs import indexed

TASKS = ["CNN/DM", "GSM8K", "WMT14 DE-EN", "GovReport"]


def test_the_grid_has_the_pairs_on_the_tasks_of_both_sides() -> None:
    jobs = grid.load(del_home.DEL_HOME).jobs
    found = {(job.labels["model"], job.labels["task"], job.labels["method"]) for job in jobs}
    models = [*del_home.PAIRS, *del_home.PAIRS.values()]
    asked = {*product(models, TASKS[:3], ("DEL", "LayerSkip"))}
    asked |= {*product(("LayerSkip-Llama3.2-1B", "Llama3.2-1B"), TASKS[3:], ("DEL", "LayerSkip"))}
    assert found == asked and len(jobs) == len(asked) == 28
    choices = {job.labels["model"]: grid.choice(job.overrides, "model") for job in jobs}
    assert [choices[trained] for trained in del_home.PAIRS] == ["layerskip_llama3_2_1b", "layerskip_llama3_8b"]
    assert [choices[stock] for stock in del_home.PAIRS.values()] == ["llama3_2_1b", "llama3_8b"]
    assert {grid.choice(job.overrides, "method") for job in jobs} == {"del", "layerskip"}


def test_it_is_asked_for_by_its_short_name() -> None:
    assert grid.expand_name("del_home") == grid.expand_name("ssd_bench/del_home") == [del_home.DEL_HOME]
    with pytest.raises(ConfigError, match="experiment='main'"):  # of which there are several
        grid.expand_name("main")


def test_a_small_scale_has_a_model_for_each_side() -> None:
    jobs = grid.load(del_home.DEL_HOME).jobs
    for name, stock in (("mini", "miniature_plain"), ("small", "smollm2_135m")):
        own = scale.load_checked(name)
        for job in jobs:
            trained = job.labels["model"] in del_home.PAIRS
            assert grid.choice(own.map_job(job), "model") == (own.model if trained else stock)
    elsewhere = next(job for job in grid.load("knapspec_table2").jobs if "model=llama3_2_1b" in job.overrides)
    assert grid.choice(scale.load("mini").map_job(elsewhere), "model") == "miniature"


def test_a_scales_model_of_no_job_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "model: miniature\nmodels: {ssd_bench_del_home: {qwen3_8b: miniature_plain}}\n"
    (tmp_path / "odd.yaml").write_text(text, encoding="utf-8")
    monkeypatch.setattr(scale, "FOLDER", tmp_path)
    with pytest.raises(ConfigError, match=r"scale odd models='ssd_bench_del_home\.qwen3_8b'"):
        scale.load_checked("odd")


def test_one_side_alone_is_no_pair(explained: Replication) -> None:
    half = replace(explained, cells=tuple(cell for cell in explained.cells if cell["model"] in del_home.PAIRS))
    (own,) = [one for one in OWN if one.experiment == del_home.DEL_HOME]
    assert "No results yet." in own.document(half)
    sheet = next(one for one in page._own_sheets([half], {}) if one.anchor.startswith(del_home.DEL_HOME))
    assert sheet.lines == [own.not_run] and not sheet.table


def made(folder: Path, trained: float, stock: float, tasks: Sequence[str], prompts: int = 8) -> Replication:
    """Its runs at scale mini, DEL having these speedups over AR, varied by a few per cent per prompt."""

    def run(job: grid.Job) -> str | None:
        if job.labels["task"] not in tasks:
            return None
        exits = job.labels["model"] in del_home.PAIRS
        task = job.labels["task"].replace("/", "")
        name = f"{'trained' if exits else 'stock'}-{task}-{job.labels['method']}"
        if not (folder / name).is_dir():
            seed = len(task) + 3 * exits
            units = [synthetic.unit(i, accept=0.9 if exits else 0.2) for i in range(prompts)]
            for i, (ar, own) in enumerate(units):
                speed = (trained if exits else stock) * (1 + 0.03 * math.sin(seed + i))
                rate = (ar.prompt.new_tokens - 1) / ar.prompt.decode_ms
                ar.prompt.prefill_ms = own.prompt.prefill_ms = 0.0
                ar.prompt.new_tokens = own.prompt.new_tokens
                ar.prompt.decode_ms = (own.prompt.new_tokens - 1) / rate
                own.prompt.decode_ms = ar.prompt.decode_ms / speed
            model = {"name": "miniature" if exits else "miniature_plain", "n_params": 2_883_584, "toy": True}
            synthetic.write_record(folder / name, units, run_id=name, model=model)
        return name

    indexed(folder, del_home.DEL_HOME, "mini", run)
    return next(one for one in replications(folder) if one.experiment.name == del_home.DEL_HOME)


@pytest.fixture(scope="module")
def explained(tmp_path_factory: pytest.TempPathFactory) -> Replication:
    """Runs in which DEL gains on the trained weights alone."""
    return made(tmp_path_factory.mktemp("explained"), 1.5, 0.8, TASKS)


def test_the_verdict_follows_from_the_intervals_of_ratio_and_speedup() -> None:
    above, across, below = (Effect(value, ((1e-4, 9.0),)) for value in (1.5, 1.01, 0.8))
    for ratio, trained, said in (
        (above, above, EXPLAINS),
        (above, across, HELPS),
        (above, None, HELPS),
        (below, above, LOWERS),
        (across, above, UNDECIDED),
        (None, above, UNDECIDED),
    ):
        assert verdict(ratio, trained) == said


def test_the_table_decides(explained: Replication) -> None:
    frame = del_home.table(explained)
    judged = frame[frame[VERDICT] != ""]
    assert set(judged[VERDICT]) == {EXPLAINS} and set(judged["method"]) == {"DEL"}
    assert judged["task"].tolist() == [*TASKS, f"{ALL} (4)"]
    together = judged.iloc[-1]
    assert together["model"] == "miniature, 2.9 million parameters / miniature_plain, 2.9 million parameters"
    assert float(together[OVER].split()[0]) == pytest.approx(1.5 / 0.8, rel=0.03)
    both = frame[(frame["task"] == "GovReport") & (frame["method"] == "DEL")].set_index("weights")
    assert both["model"].to_dict() == {
        "trained for exits": "miniature, 2.9 million parameters",
        "stock": "miniature_plain, 2.9 million parameters",
    }
    assert both.loc["stock", "papers, as given"] == "KnapSpec Table 2 0.89 (Llama3.2-1B)"
    assert both.loc["trained for exits", "papers, as given"] == del_home.AUTHORS
    assert both["exit"].str.fullmatch(r"\d\.\d of 8").all()
    assert (frame.loc[frame["method"] == "LayerSkip", OVER].iloc[::2] != "").all()


def test_one_model_for_both_decides_nothing(explained: Replication) -> None:
    records = {(cell["task"], cell["method"]): cell.record for cell in explained.cells}
    shared = (replace(cell, record=records[cell["task"], cell["method"]]) for cell in explained.cells)
    frame = del_home.table(replace(explained, cells=tuple(shared)))
    assert set(frame[VERDICT]) == {"", f"{UNDECIDED}: at this scale one model represents both"}
    assert ALL not in str(frame["task"])


def test_one_prompt_decides_nothing(tmp_path: Path) -> None:
    frame = del_home.table(made(tmp_path, 1.5, 0.5, ["GovReport"], prompts=1))
    assert set(frame[VERDICT]) == {"", UNDECIDED}


def test_moments_count_in_both_numbers_or_in_neither(explained: Replication, monkeypatch: pytest.MonkeyPatch) -> None:
    """They widen the ratio and the speedup on trained weights, where both weights have a noise floor."""
    one = del_home.weights_pairs(explained)[0]
    level = VariationLevel(1.0, Spread(0.2, 7), Spread(0.2, 7), 8)

    def effects(*paths: Path) -> list[Effect]:
        shown = property(lambda cell: level if cell.path in paths else None)
        monkeypatch.setattr(cells.Cell, "variation", shown)
        return [effect for effect in (one.ratio(end_to_end=True), one.speedup()) if effect is not None]

    narrow = effects()
    assert effects(one.trained.path) == effects(one.stock.path) == narrow
    wide = effects(one.trained.path, one.stock.path)
    for low, high in zip(narrow, wide, strict=True):
        assert low.value == high.value
        assert high.interval[0] < low.interval[0] < low.value < low.interval[1] < high.interval[1]
    assert verdict(*narrow) in (EXPLAINS, HELPS) and verdict(*wide) in (HELPS, UNDECIDED)


def test_an_effect_keeps_the_interval_of_its_number() -> None:
    one = Effect.of(Measured(1.5, 1.5 / 1.2, 1.5 * 1.2, n=9))
    assert one is not None and one.interval == pytest.approx((1.25, 1.8))
    both = Effect.mean([one, one])
    assert both.value == pytest.approx(1.5) and 1.25 < both.interval[0] < both.interval[1] < 1.8
    assert Effect.of(Measured(1.5)) is None


def test_what_papers_report_stands_as_given() -> None:
    """The note's range is that of all cells of the table; the exhibit's labels are the papers'."""
    given = {
        (one.paper, one.model, one.task): one.printed
        for one in numbers()
        if one.method == "DEL" and one.metric == "speedup"
    }
    assert given["knapspec", "Llama3.2-1B", "GovReport"] == "0.89"
    assert [given["conflayers", "LLaMA-3-8B", task] for task in TASKS[:3]] == ["0.77", "0.74", "0.73"]
    own = [float(value) for (paper, *_), value in given.items() if paper == "knapspec"]
    cells = f"the {len(own)} cells of KnapSpec's Table 2"
    assert f"{cells}, DEL has {min(own):.2f} to {max(own):.2f} times" in del_home.note()


def test_report_and_page_show_it(explained: Replication, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = write.write_own_tables([explained], tmp_path)
    assert [path.name for path in paths] == [f"ssd_bench_del_home_mini.{kind}" for kind in ("md", "csv", "tex")]
    text = paths[0].read_text(encoding="utf-8")
    assert text in capsys.readouterr().out and "toy-model run" in text and EXPLAINS in text
    assert "without early-exit loss and without layer dropout" in " ".join(text.split())
    assert len(pd.read_csv(paths[1])) == 17
    (sheet,) = [sheet for sheet in page._own_sheets([explained], {}) if sheet.anchor.startswith(del_home.DEL_HOME)]
    assert sheet.anchor == "ssd_bench_del_home_mini" and EXPLAINS in sheet.table
