"""Reproduction of records: on other threads and instructions, and with damage; records/test_consistency has more."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from omegaconf import DictConfig, OmegaConf

from ssd_bench.errors import ConfigError
from ssd_bench.model.arithmetic import FORCED
from ssd_bench.model.checkpoint import EMBEDDED, Checkpoint
from ssd_bench.records.header import RunHeader
from ssd_bench.records.pack import pack
from ssd_bench.records.reader import Run, find_runs, load_run
from ssd_bench.records.schema import ANSWER, DIGESTS, PAIR, SCHEMAS
from ssd_bench.reproduce import again, verdict
from ssd_bench.reproduce.finding import DIFFERENT, OPEN, REPRODUCED, Report
from ssd_bench.reproduce.recorded_config import config_again
from ssd_bench.reproduce.report import record_folders, report_text, reproduce
from ssd_bench.results.evidence import Steadiness
from ssd_bench.run.plan import Plan, plan
from tests.runs import executed, program
from tests.synthetic import unit, write_run

PROMPTS, HIT = 3, 1  # prompts of the record, and the one that is damaged
TOKENS = 40
THREADS = min(2, len(os.sched_getaffinity(0)))
PARTS = ["outputs", "layer sets and steps", "M and α", "modelled time", "measured speedup", "score"]


@dataclass(frozen=True)
class Bench:
    """A record, its second run, and the latter's plan.

    Attributes:
        header: the second run's run.json before its first prompt.
        config: of the second run, as text.
        clean: report on the undamaged record.
    """

    run: Run
    second: Path
    planned: Plan
    header: Mapping[str, Any]
    config: str
    clean: Report


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """A record made with two threads, reproduced with one."""
    folder = tmp_path_factory.mktemp("reproduce")
    options = ("task=gsm8k", f"limit={PROMPTS}", f"decode.max_new_tokens={TOKENS}", f"hardware.threads={THREADS}")
    run = executed(folder / "runs", "method=swift", *options)
    run = load_run(edited(run, folder / "steady" / run.path.name, steady))
    assert run.steps["layer_set_id"].nunique() > 1, "the damages need a set to swap"
    clean = reproduce(run.path, None, {"hardware.threads": "1"}, folder / "again")
    (second,) = [path.parent for path in (folder / "again").rglob("run.json")]
    planned = again.SecondRun.of(run, {}, folder / "planned")
    config = OmegaConf.to_yaml(config_again(run.header, {}, "runs")[0])
    return Bench(run, second, planned.plan, planned.header, config, clean)


@pytest.fixture
def repeated(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """The bench, with the existing second run for the same config."""

    def planned_once(cfg: DictConfig, arguments: list[str]) -> Plan:
        same = OmegaConf.to_yaml(OmegaConf.merge(cfg, {"runs_dir": "runs"})) == bench.config
        return bench.planned if same else plan(cfg, arguments)

    monkeypatch.setattr(again, "plan", planned_once)
    monkeypatch.setattr(again, "initial_header", lambda planned: bench.header)
    monkeypatch.setattr(again, "execute", lambda planned: bench.second)
    return bench


def verdicts(content: Report) -> dict[str, str]:
    return {part.part: part.verdict for part in content.parts}


def test_threads_change_nothing_but_times(bench: Bench) -> None:
    found = verdicts(bench.clean)
    assert found.pop("measured speedup") in ((OPEN,) if THREADS > 1 else (OPEN, REPRODUCED))
    assert found == {name: REPRODUCED for name in PARTS if name != "measured speedup"}
    assert not bench.clean.faults and bench.clean.is_reproduced
    different = {difference.name for difference in bench.clean.differences}
    assert different <= {"model.threads", "provenance.code.git_sha"}
    assert "REPRODUCED" in report_text(bench.clean) and "NOT REPRODUCED" not in report_text(bench.clean)


def test_instructions_and_a_sample_change_nothing_but_times(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole command on the record's pack, as on a CPU without vectors beyond the baseline."""
    assert pack(bench.run.path.parent, tmp_path / "packed.zip") == 1
    monkeypatch.setenv(FORCED, "generic")
    monkeypatch.chdir(tmp_path)
    process = program("reproduce", "record=packed.zip", "sample=2", "hardware.threads=1", "out=report.json")
    assert process.returncode == 0, process.stdout + process.stderr
    (content,) = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["records"]
    assert content["reproduced"] and (content["prompts"], content["total"]) == (2, PROMPTS)
    results = {part["part"]: part for part in content["parts"]}
    assert [name for name in results if results[name]["verdict"] == REPRODUCED] == [*PARTS[:4], "score"]
    assert results["outputs"]["again"] == "4 equal, 0 near-ties, 0 mismatches"
    assert results["modelled time"]["recorded"] == results["modelled time"]["again"]
    isa = [row for row in content["differences"] if row["name"] == "model.arithmetic.isa"]
    is_other = bench.run.header.model.arithmetic["isa"] != "generic"
    assert [row["here"] for row in isa] == ["generic"] * is_other


