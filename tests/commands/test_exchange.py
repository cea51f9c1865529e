"""Records in other tools' forms and back: same numbers, sets that draft again, faults named by line."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ssd_bench import load_runs
from ssd_bench.cli import dispatch
from ssd_bench.exchange import answers, layers
from ssd_bench.records.reader import Run
from ssd_bench.results.definitions import alpha_by_position, main_set
from ssd_bench.results.digest import summarise
from ssd_bench.results.prompt_table import of_steps
from ssd_bench.results.rows import arm_rows
from tests.runs import executed, local_model, program
from tests.synthetic import unit, with_hf, write_run

SERVER = {
    "mean_acceptance_length": 53 / 43,
    "draft_acceptance_rate": 10 / 129,
    "acceptance_histogram": [39, 1, 0, 3],
    "num_spec_steps": 43,
    "num_accepted_draft_tokens": 10,
    "num_draft_tokens": 129,
    "num_spec_tokens": 3,
}


LONG = {
    "acceptance_histogram": [2, 0],
    "num_spec_steps": 2,
    "num_accepted_draft_tokens": 0,
    "num_draft_tokens": 2,
    "num_spec_tokens": 1,
}
"""Two steps with a token each; both tokens in one step would be too long."""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    units = [unit(i, repeat) for repeat in range(2) for i in range(3)]
    return write_run(tmp_path / "run", units, finished_at="2026-12-01T10:00:00+00:00")


def written(folder: Path, *told: object) -> Path:
    file = folder / "answers.jsonl"
    file.write_text("".join(f"{json.dumps(one)}\n" for one in told), encoding="utf-8")
    return file


def response(**changes: Any) -> dict[str, Any]:
    return {"choices": [], "metrics": {"ttft": 1.0, "speculative_decoding": SERVER | changes}}


def assert_round_trip(run: Run, folder: Path) -> None:
    file = folder / "answers.jsonl"
    file.write_text("\n".join(answers.answer_lines(run)), encoding="utf-8")
    found, steps = answers.read_answers(file), arm_rows(run.steps, "method")
    drafting = steps[steps["draft_len"] > 0]
    assert found.exact and found.answers == len(arm_rows(run.prompts, "method"))
    assert found.m == of_steps("M", steps) and found.alpha == of_steps("alpha", steps)
    expected = 1 + drafting["accepted_len"].mean() if len(drafting) else None
    assert found.per_step == (None if expected is None else pytest.approx(expected))
    own = alpha_by_position(steps)
    pd.testing.assert_frame_equal(found.by_position[list(own.columns)], own, check_dtype=False)
    for text in file.read_text(encoding="utf-8").splitlines():
        told = json.loads(text)["metrics"]["speculative_decoding"]
        assert len(told["acceptance_histogram"]) == told["num_spec_tokens"] + 1 == steps["draft_len"].max() + 1
        assert sum(told["acceptance_histogram"]) == told["num_spec_steps"] == len(told["per_step_accepted"])
        if told["num_spec_steps"]:
            more = told["num_accepted_draft_tokens"] / told["num_spec_steps"]
            assert told["mean_acceptance_length"] == pytest.approx(1 + more)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 99), st.integers(2, 60), st.floats(0, 1)), min_size=1, max_size=4))
def test_what_is_written_is_read(prompts: list[tuple[int, int, float]]) -> None:
    by_index = {index: (tokens, accept) for index, tokens, accept in prompts}
    with tempfile.TemporaryDirectory() as folder:
        units = [unit(index, 0, tokens, accept) for index, (tokens, accept) in sorted(by_index.items())]
        assert_round_trip(write_run(Path(folder) / "run", units), Path(folder))


def test_a_found_set_drafts_in_another_run(small_checkpoint: Path, tmp_path: Path) -> None:
    """End to end: a run exports its set, whose options draft with it, and say so in their record."""
    short = (*local_model(small_checkpoint), "task=gsm8k", "decode.max_new_tokens=16")
    first = executed(tmp_path / "a", *short, "limit=2", "method=layerskip", "method.exit_layer=2")
    assert_round_trip(first, tmp_path)
    file = tmp_path / "set.json"
    assert dispatch(["export", f"run={first.path}", f"to={file}", "form=layer_set"]) == 0
    kept = json.loads(file.read_text(encoding="utf-8"))
    assert kept["method"] == "layerskip" and kept["settings"]["exit_layer"] == 2
    assert kept["model"]["weights"] == first.header.model.weights and kept["draft_share"] == 1.0
    second = executed(tmp_path / "b", *short, "limit=1", *kept["overrides"])
    assert main_set(second) == main_set(first)
    assert second.header.config["method"]["skip_attn"] == kept["skip_attn"]


def test_lists_as_released_codes_read_them(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "skip_layers.json"
    end = program("export", f"run={run.path}", f"to={file}", "form=layer_list", "set=1")
    entry, layer_set = json.loads(file.read_text(encoding="utf-8"))["tiny_toy"], run.layer_set(1)
    assert (tuple(entry["attention"]), tuple(entry["mlp"])) == (layer_set.skip_attn, layer_set.skip_mlp)
    flags = entry["skip_set"]
    assert [i for i, flag in enumerate(flags[::2]) if flag] == entry["attention"]
    assert [i for i, flag in enumerate(flags[1::2]) if flag] == entry["mlp"] and len(flags) == 16
    assert end.returncode == 0 and layers.draft_command(layer_set) in end.stdout


def test_the_set_that_drafted_most_is_the_default(run: Run) -> None:
    assert run.layer_set(layers.find_set_id(run, None)) == main_set(run)
    shares = [layers.set_with_origin(run, int(one))["draft_share"] for one in run.layer_sets["layer_set_id"]]
    assert sum(shares) == pytest.approx(1) and max(shares) == shares[layers.find_set_id(run, None)]


def test_every_shape_of_a_servers_answers_is_read(tmp_path: Path) -> None:
    """A response, its metrics, or counts alone; without arrays exact if every step drafted the maximum."""
    found = answers.read_answers(written(tmp_path, response(), response()["metrics"], SERVER))
    assert (found.answers, len(found.steps), found.m, found.exact) == (3, 129, None, True)
    assert found.per_step == pytest.approx(1.2325581395348837) and found.alpha == pytest.approx(0.07751937984496124)
    assert found.by_position["alpha"].tolist() == pytest.approx([4 / 43, 3 / 4, 1])
    assert found.by_position["reached"].tolist() == pytest.approx([4 / 43, 3 / 43, 3 / 43])


def test_shorter_drafts_give_a_bound_unless_their_lengths_are_known(tmp_path: Path) -> None:
    bound = program("acceptance", f"file={written(tmp_path, response(num_draft_tokens=120))}").stdout
    assert "≥ 0.750" in bound and "0.083" in bound  # 3 of at most 4 tested at 2; 10 of 120 drafted
    by_length = {"1": [9, 0], "0": [0], "3": [30, 1, 0, 3]}
    lengths = {"num_draft_tokens": 111, "acceptance_histogram_by_draft_length": by_length}
    known = answers.read_answers(written(tmp_path, response(**lengths)))
    assert known.exact and known.by_position["tested"].tolist() == [43, 4, 3]


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ("{", "not valid JSON"),
        ("[1]", "no acceptance"),
        ('{"choices": [], "metrics": null}', "no acceptance"),
        (response(num_draft_tokens=-1), "num_draft_tokens is -1"),
        (response(num_spec_tokens=4), "acceptance_histogram has 4 numbers"),
        (response(num_spec_steps=42), "num_spec_steps is 42"),
        (response(num_accepted_draft_tokens=11), "num_accepted_draft_tokens is 11"),
        (response(num_draft_tokens=130), "num_draft_tokens is 130"),
        (response(per_step_accepted=[1], per_step_drafted=[1]), "do not have the acceptance_histogram"),
        (response(per_step_accepted=[1]), "two lists"),
        (response() | {"ssd_bench": {"steps": 1}}, "ssd_bench is"),
        ("[" * 100_000, "not valid JSON"),
        (f'{{"num_spec_steps": 1{"0" * 5000}}}', "not valid JSON"),
        (
            response(num_spec_steps=10**12, acceptance_histogram=[10**12, 0, 0, 0]),
            "num_spec_steps is 1000000000000, more",
        ),
        (response(acceptance_histogram_by_draft_length={"3": [10**12, 0, 0, 0]}), "its steps are 1000000000000, more"),
        (response(**LONG, per_step_drafted=[2, 0], per_step_accepted=[0, 0]), "drafted 2 tokens, num_spec_tokens is 1"),
        (response(**LONG, acceptance_histogram_by_draft_length={"2": [1], "0": [1]}), "drafted 2 tokens"),
    ],
)
def test_bad_lines_are_named(told: Any, why: str, tmp_path: Path) -> None:
    file = written(tmp_path, response())
    with open(file, "a", encoding="utf-8") as more:
        more.write("\n" + (told if isinstance(told, str) else json.dumps(told)) + "\n")
    end = program("acceptance", f"file={file}")
    assert end.returncode == 2 and f"{file}:3" in end.stderr and why in end.stderr and end.stderr.count("\n") == 1


def test_a_run_stands_beside_the_file(run: Run, tmp_path: Path) -> None:
    lines = program("acceptance", f"file={written(tmp_path, response())}", f"run={run.path}").stdout.splitlines()
    alpha = of_steps("alpha", arm_rows(run.steps, "method"))
    row = next(line.split() for line in lines if line.startswith("α, accepted"))
    assert row[-2:] == ["0.078", f"{alpha:.3f}"]
    heads = [line.split("  ")[0] for line in lines[2:]]
    assert heads.index("α at 5") < heads.index("to 1")  # positions that only one of the two has keep their place
    assert next(line for line in lines if line.startswith("α at 5")).split()[-2] == "–"


@pytest.mark.parametrize(
    "bad",
    ["run=nowhere", "form=pkl", "arm=hf", "arm=none", "set=9", "force=maybe", "to=nowhere/file", "nonsense=1"],
)
def test_bad_options_write_nothing(bad: str, run: Run, tmp_path: Path) -> None:
    name, file = bad.partition("=")[0], tmp_path / "out"
    given = {"run": f"run={run.path}", "to": f"to={file}", name: bad}
    given |= {"form": "form=layer_set"} if name == "set" else {}
    end = program("export", *given.values())
    assert end.returncode == 2 and name in end.stderr and not file.exists()


def test_options_of_the_other_form_are_refused(run: Run, tmp_path: Path) -> None:
    line = ["export", f"run={run.path}", f"to={tmp_path / 'out'}"]
    assert dispatch([*line, "set=0"]) == dispatch([*line, "form=layer_set", "arm=method"]) == 2
    assert dispatch(["export", f"run={run.path}"]) == dispatch(["acceptance"]) == 2 and not (tmp_path / "out").exists()


def test_a_file_that_exists_is_left_alone(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "kept"
    file.write_text("mine", encoding="utf-8")
    end = program("export", f"run={run.path}", f"to={file}")
    assert end.returncode == 2 and "force=true" in end.stderr and file.read_text(encoding="utf-8") == "mine"
    assert program("export", f"run={run.path}", f"to={file}", "force=true").returncode == 0
    assert answers.read_answers(file).answers == 6


def test_arms_without_drafts(tmp_path: Path) -> None:
    """AR drafts nothing; Hugging Face's steps are unknown; without layers there is no set."""
    run = write_run(tmp_path / "run", [with_hf(unit(0))])
    told = json.loads(next(answers.answer_lines(run, "ar")))["metrics"]["speculative_decoding"]
    assert told["acceptance_histogram"] == [0] and told["mean_acceptance_length"] == 1.0
    assert told["draft_acceptance_rate"] == 0.0 and told["per_step_accepted"] == []
    none = replace(run, steps=run.steps.assign(layer_set_id=pd.array([None] * len(run.steps), dtype="Int32")))
    with pytest.raises(ValueError, match="drafted with layer sets; this one did not"):
        layers.find_set_id(none, None)


def test_runs_as_a_frame(tmp_path: Path) -> None:
    method = {"_target_": "methods.swift.Swift", "name": "swift", "draft_len": 4}
    made = [
        write_run(tmp_path / "runs" / "one", [unit(0), unit(1)], method="swift", config={"method": method}),
        write_run(tmp_path / "runs" / "two", [unit(0)]),
    ]
    (tmp_path / "runs" / "two" / "steps.parquet").write_bytes(b"torn")
    with pytest.warns(UserWarning, match="left out .*two") as told:
        frame = load_runs(tmp_path / "runs")
    assert told[0].filename == __file__  # of the caller
    assert len(frame) == 1 and frame["run_dir"].tolist() == [str(made[0].path)]
    summary = summarise(made[0]).row
    assert frame["M"].item() == summary["M"] and set(summary) | {"settings"} == set(frame.columns)
    assert frame["settings"].str["draft_len"].tolist() == [4]
    pd.testing.assert_frame_equal(load_runs(made[0].path), frame)
    with pytest.raises(ValueError, match="path"):
        load_runs(tmp_path / "nowhere")
