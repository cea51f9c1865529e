"""The store of digests: a report is the same with and without it, whatever became of the file."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ssd_bench.commands import claims as claims_command
from ssd_bench.commands.report import main
from ssd_bench.papers.claims.judge import judge
from ssd_bench.papers.ours.cells import REPEATED_TIMINGS, replications
from ssd_bench.records.reader import Run, load_run
from ssd_bench.report import figures, numbers, verdicts
from ssd_bench.report.runs import RunGroup, group_by_task
from ssd_bench.results import store as stored
from ssd_bench.results.digest import Digest, summarise
from ssd_bench.results.evidence import machine, trace
from ssd_bench.results.folder import Record, prepare_records, records
from ssd_bench.results.numbers import domain_numbers
from ssd_bench.results.store import FILE, DigestStore, RunCache
from tests.exhibit_runs import indexed, make
from tests.project.test_structure import imports
from tests.runs import ROOT
from tests.synthetic import unit, with_hf, write_record


def make_some(folder: Path, names: str = "abc") -> Path:
    """Comparable runs, one with three arms and several domains."""
    for name in names:
        units = [unit(i, accept=0.3 + 0.1 * ord(name) % 5) for i in range(4)]
        if name == "b":
            units = [with_hf(one) for one in units]
            units[0][0].prompt.domain = units[0][1].prompt.domain = "other"
        write_record(folder / name, units, run_id=f"run-{name}", method=f"method_{name}", caveat="of a toy")
    return folder


def report(runs_dir: Path, out: Path) -> dict[str, bytes]:
    """Output and files of a report."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert main([f"runs_dir={runs_dir}", f"out={out}"]) == 0
    files = {str(file.relative_to(out)): file.read_bytes() for file in out.rglob("*") if file.is_file()}
    return files | {"": printed.getvalue().replace(str(out), "").encode()}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_some(tmp_path_factory.mktemp("prepared"))
    prepare_records(records(folder))
    return folder


@pytest.fixture
def some(prepared: Path, tmp_path: Path) -> Path:
    """Return a copy to change, in which the digests count: its files keep their times."""
    return shutil.copytree(prepared, tmp_path / "some")