def test_answers_that_one_run_lacks_are_mismatches_and_leave_the_others_equal(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [unit(i) for i in range(3)])
    fewer = replace(run, prompts=run.prompts[run.prompts["prompt_index"] == 0])
    outputs, *_ = verdict.verdicts(run, fewer, cast(again.Deviations, None), False)  # equal outputs need no model
    assert (outputs.verdict, outputs.again) == (DIFFERENT, "2 equal, 0 near-ties, 4 mismatches")


Tables = dict[str, pd.DataFrame]
Header = dict[str, Any]
Damage = Callable[[Tables, Header], object]
Reproduced = Callable[..., Report]


def rows(frame: pd.DataFrame, arm: str | None = "method") -> pd.Series:
    """Return the damaged prompt's rows."""
    hit = frame["prompt_index"] == HIT
    return hit if arm is None else hit & (frame["arm"] == arm)


def at(frame: pd.DataFrame, number: int = 1) -> Any:
    return frame.index[rows(frame)][number]


def changed(table: str, column: str, edit: Callable[[Any], Any], number: int = 0) -> Damage:
    """Return the damage of one value in the method's rows of the damaged prompt."""

    def damage(tables: Tables, header: Header) -> None:
        frame = tables[table]
        frame.at[at(frame, number), column] = edit(frame.at[at(frame, number), column])

    return damage


def entry(name: str, value: Any) -> Damage:
    def damage(tables: Tables, header: Header) -> None:
        *path, last = name.split(".")
        for part in path:
            header = header[part]
        header[last] = value(header[last]) if callable(value) else value

    return damage


def token_everywhere(tables: Tables, header: Header) -> None:
    """Change a token in both arms, with texts, so that nothing in the record contradicts it."""
    prompts, checkpoint = tables["prompts"], Checkpoint(EMBEDDED / "miniature")
    for label in prompts.index[rows(prompts, None)]:
        ids = [int(token) for token in prompts.at[label, "output_ids"]]
        ids[5] = 300 if ids[5] != 300 else 301
        prompts.at[label, "output_ids"] = ids
        prompts.at[label, "text"] = checkpoint.text(ids)


def set_everywhere(tables: Tables, header: Header) -> None:
    """Exchange a set's skipped attention for another, so that all counts stay."""
    sets = tables["layer_sets"]
    used = tables["steps"].loc[rows(tables["steps"]), "layer_set_id"].dropna().iloc[0]
    label = sets.index[sets["layer_set_id"] == used][0]
    skipped = [int(block) for block in sets.at[label, "skip_attn"]]
    free = next(block for block in range(int(sets.at[label, "n_layers"])) if block not in skipped)
    sets.at[label, "skip_attn"] = sorted([free, *skipped[1:]])


def other_set(tables: Tables, header: Header) -> None:
    """Let one step of the damaged prompt name another set of the record."""
    steps = tables["steps"]
    drafting = steps.index[rows(steps) & steps["layer_set_id"].notna()][1]
    steps.at[drafting, "layer_set_id"] = (steps.at[drafting, "layer_set_id"] + 1) % len(tables["layer_sets"])


def faster_step(tables: Tables, header: Header) -> None:
    """Remove nine tenths of a step's time from it and its answer; a busy machine may have made it slow."""
    steps, prompts = tables["steps"], tables["prompts"]
    saved = steps.at[at(steps), "verify_ms"] * 0.9
    steps.at[at(steps), "verify_ms"] -= saved
    for name in ("verify_ms", "decode_ms"):
        prompts.at[at(prompts, 0), name] -= saved


def without_ar(tables: Tables, header: Header) -> None:
    for name in ("prompts", "steps", "work"):
        tables[name] = tables[name][~rows(tables[name], "ar")]


def row_less(table: str, number: int = 1) -> Damage:
    def damage(tables: Tables, header: Header) -> None:
        tables[table] = tables[table].drop(index=at(tables[table], number))

    return damage


def everywhere(column: str, value: object) -> Damage:
    """Return the damage of a column in both arms."""

    def damage(tables: Tables, header: Header) -> None:
        tables["prompts"].loc[rows(tables["prompts"], None), column] = value

    return damage


