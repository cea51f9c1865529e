"""Advice on a model and a machine: breaking even, whose acceptance counts, and refusals."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from ssd_bench.cli import dispatch
from ssd_bench.commands import advise as command
from ssd_bench.contract.window import Window
from ssd_bench.cost.machine import Profile
from ssd_bench.cost.reference import reference_machine
from ssd_bench.cost.roofline import simulated_machine, simulated_names
from ssd_bench.cost.shapes import shape_named
from ssd_bench.errors import ConfigError
from ssd_bench.predict import advise
from ssd_bench.predict.acceptance import Acceptance, Steps, reported_speedups
from ssd_bench.predict.advise import WIDTH
from ssd_bench.predict.break_even import AIMS, LONGEST, SHARES, Drafts
from ssd_bench.predict.question import machine_named, parse_question
from ssd_bench.predict.replay import predict
from ssd_bench.records.files import read_header
from ssd_bench.results.text import TOY_RUN
from tests import synthetic
from tests.exhibit_runs import make
from tests.predict.test_replay import LATENCY
from tests.runs import python

Capture = pytest.CaptureFixture[str]
MODELS = ("smollm2_135m", "llama3_1_8b", "llama2_70b")
CONFIG: dict[str, object] = {"model_type": "llama", "num_hidden_layers": 24, "hidden_size": 2048}
CONFIG |= {"num_attention_heads": 16, "num_key_value_heads": 4, "intermediate_size": 5632}
CONFIG |= {"vocab_size": 64000, "max_position_embeddings": 8192}


def simulations() -> Iterator[Steps]:
    """Every simulated GPU with a small, a middle and a large model; and a profile, whose draft has a start."""
    for model in MODELS:
        shape = shape_named(model)
        for name in simulated_names():
            yield Steps(simulated_machine(name, shape), shape.n_layers)
    yield Steps(Profile(LATENCY), 16)


def test_the_acceptance_that_breaks_even_gives_a_speedup_of_1() -> None:
    found = 0
    for steps in simulations():
        for share in SHARES:
            drafts = Drafts(steps, steps.draft_ms(share))
            for aim in AIMS:
                if (needed := drafts.needed(aim)) is None:
                    assert drafts.best(1.0)[0] < aim
                    continue
                acceptance, length = needed
                made = steps.speedup(Acceptance(acceptance, LONGEST, length), share)  # a whole draft at every step
                assert (made, drafts.best(acceptance)[0]) == pytest.approx((aim, aim), abs=1e-6)
                found += 1
    assert found > 30


def test_more_acceptance_never_gives_less_and_more_skipped_never_drafts_dearer() -> None:
    for steps in simulations():
        every = [Drafts(steps, steps.draft_ms(share)) for share in SHARES]
        for drafts in every:
            speeds = [drafts.best(acceptance)[0] for acceptance in np.linspace(0, 1, 41)]
            assert speeds == sorted(speeds)
        assert [drafts.token for drafts in every] == sorted((drafts.token for drafts in every), reverse=True)
        ceilings = [drafts.best(1.0)[0] for drafts in every]
        assert ceilings == sorted(ceilings)


def test_a_window_costs_what_its_positions_do_and_a_lookup_nothing() -> None:
    for steps in simulations():
        window = Window(4, 252)
        long, short = (replace(steps, context=context) for context in (32_768, 256))
        assert long.draft_ms(0.0, window) == pytest.approx(short.draft_ms(0.0))
        assert short.draft_ms(0.0, window) == short.draft_ms(0.0) and long.draft_ms(0.0, window) < long.draft_ms(0.0)
        # reading less of the cache pays more where there is more of it
        narrow, wide = (Drafts(long, long.draft_ms(0.0, one)) for one in (window, Window(4, 4092)))
        assert narrow.best(1.0)[0] > wide.best(1.0)[0] > Drafts(long, long.draft_ms(0.0)).best(1.0)[0]
        lookup = Drafts(steps, 0.0, by_layers=False)
        assert lookup.token == 0 and lookup.best(1.0)[0] > Drafts(steps, steps.draft_ms(max(SHARES))).best(1.0)[0]
        needed = lookup.needed(1.0)
        if needed is not None and needed[1] == 1:  # 1 + α accepted tokens of a verification of two nodes
            assert needed[0] == pytest.approx(max(0.0, lookup.verify[0] / steps.plain_ms - 1), abs=1e-6)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (["hardware=sim_h100"], "model"),
        (["model=llama3_1_8b"], "hardware"),
        (["model=llama3_1_8b", "hardware=h100"], "hardware"),
        (["model=llama3_1_8b", "hardware=h200/gpt2"], "hardware"),
        (["model=llama3_1_8b", "hardware=h200/qwen3_8b"], "hardware"),
        (["model=llama3_1_8b", "hardware=h200/llama3_1_8b", "devices=2"], "hardware"),
        (["model=none", "hardware=sim_h100"], "model"),
        (["model=conf", "hardware=sim_h100"], "model"),
        (["model=local", "hardware=sim_h100"], "model.path"),
        (["model=local", "model.path=nowhere", "hardware=sim_h100"], "model.path"),
        (["model=llama3_1_8b", "model.path=conf", "hardware=sim_h100"], "model.path"),
        (["model=llama3_1_8b", "hardware=sim_h100", "task=gsm9k"], "task"),
        (["model=llama3_1_8b", "hardware=sim_h100", "context=0"], "context"),
        (["model=llama3_1_8b", "hardware=sim_h100", "devices=two"], "devices"),
        (["model=llama2_70b", "hardware=sim_h100", "devices=1"], "devices"),
        (["model=llama3_1_8b", "hardware=own", "devices=2"], "devices"),
        (["model=llama3_1_8b", "hardware=sim_h100", "runs_dir=nowhere"], "runs_dir"),
        (["model=llama3_1_8b", "hardware=sim_h100", "speed=2"], "option"),
    ],
)
def test_what_cannot_be_used_is_refused_before_anything_is_read(
    arguments: list[str], field: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(command, "usable_runs", lambda asked: pytest.fail("records were read"))
    with pytest.raises(ConfigError) as error:
        parse_question(arguments)
    assert error.value.field == field and (error.value.expected or error.value.reason)
    assert dispatch(["advise", *arguments]) == 2 and field in capsys.readouterr().err


def answered(capsys: Capture, *arguments: str) -> str:
    assert dispatch(["advise", *arguments]) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= WIDTH and "MEASURED" in printed.split("\n\n")[0]
    return printed


def test_a_model_of_the_papers_has_their_best_speedup(tmp_path: Path, capsys: Capture) -> None:
    given = ("model=llama3_1_8b", f"runs_dir={tmp_path}")
    printed = answered(capsys, *given, "hardware=sim_h100")
    own = [row for row in reported_speedups() if row.model == "llama318b"]
    assert " ".join(printed.split()).startswith(f"Nothing MEASURED: no usable run of llama3_1_8b in {tmp_path}")
    assert "MEASURED by a paper, on its machine" in printed and "Skipping pays on NVIDIA H100" in printed
    best = max(own, key=lambda row: row.number.value).number
    assert f"{best.printed}x by {best.method} on {best.task} (α " in " ".join(printed.split())
    assert "Not known to this estimate:" in printed
    narrowed = answered(capsys, *given, "hardware=sim_h100", "task=pg19")
    assert "PG19" in narrowed and "GovReport" not in narrowed
    heads = [line.split("  ")[0] for line in printed.splitlines()]
    assert all(kind in heads for kind in ("50% skipped", "window 256", "window 1024", "lookup"))
    everywhere = answered(capsys, *given, "hardware=all")
    assert everywhere.count("PREDICTED from costs: ") == len(simulated_names())
    elsewhere = answered(capsys, *given, "hardware=sim_h100", "task=humaneval")
    assert "No paper has a speedup of this model on this task." in " ".join(elsewhere.split())


def test_measured_costs_of_the_model_count_before_the_data_sheet(tmp_path: Path, capsys: Capture) -> None:
    """Measured passes must be of exactly this model and GPU; the answer names them."""
    folder, measured = f"runs_dir={tmp_path}", "PREDICTED from costs MEASURED for llama3_1_8b on NVIDIA H200"
    printed = answered(capsys, "model=llama3_1_8b", "hardware=sim_h200", folder)
    assert measured in printed and "Skipping pays on NVIDIA H200 for llama3_1_8b" in printed
    assert answered(capsys, "model=llama3_1_8b", "hardware=h200/llama3_1_8b", folder) == printed
    steps = Steps(reference_machine("h200/llama3_1_8b"), 32)
    assert re.search(rf"50% skipped +{steps.draft_ms(0.5) / steps.plain_ms:.3f}", printed)
    for options in (("llama3_1_8b", "sim_h100"), ("llama3_1_8b", "sim_h200", "2"), ("llama2_70b", "sim_h200")):
        model, name, *devices = options
        sheet = answered(capsys, f"model={model}", f"hardware={name}", folder, *(f"devices={n}" for n in devices))
        assert "PREDICTED from the calibrated data sheet of" in sheet and "costs MEASURED" not in sheet


def test_a_prediction_is_the_sum_of_its_work() -> None:
    """Sum by hand a machine's sublayers and the rest of a draft or verification."""
    for steps in simulations():
        machine, rows, context = steps.machine, np.array([1.0, 5.0]), np.full(2, steps.context)
        attn, mlp, rest = machine.pass_ms(rows, context)
        half = 0.5 * steps.n_layers * (attn[0] + mlp[0]) + machine.rest_ms(0)
        whole = steps.n_layers * (attn + mlp) + rest + (machine.loop_ms or 0.0)
        assert steps.draft_ms(0.5) == pytest.approx(half) and steps.plain_ms == pytest.approx(whole[0])
        assert steps.verify_ms(4) == pytest.approx(whole[1] + machine.draft_start_ms)