@pytest.fixture
def digested(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the runs whose digests were computed."""
    names, work_out = list[str](), Digest.of.__func__  # type: ignore[attr-defined]

    def counted(cls: type[Digest], run: Run) -> Digest:
        names.append(run.path.name)
        return work_out(cls, run)  # type: ignore[no-any-return]

    monkeypatch.setattr(Digest, "of", classmethod(counted))
    return names


def test_a_digest_says_what_its_run_does(tmp_path: Path) -> None:
    for path in sorted(make_some(tmp_path).iterdir()):
        run = load_run(path)
        kept = Digest.read(Digest.of(run).text)
        assert kept.summarise(path) == summarise(run) and kept.summarise_domains() == domain_numbers(run)
        assert list(kept.summarise(path).row.items()) == list(summarise(run).row.items())
        assert (kept.timing.machine, kept.timing.trace) == (machine(run), trace(run))


def test_a_report_is_the_same_with_the_store_and_without(
    tmp_path: Path, digested: list[str], no_page: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = make_some(tmp_path / "runs")
    monkeypatch.setattr(figures, "save", lambda made, stem: [])  # they take the most of its time
    first = report(runs, tmp_path / "one")
    assert sorted(digested) == list("abc") and (runs / FILE).is_file()
    digested.clear()
    assert report(runs, tmp_path / "two") == first and not digested
    (runs / FILE).unlink()
    (runs / FILE).mkdir()  # it can be neither read nor written
    assert report(runs, tmp_path / "three") == first and sorted(digested) == list("abc")


def exhibited(runs: Path) -> list[object]:
    """An exhibit's content, and its claims' verdicts."""
    found = records(runs)
    prepare_records(found)
    made = replications(runs, found)
    reasons = [pair for one in made for pair in one.exclusions.items()]
    cells = [(cell.labels, cell.summary, cell.domains, cell.variation, reason) for cell, reason in reasons]
    own = [one for one in made if one.experiment.name == "knapspec_figure3"]
    return [cells, numbers.long_table(own, "knapspec", "Figure 3").to_csv(), verdicts.table(judge(made)).to_csv()]


def test_exhibits_with_a_noise_floor_are_the_same_with_the_store_and_without(
    tmp_path: Path, digested: list[str]
) -> None:
    moments = [make(tmp_path, f"moment{i}") for i in range(3)]
    make(tmp_path, "own", 0.8)
    indexed(tmp_path, "knapspec_figure3", "mini", lambda job: "own", own_traces=False)
    indexed(
        tmp_path, REPEATED_TIMINGS, "mini", lambda job: moments[int(job.labels["setting"][-1]) % 3], own_traces=False
    )
    first = exhibited(tmp_path)
    assert sorted(set(digested)) == sorted([*moments, "own"])
    digested.clear()
    assert exhibited(tmp_path) == first and not digested
    (tmp_path / FILE).unlink()
    assert exhibited(tmp_path) == first and digested


def test_the_claims_keep_what_they_worked_out(
    tmp_path: Path, digested: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path, "own")
    make(tmp_path, "not_asked_for")
    indexed(tmp_path, "knapspec_figure3", "mini", lambda job: "own", own_traces=False)
    # the other record may be a second timing of the same trace
    assert claims_command.main([f"runs_dir={tmp_path}"]) == 0 and sorted(digested) == ["not_asked_for", "own"]
    told = capsys.readouterr().out
    assert claims_command.main([f"runs_dir={tmp_path}"]) == 0 and sorted(digested) == ["not_asked_for", "own"]
    assert capsys.readouterr().out == told


def test_a_run_added_is_added_alone_and_one_removed_leaves(some: Path, digested: list[str]) -> None:
    make_some(some, "d")
    shutil.rmtree(some / "a")
    for _ in range(2):
        prepare_records(records(some))
        assert digested == ["d"]
    assert {Path(name).name for name in stored._read(some / FILE)} == {*"bcd"}


def test_many_runs_are_digested_alike_by_several_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "FEW", 4)
    for i in range(stored.FEW):
        write_record(tmp_path / f"{i}", [unit(0, accept=i / stored.FEW)], run_id=f"run-{i}")
    (tmp_path / "0" / "steps.parquet").write_bytes(b"no table")
    found = records(tmp_path)
    prepare_records(found)
    assert [one.path.name for one in found if one.error] == ["0"]
    for one in found:
        if not one.error:
            assert one.summary == summarise(load_run(one.path))


@pytest.mark.parametrize(("stop", "done"), [(KeyboardInterrupt, 1), (OSError, 3), (None, 3)])
def test_a_pass_that_is_stopped_is_continued(
    stop: type[BaseException] | None, done: int, tmp_path: Path, digested: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even after a kill (None): then the digests written from time to time are kept."""
    make_some(tmp_path, "abcde")
    compute, write, ended = stored._digest_of, DigestStore._write, []

    def stopped(run_dir: Path) -> tuple[str, str] | None:
        if len(digested) == done:
            ended.append(True)
            raise stop or KeyboardInterrupt
        return compute(run_dir)

    with monkeypatch.context() as patch:
        patch.setattr(stored, "_digest_of", stopped)
        patch.setattr(stored, "WRITE_EVERY_S", 0.0 if stop is None else 1e6)
        patch.setattr(DigestStore, "_write", lambda store: None if stop is None and ended else write(store))
        found = records(tmp_path)
        with pytest.raises(stop or KeyboardInterrupt):
            prepare_records(found)
    assert len(digested) == done
    prepare_records(records(tmp_path))
    assert sorted(digested) == list("abcde"), "none is computed twice"


def test_a_changed_record_is_worked_out_again(some: Path, digested: list[str]) -> None:
    path = some / "a" / "run.json"
    path.write_text(path.read_text(encoding="utf-8").replace('"of a toy"', '"of a cat"'), encoding="utf-8")
    os.utime(path, ns=(0, 0))  # of the same length, and clocks are coarse
    made = {one.path.name: one for one in records(some)}
    assert made["a"].summary.warnings[0] == "of a cat" and made["b"].summary.warnings[0] == "of a toy"
    assert digested == ["a"]


def of_another_form(file: Path) -> None:
    stored.pq.write_table(stored.pa.table({"run": ["a"]}), file)


def of_other_digests(file: Path) -> None:
    table = stored.pq.read_table(file)
    digests = stored.pa.array([json.dumps({"summary": {}}), "{", "[]"])
    stored.pq.write_table(table.set_column(table.column_names.index("digest"), "digest", digests), file)


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: file.write_bytes(b""),
        lambda file: file.write_bytes(file.read_bytes()[:-20]),
        lambda file: file.write_text("no table", encoding="utf-8"),
        of_another_form,
        of_other_digests,
    ],
)
def test_a_damaged_store_is_written_anew(damage: Callable[[Path], object], some: Path, digested: list[str]) -> None:
    told = {one.path: one.summary for one in records(some)}
    assert not digested
    damage(some / FILE)
    found = records(some)
    prepare_records(found)
    assert sorted(digested) == list("abc") and {one.path: one.summary for one in found} == told
    prepare_records(records(some))
    assert len(digested) == 3