def together(*damages: Damage) -> Damage:
    return lambda tables, header: [damage(tables, header) for damage in damages]


def longer(value: float) -> float:
    return value * 5 + 1


DAMAGES: dict[str, tuple[Damage, str, int | None]] = {
    "a token everywhere": (token_everywhere, "outputs: ", HIT),
    "a text": (changed("prompts", "text", lambda text: f"{text}x"), "text differs", HIT),
    "a score": (changed("prompts", "score", lambda score: 0.5), "score is 0.5", HIT),
    "an ending": (changed("prompts", "finish_reason", lambda reason: "context"), "finish_reason is context", HIT),
    "a verdict": (changed("prompts", "lossless", lambda verdict: "bug"), "lossless is bug", HIT),
    "a shorter time": (changed("prompts", "decode_ms", lambda ms: ms / 2), "decode_ms is", HIT),
    "a longer time": (changed("prompts", "decode_ms", longer), "decode_ms is", HIT),
    "the times of a step and its answer": (faster_step, "verify_ms is shorter than its calls", HIT),
    "an arm less": (without_ar, "its row is missing", HIT),
    "a step less": (row_less("steps"), "step does not count from 1", HIT),
    "another set of the record": (other_set, "layer set", HIT),
    "another set": (set_everywhere, "layer sets and steps: ", HIT),
    "a count of drafted tokens": (
        together(*(changed("steps", name, lambda n: n + 1, 1) for name in ("draft_len", "tree_nodes"))),
        "draft_len",
        HIT,
    ),
    "why a draft stopped": (changed("steps", "stop_reason", lambda reason: "budget"), "stop_reason is budget", HIT),
    "launches of a call": (changed("work", "launches", lambda n: n + 1, 2), "launches is", HIT),
    "a call less": (row_less("work", 3), "modelled time: ", HIT),
    "the tokens of a prompt": (everywhere("prompt_sha256", "0" * 64), "prompt_sha256 is 0000", HIT),
    "the name of a prompt": (everywhere("prompt_id", "another"), "prompt_id is another", HIT),
    "the hash of a table": (entry(f"{DIGESTS}.steps", "0" * 64), "steps.parquet: its SHA-256", None),
    "the seed": (entry("seed", 99), "seed is 99", None),
    "a score over all": (entry("scores.method", lambda scores: dict.fromkeys(scores, 0.25)), "is 0.25", None),
    "the key": (entry("content_key", "0" * 64), "run_id is", None),
    "the tolerance": (entry("tie_tolerance", 5.0), "tie_tolerance is 5.0", None),
    "the blocks": (entry("model.n_layers", 17), "n_layers is 17", None),
}
"""Damage -> what it does, what the report says, and the prompt that it names."""


def edited(run: Run, folder: Path, edit: Damage, rehashed: bool = True) -> Path:
    """Write an edited copy of a record, with or without the edited tables' SHA-256."""
    shutil.copytree(run.path, folder)
    header = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    tables = {name: frame.copy(deep=True) for name, frame in run.tables.items()}
    edit(tables, header)
    for name, frame in tables.items():
        if not frame.equals(run.tables[name]):
            table = pa.Table.from_pandas(frame, SCHEMAS[name], preserve_index=False)
            pq.write_table(table, folder / f"{name}.parquet")
            if rehashed:
                header[DIGESTS][name] = hashlib.sha256((folder / f"{name}.parquet").read_bytes()).hexdigest()
    (folder / "run.json").write_text(json.dumps(header), encoding="utf-8")
    return folder


def steady(tables: Tables, header: Header) -> None:
    """Let the decode loop take as long as on an idle machine, whatever this one did while the record was made."""
    prompts = tables["prompts"]
    parts = prompts[["draft_ms", "verify_ms", "policy_ms"]].sum(axis=1)
    counts = tables["steps"].groupby(list(ANSWER)).size().reindex(prompts.set_index(list(ANSWER)).index).to_numpy()
    prompts["decode_ms"] = parts + 0.01 * counts * (parts / counts).min()


@pytest.fixture
def reproduced(repeated: Bench, tmp_path: Path) -> Reproduced:
    """Return a function that compares an edited record with the existing second run, or checks it without one."""

    def compared(edit: Damage, sample: int | None = None, rehashed: bool = True) -> Report:
        return reproduce(edited(repeated.run, tmp_path / "record", edit, rehashed), sample, {}, tmp_path / "again")

    return compared


