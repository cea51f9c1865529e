"""Hugging Face `generate` as a run's third arm: present, separate, resumed with its unit, and in no other numbers."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from ssd_bench.commands import explain
from ssd_bench.engine.sampling import Decoding
from ssd_bench.errors import ConfigError
from ssd_bench.predict.replay import with_baseline
from ssd_bench.records.reader import Run
from ssd_bench.records.writer import RunWriter
from ssd_bench.results.digest import summarise
from ssd_bench.results.rows import arm_rows, paired_rows
from ssd_bench.run import run as running
from ssd_bench.run.hardware import Hardware
from ssd_bench.run.hugging_face import HFProcess, HuggingFace
from tests.run.test_hugging_face import NONE, hardware
from tests.runs import equal, executed, local_model, planned
from tests.synthetic import unit, with_hf, write_run

GIGABYTE = 2**30
OPTIONS = ("baseline=hf", "method=fixed_layers", "limit=3", "decode.max_new_tokens=9", "hardware.warmup=1")


@pytest.fixture(scope="module")
def record(small_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with a separate process for the third arm, while this one holds a gigabyte."""
    held = torch.zeros(GIGABYTE // 4, dtype=torch.int32)
    made = executed(tmp_path_factory.mktemp("apart"), *local_model(small_checkpoint), *OPTIONS)
    assert held.nbytes < hardware().peak_bytes()
    return made


def test_all_arms_decode_every_prompt_and_say_the_same_in_float32(record: Run) -> None:
    assert len(record.prompts) == 9
    for _, rows in record.prompts.groupby("prompt_index"):
        assert set(rows["arm"]) == {"ar", "hf", "method"} and sorted(rows["order"]) == [0, 1, 2]
    hf, ar = (arm_rows(record.prompts, arm).reset_index() for arm in ("hf", "ar"))
    assert hf["output_ids"].map(list).equals(ar["output_ids"].map(list)) and hf["text"].equals(ar["text"])
    assert hf["finish_reason"].equals(ar["finish_reason"])
    assert (hf["prefill_ms"] > 0).all() and (hf["decode_ms"] > 0).all()


def test_it_is_there_for_its_speed_only(record: Run) -> None:
    hf = arm_rows(record.prompts, "hf")
    assert hf[["score", "lossless", "divergence_index"]].isna().all(axis=None)
    assert not hf[["draft_ms", "verify_ms", "policy_ms"]].to_numpy().any()
    assert set(record.steps["arm"]) == {"ar", "method"} and set(record.header.scores) == {"ar", "method"}
    assert set(arm_rows(record.prompts, "method")["lossless"]) == {"identical"}


def test_its_copy_of_the_weights_is_counted_apart(record: Run) -> None:
    about = record.header.hf
    assert about.keys() == {"class", "attention", "weight_bytes", "load_ms"} and about["class"] == "LlamaForCausalLM"
    assert about["weight_bytes"] == pytest.approx(record.header.model.weight_bytes, rel=0.1)
    peaks = arm_rows(record.prompts, "hf")["peak_bytes"]
    assert peaks.between(max(2**26, about["weight_bytes"]), GIGABYTE).all(), "nothing of its parent's"


def test_a_killed_run_goes_on_with_all_three_arms(
    record: Run, small_checkpoint: Path, threaded: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And has another process's tokens."""
    add = RunWriter.add

    def killed(writer: RunWriter, prompt_index: int, *rest: Any) -> None:
        if prompt_index == 1:
            raise KeyboardInterrupt
        add(writer, prompt_index, *rest)

    monkeypatch.setattr(RunWriter, "add", killed)
    with pytest.raises(KeyboardInterrupt):
        executed(tmp_path, *local_model(small_checkpoint), *OPTIONS)
    monkeypatch.setattr(RunWriter, "add", add)
    resumed = executed(tmp_path, *local_model(small_checkpoint), *OPTIONS)
    assert len(resumed.header.resumed) == 1
    equal(resumed, record)


def test_sampling_gives_each_arm_the_prompts_own_seed(small_checkpoint: Path, threaded: None, tmp_path: Path) -> None:
    options = (*local_model(small_checkpoint), *OPTIONS, "decode=sample", "repeats=2", "limit=1")
    found = [arm_rows(executed(tmp_path / name, *options).prompts, "hf") for name in "ab"]
    outputs = [[tuple(ids) for ids in rows["output_ids"]] for rows in found]
    assert outputs[0] == outputs[1] and outputs[0][0] != outputs[0][1]
    assert found[0]["lossless"].isna().all()


def test_what_it_cannot_load_is_refused_before_anything_is_decoded(
    small_checkpoint: Path, threaded: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(small_checkpoint, folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config |= {"attn_implementation": "flash_attention_2"}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    monkeypatch.setattr(running, "load_model", lambda plan: pytest.fail("the engine was loaded"))
    with pytest.raises(ConfigError, match=r"transformers can load .*FlashAttention2"):
        executed(tmp_path / "runs", *local_model(folder), *OPTIONS)
    assert not (tmp_path / "runs").exists()


def test_it_takes_one_device(small_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two = replace(hardware(), devices=(torch.device("cuda", 0), torch.device("cuda", 1)))
    monkeypatch.setattr(Hardware, "of", lambda **_: two)
    with pytest.raises(ConfigError, match="a single device"):
        planned(tmp_path, *local_model(small_checkpoint), "baseline=hf")


def test_a_process_says_so_if_it_fails_or_ends(checkpoints: dict[str, Path], threaded: None) -> None:
    arguments = (checkpoints["llama"], hardware(), Decoding(max_new_tokens=2), NONE, 64)
    with HFProcess(*arguments) as stock:
        assert stock.generate([1, 2]).output == HuggingFace(*arguments).generate([1, 2]).output
        with pytest.raises(RuntimeError, match="generate failed: IndexError"):
            stock.generate([10**6])
        with pytest.raises(RuntimeError, match=r"ended with code 0.*baseline=paired"):
            stock.generate([1, 2])


def test_no_number_of_the_pair_changes_with_a_third_arm(tmp_path: Path) -> None:
    units = [unit(i, r) for i in range(6) for r in range(2)]
    two = write_run(tmp_path / "two", units)
    three = write_run(tmp_path / "three", [with_hf(one, new_tokens=40 + i % 3) for i, one in enumerate(units)])
    before, after = summarise(two).row, summarise(three).row
    assert before.items() <= {**after, "run_dir": before["run_dir"]}.items()
    pd.testing.assert_frame_equal(paired_rows(three.prompts).reset_index(drop=True), two.prompts)
    assert explain.explain(three) == explain.explain(two)
    pd.testing.assert_frame_equal(with_baseline(three).steps, with_baseline(two).steps)
    pd.testing.assert_frame_equal(with_baseline(three).work, with_baseline(two).work)