def test_no_changed_bit_of_the_store_changes_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare_records(records(make_some(tmp_path, "b")))
    worked_out = Digest.of(load_run(tmp_path / "b"))  # once, not for every bit
    monkeypatch.setattr(Digest, "of", lambda run: worked_out)
    told, content = [one.summary for one in records(tmp_path)], (tmp_path / FILE).read_bytes()
    for at in range(0, len(content), len(content) // 40):
        (tmp_path / FILE).write_bytes(content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
        assert [one.summary for one in records(tmp_path)] == told


@pytest.mark.parametrize("files", ["CODE", "COSTS"])
def test_the_digests_of_other_code_or_costs_do_not_count(
    files: str, some: Path, tmp_path: Path, digested: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = tmp_path / "changed"
    changed.write_text("# another line", encoding="utf-8")
    monkeypatch.setattr(stored, files, (*getattr(stored, files)[:-1], changed))
    stored._version.cache_clear()
    prepare_records(records(some))
    stored._version.cache_clear()
    assert len(digested) == 3


def test_all_code_that_makes_digests_is_counted() -> None:
    """But for how a fault is named."""
    taken, modules, others = set[str](), imports(), {"ssd_bench.errors"}
    asked = ["ssd_bench.results", *(name for name in modules if name.startswith("ssd_bench.results."))]
    while asked:
        name = asked.pop()
        if name not in taken | others | {"ssd_bench.results.store"}:
            taken.add(name)
            asked += modules[name]
    counted = {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for file in stored.CODE}
    assert counted == taken | {"ssd_bench.results.store", "ssd_bench.results.quantities"}  # the last is YAML


def test_only_some_records_are_in_memory(tmp_path: Path) -> None:
    made = [Record(path, cache=shelf) for shelf in [RunCache(0)] for path in sorted(make_some(tmp_path).iterdir())]
    first = made[0].run
    assert made[0].run is first and made[1].run is not first
    assert made[0].run is not first and made[0].run.path == first.path
    size = sum(file.stat().st_size for path in tmp_path.iterdir() for file in path.iterdir())
    all_of_them = [Record(one.path, cache=shelf) for shelf in [RunCache(size)] for one in made]
    kept = [one.run for one in all_of_them]
    assert [one.run for one in all_of_them] == kept


def test_the_figure_of_a_task_shows_the_fastest_of_many_runs(tmp_path: Path) -> None:
    group = group_by_task(records(make_some(tmp_path)))["toy"][0]
    ran = [row for row in group.rows if row["run_dir"] is not None]
    unsure = {**ran[0], "method_tokens_per_s_lo": None}
    many = [unsure | {"method": f"m{i}", "method_tokens_per_s": 1.0 + i % 70} for i in range(700)]
    drawn = figures.task_figure("toy", [RunGroup(group.title, [group.rows[0], *many], {})])
    labels = [text.get_text() for text in drawn.axes[0].get_yticklabels()]
    assert len(labels) == 1 + figures.ROWS and labels[0] == "ar" and {"m69", "m699"} <= {*labels}
    assert f"the {figures.ROWS} fastest of 700 runs" in " ".join(drawn.axes[0].get_title(loc="left").split())
    saved = figures.save(figures.Figure(figsize=(1, 700)), tmp_path / "tall")
    png = next(path for path in saved if path.suffix == ".png")
    assert int.from_bytes(png.read_bytes()[20:24], "big") == figures.LONGEST