@pytest.mark.parametrize("name", DAMAGES)
def test_every_damage_is_named_with_its_part_and_prompt(
    name: str, reproduced: Reproduced, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the damaged tables' SHA-256 matches run.json."""
    damage, text, prompt = DAMAGES[name]
    if name == "a longer time":  # of a record of a busy machine it is a note
        monkeypatch.setattr(Steadiness, "contamination", "")
    content = reproduced(damage)
    findings = [*content.faults, *(finding for part in content.parts for finding in part.findings)]
    named = [finding.key and finding.key[0] for finding in findings if text in str(finding)]
    assert not content.is_reproduced and named and (prompt is None or prompt in named), report_text(content)
    further_prompts = {f.key[0] for f in findings if f.key is not None} - {prompt}
    assert not further_prompts or name in ("another set", "the blocks"), "a set may have drafted for several prompts"


@pytest.mark.parametrize("name", ["a score", "a step less", "another set", "a call less", "an arm less"])
def test_a_damage_without_a_new_hash_is_named_without_a_run(name: str, reproduced: Reproduced) -> None:
    content = reproduced(DAMAGES[name][0], 0, rehashed=False)
    changed_files = {fault.part for fault in content.faults if "SHA-256" in fault.text}
    assert changed_files and changed_files <= {f"{table}.parquet" for table in SCHEMAS}
    assert not content.is_reproduced


def slower(factor: float, chosen: Callable[[pd.DataFrame], Any]) -> Damage:
    """Return longer decode times of some answers on a busy machine, with a run's time that has room for them."""

    def damage(tables: Tables, header: Header) -> None:
        tables["prompts"].loc[chosen(tables["prompts"]), "decode_ms"] *= factor
        header |= {"others_share": 0.9, "wall_s": 1e6}

    return damage


@pytest.mark.parametrize(("rows", "share"), [([0], 0.3), ([1, 4], 100.0)], ids=str)
def test_pauses_of_a_busy_machine_are_notes(rows: list[int], share: float, reproduced: Reproduced) -> None:
    content = reproduced(slower(1 + share, lambda prompts: rows))
    assert content.is_reproduced, report_text(content)
    assert sum("times the time of its steps" in note and "unreliable" in note for note in content.notes) == len(rows)


def test_a_pause_of_an_idle_machine_is_a_fault(reproduced: Reproduced, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Steadiness, "contamination", "")  # nor are there slow steps
    content = reproduced(slower(1.5, lambda prompts: [2]), 0)
    assert [fault.key[0] for fault in content.faults if fault.key is not None] == [1], report_text(content)


@pytest.mark.parametrize(("factor", "arms"), [(10.0, ["ar"]), (1.6, ["method"]), (2.0, [*PAIR])], ids=str)
def test_longer_times_of_a_whole_arm_are_a_fault_on_any_machine(
    factor: float, arms: list[str], reproduced: Reproduced
) -> None:
    content = reproduced(slower(factor, lambda prompts: prompts["arm"].isin(arms)), 0)
    assert not content.is_reproduced
    named = [fault.text for fault in content.faults]
    assert [text for text in named if f"every answer of arm {arms[0]}" in text], report_text(content)


def test_a_run_is_not_shorter_than_its_parts(bench: Bench, reproduced: Reproduced) -> None:
    spent = float(bench.run.prompts[["prefill_ms", "decode_ms"]].sum(axis=None)) / 1e3
    content = reproduced(entry("wall_s", 0.9 * spent), 0)
    assert [fault for fault in content.faults if "wall_s is" in fault.text] and not content.is_reproduced


@pytest.mark.parametrize("sample", [2, None])
def test_the_record_of_a_second_run_is_itself_reproduced(sample: int | None, bench: Bench, tmp_path: Path) -> None:
    folder = bench.second
    if sample is not None:
        assert reproduce(bench.run.path, sample, {}, tmp_path / "kept").prompts == sample
        (folder,) = find_runs(tmp_path / "kept")
    content = reproduce(folder, None, {}, tmp_path / "again")
    assert not content.faults and content.is_reproduced, report_text(content)
    assert content.prompts == content.total == (sample or PROMPTS)


def test_a_record_with_fewer_prompts_is_no_sample(reproduced: Reproduced) -> None:
    def shorter(tables: Tables, header: Header) -> None:
        header["domains"] = header["domains"][:1]
        for name in ("prompts", "steps", "work"):
            tables[name] = tables[name][tables[name]["prompt_index"] == 0]

    content = reproduced(shorter, 0)
    assert [fault for fault in content.faults if "domains is" in fault.text], report_text(content)


def test_every_fault_is_named_not_only_the_first(reproduced: Reproduced) -> None:
    names = ("a text", "a shorter time", "the seed", "why a draft stopped")
    content = reproduced(together(*(DAMAGES[name][0] for name in names)))
    texts = [str(fault) for fault in content.faults]
    assert all(any(part in text for text in texts) for part in ("text differs", "decode_ms is", "seed is 99"))
    assert verdicts(content)["layer sets and steps"] == DIFFERENT


def test_another_config_is_another_run(bench: Bench, tmp_path: Path) -> None:
    folder = edited(bench.run, tmp_path / "record", entry("config.method.draft_len", 3))
    content = reproduce(folder, 1, {}, tmp_path / "again")
    assert not content.faults, "nothing in the record contradicts the config"
    assert verdicts(content)["layer sets and steps"] == DIFFERENT and not content.is_reproduced


def test_a_recorded_profile_decides_which_layers_are_skipped(tmp_path: Path) -> None:
    """A record with a profile from a machine with attentions 100 times as slow as MLPs."""
    times = "{t_mlp_ms: 0.01, t_attn_slope_ms: 0.001, t_attn_intercept_ms: 1.0}"
    method = ("method=knapspec", "method.interval=8", "method.capture_steps=1", f"hardware.latency={times}")
    run = executed(tmp_path / "runs", *method, "task=gsm8k", "limit=1", "decode.max_new_tokens=48")
    header = json.loads((run.path / "run.json").read_text(encoding="utf-8"))
    header["config"]["hardware"]["latency"], header["latency"]["source"] = None, "measured"
    for slower, expected in ((1, REPRODUCED), (10_000, DIFFERENT)):
        header["latency"]["t_mlp_ms"] *= slower
        (run.path / "run.json").write_text(json.dumps(header), encoding="utf-8")
        content = reproduce(run.path, None, {}, tmp_path / f"again{slower}")
        assert verdicts(content)["layer sets and steps"] == expected


def test_options_that_are_unknown_here_are_left_out(reproduced: Reproduced) -> None:
    content = reproduced(together(entry("config.method.vanished", 1), entry("config.bygone", True)))
    notes = "\n".join(content.notes)
    assert "left out: method.vanished" in notes and "left out: bygone" in notes
    assert content.is_reproduced, report_text(content)


def test_other_weights_are_not_run(reproduced: Reproduced) -> None:
    content = reproduced(entry("model.weights", "0" * 16))
    assert not content.parts and "set model.path to the recorded weights" in content.stopped


def test_nothing_is_run_for_an_empty_sample(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(again, "execute", lambda planned: pytest.fail("it was run"))
    content = reproduce(bench.run.path, 0, {}, tmp_path)
    assert content.is_reproduced and content.stopped and not content.parts


def test_a_damaged_file_is_a_fault_and_an_absent_record_an_error(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("steps.parquet", "run.json"):
        folder = edited(bench.run, tmp_path / name, together())
        (folder / name).write_bytes((folder / name).read_bytes()[:100])
        process = program("reproduce", f"record={folder}")
        assert process.returncode == 1 and name in process.stdout
    assert pack(bench.run.path.parent, tmp_path / "packed.zip") == 1
    cut = (tmp_path / "packed.zip").read_bytes()
    (tmp_path / "packed.zip").write_bytes(cut[: len(cut) // 2])
    process = program("reproduce", "record=packed.zip")
    assert process.returncode == 1 and "intact pack" in process.stdout
    assert program("reproduce").returncode == program("reproduce", "record=absent").returncode == 2
    for option in ("sample=-1", "seed=3", "hardware.threads=9999"):
        assert program("reproduce", f"record={bench.run.path}", option).returncode == 2, option


def test_only_places_may_be_set(bench: Bench) -> None:
    with pytest.raises(ConfigError, match=r"method\.seed"):
        config_again(bench.run.header, {"method.seed": "1"}, "runs")


def test_a_sign_for_interpolation_in_a_prompt_is_text(bench: Bench) -> None:
    header = json.loads((bench.run.path / "run.json").read_text(encoding="utf-8"))
    header["config"]["model"]["template"]["system"] = "costs ${x} and ${oc.env:HOME}"
    cfg, _ = config_again(RunHeader.of(header), {}, "runs")
    assert OmegaConf.to_container(cfg, resolve=True)["model"]["template"]["system"] == "costs ${x} and ${oc.env:HOME}"  # type: ignore[call-overload,index]


def test_a_folder_of_records_is_reproduced_record_by_record(bench: Bench) -> None:
    folders, reports = record_folders(str(bench.run.path.parent))
    assert folders == [bench.run.path] and not reports