def test_a_config_alone_has_a_roofline(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    given = ("model=local", f"model.path={tmp_path}", f"runs_dir={tmp_path}")
    printed = answered(capsys, *given, "hardware=sim_a6000,sim_a100", "context=4096", "devices=2")
    assert f"Nothing MEASURED: no usable run of {tmp_path.name}" in printed and "Speedups of papers" not in printed
    assert printed.count("4,096 tokens of context") == 2 and "2 x NVIDIA" in printed
    assert dispatch(["advise", *given, "hardware=own"]) == 2
    assert "hardware='own'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"num_hidden_layers": 0}, "config.num_hidden_layers"),
        ({"quantization_config": {"quant_method": "gptq"}}, "model"),
    ],
)
def test_a_config_that_no_run_would_open_is_refused(
    changes: dict[str, object], field: str, tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | changes), encoding="utf-8")
    assert dispatch(["advise", "model=local", f"model.path={tmp_path}", "hardware=sim_h100"]) == 2
    told = capsys.readouterr()
    assert f"{field}=" in told.err and str(tmp_path) in told.err and len(told.err.splitlines()) == 1
    assert not told.out


def test_a_path_as_a_model_names_the_option_for_it(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    assert dispatch(["advise", f"model={tmp_path}", "hardware=sim_h100"]) == 2
    assert "model=local model.path=DIR" in capsys.readouterr().err


def test_a_context_beyond_the_models_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    for model, most in (("local", 8192), ("smollm2_135m", 8192), ("miniature", 4096)):
        path = [f"model.path={tmp_path}"] if model == "local" else []
        given = [f"model={model}", *path, "hardware=sim_h100", f"runs_dir={tmp_path}"]
        assert parse_question([*given, f"context={most - 1}"]).context == most - 1
        for context in (most, 99999999):
            with pytest.raises(ConfigError, match=f"context={context} .*below {most}"):
                parse_question([*given, f"context={context}"])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records of the miniature with two methods, and some that say nothing of it."""
    folder = tmp_path_factory.mktemp("advise")
    size = {"name": "miniature", "n_layers": 16, "n_params": shape_named("miniature").n_params, "toy": True}
    given = {"model": size, "latency": asdict(LATENCY), "task": {"name": "gsm8k"}, "config": {"method": {}}}
    make(folder, "one", accept=0.9, method="swift", **given)
    make(folder, "two", accept=0.8, method="swift", **given)
    make(folder, "three", accept=0.1, method="clasp", **given)
    make(folder, "elsewhere", **given | {"task": {"name": "pg19"}})
    make(folder, "sampled", **given | {"decode": {"mode": "sample"}})
    make(folder, "plain", **given | {"method": "ar"})
    make(folder, "other", model={"name": "smollm2_135m"})
    make(folder, "older", **given | {"model": size | {"n_params": 7}})
    return folder


def test_records_of_the_model_count_and_no_others(runs: Path, capsys: Capture) -> None:
    asked = parse_question(["model=miniature", "hardware=sim_h100", "task=gsm8k", f"runs_dir={runs}"])
    used, left = advise.usable_runs(asked)
    assert {run.path.name for run in used} == {"one", "two", "three"} and sum(left.values()) == 5
    machine = machine_named("sim_h100", asked.shape, None)
    table = advise.record_medians(used, machine, "sim_h100").set_index("method")
    both = [predict(run, "sim_h100").speedup for run in used if run.header.method == "swift"]
    assert table.index.tolist() == ["swift", "clasp"] and table.loc["swift", "predicted"] == np.median(both)
    assert table["runs"].tolist() == [2, 1] and table["measured"].notna().all()
    printed = answered(capsys, "model=miniature", "hardware=sim_h100", "task=gsm8k", f"runs_dir={runs}")
    text = " ".join(printed.split())
    assert text.startswith("MEASURED on another machine, Imaginary 9000: the best of your runs of miniature on gsm8k")
    assert text.index("PREDICTED for the same steps on NVIDIA H100") < text.index("breaks even") and TOY_RUN in text
    parts = ("1 (model smollm2_135m: acceptance does not carry over", "1 (other task)", "another version")
    assert all(part in text for part in (*parts, "2 (AR, or sampled)"))


def test_runs_that_are_not_lossless_do_not_count(runs: Path, tmp_path: Path, capsys: Capture) -> None:
    header = read_header(runs / "one")
    given = {name: header[name] for name in ("model", "latency", "task", "method")}
    for name, bad in (("good", 0), ("bad", 1)):
        units = [synthetic.unit(i, accept=0.9 if bad else 0.5) for i in range(3)]
        for _, own in units[:bad]:
            own.prompt.lossless = "bug"
        synthetic.write_record(tmp_path / name, units, run_id=name, **given)
    for machine in ("own", "sim_h100"):
        options = ["model=miniature", f"hardware={machine}", f"runs_dir={tmp_path}"]
        used, left = advise.usable_runs(parse_question(options))
        assert [run.path.name for run in used] == ["good"] and sum(left.values()) == 1
        text = " ".join(answered(capsys, *options).split())
        assert "Records not used: 1 (not lossless: outputs differ from AR's beyond rounding)." in text


def test_a_papers_name_of_a_task_is_its_own(runs: Path, capsys: Capture) -> None:
    """Two papers have a stream of five different tasks."""
    given = ("model=llama2_13b", "hardware=sim_a6000", f"runs_dir={runs}")
    asked = [parse_question([*given, f"task={name}"]) for name in ("stream", "stream_swift")]
    assert [{row.number.paper for row in advise._rows(one)} for one in asked] == [{"knn-ssd"}, set()]
    assert "CALCULATED by a paper" in answered(capsys, *given, "task=stream")


def test_the_machine_of_the_records_has_their_profile(runs: Path, capsys: Capture) -> None:
    given = ("model=miniature", "hardware=own", f"runs_dir={runs}")
    printed = answered(capsys, *given)
    assert "latency profile of Imaginary 9000" in printed and "pg19" in printed
    used, _ = advise.usable_runs(parse_question(given))
    machine = advise.recorded_machine(parse_question(given), used)
    assert machine.loop_ms is not None and machine.loop_ms >= 0
    assert advise.record_medians(used, machine, "own")["predicted"].notna().all()
    assert printed.startswith("MEASURED on this machine: the best of your runs of miniature is")
    assert dispatch(["advise", "model=llama3_1_8b", *given[1:]]) == 2 and "hardware='own'" in capsys.readouterr().err


def test_runs_on_the_machine_in_question_come_first(tmp_path: Path, capsys: Capture) -> None:
    """A faster run elsewhere does not precede a measurement on this GPU."""
    size = {"name": "miniature", "n_layers": 16, "n_params": shape_named("miniature").n_params, "device": "cuda"}
    given = {"latency": asdict(LATENCY), "task": {"name": "gsm8k"}, "config": {"method": {}}}
    for name, accept, gpu in (("here", 0.5, "NVIDIA A100-SXM4-80GB"), ("fast", 0.95, "NVIDIA H100 80GB HBM3")):
        device = {"device": {"cpu": "Imaginary 9000", "cores": 2, "gpus": [gpu]}}
        make(tmp_path, name, accept=accept, model=size, provenance=device, **given)
    printed = answered(capsys, "model=miniature", "hardware=sim_a100", f"runs_dir={tmp_path}")
    assert printed.startswith("MEASURED on this machine: the best of your runs of miniature")
    rows = [line for line in printed.splitlines() if "gsm8k" in line and "  " in line]
    assert "this one" in rows[0] and "NVIDIA H100 80GB HBM3" in rows[1]
    assert not advise.ran_on("NVIDIA H100 80GB HBM3", "sim_a100", "") and advise.ran_on("NVIDIA H200", "h200/x", "")


def test_a_local_model_has_its_own_runs_and_the_costs_of_its_sizes(tmp_path: Path, capsys: Capture) -> None:
    """Another folder's runs are not this model's; passes of the same sizes were measured on an H200."""
    sizes = {"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8}
    sizes |= {"intermediate_size": 14336, "vocab_size": 128256, "tie_word_embeddings": False}
    folder, runs = tmp_path / "tuned", tmp_path / "runs"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG | sizes), encoding="utf-8")
    size = {"name": "local", "n_layers": 32, "n_params": shape_named("llama3_1_8b").n_params}
    for name, path in (("mine", folder), ("theirs", tmp_path / "other")):
        config = {"method": {}, "model": {"path": str(path)}}
        make(runs, name, model=size, latency=asdict(LATENCY), task={"name": "gsm8k"}, config=config)
    given = ["model=local", f"model.path={folder}", "hardware=sim_h200", f"runs_dir={runs}"]
    question = parse_question(given)
    assert question.machines == [("sim_h200", reference_machine("h200/llama3_1_8b"))]
    used, left = advise.usable_runs(question)
    assert [run.path.name for run in used] == ["mine"] and left == {"another folder of the model": 1}
    text = " ".join(answered(capsys, *given).split())
    assert text.startswith("MEASURED on another machine") and "the best of your runs of tuned is" in text
    assert "costs MEASURED for llama3_1_8b on NVIDIA H200" in text


def test_an_unknown_gpu_names_the_known_ones_and_how_to_add_one(capsys: Capture) -> None:
    assert dispatch(["advise", "model=llama3_1_8b", "hardware=sim_b200"]) == 2
    message = capsys.readouterr().err
    assert all(name in message for name in simulated_names())
    assert "conf/hardware/sim_h100.yaml" in message and "bandwidth_gb_s" in message and "docs/advise.md" in message


def test_it_says_how_it_is_used_and_loads_no_torch(tmp_path: Path) -> None:
    lines = [["advise", "--help"], ["advise", "model=llama3_1_8b", "hardware=sim_h100", f"runs_dir={tmp_path}"]]
    code = f"import sys; from ssd_bench.cli import dispatch; codes = [dispatch(line) for line in {lines}]"
    done = python("-c", f"{code}; sys.exit(any(codes) or 'torch' in sys.modules)")
    assert done.returncode == 0 and "python -m ssd_bench advise" in done.stdout, done.stderr
    assert "Skipping pays on NVIDIA H100" in done.stdout
