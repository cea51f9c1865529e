"""Papers' modelled speedups, recomputed from the tables alone; acceptance, shares and costs of drafts."""

from __future__ import annotations

import csv
import json
import math
import random
import re
from dataclasses import replace
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import pytest
import yaml

from ssd_bench.papers.printed.catalogue import PaperFolder
from ssd_bench.predict.acceptance import Acceptance, Share, smallest_argument, stated_share
from tests.runs import ROOT, program

GPU, CONTEXT, DRAFT_LEN = "h200", 1024, 10
DRAWS = 40_000
KERNELS = {"attention": 25, "mask": 4, "mlp": 12, "rest": 13}  # launches of a pass (cost/roofline.py)


def read(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def words(path: str) -> str:
    return " ".join((ROOT / path).read_text(encoding="utf-8").split())


@pytest.fixture(scope="module")
def printed_rows() -> list[list[str]]:
    """Cells of the command's last two tables."""
    done = program("shapes", f"read={ROOT / 'runs/reference/shapes'}")
    assert done.returncode == 0, done.stderr
    text = done.stdout.partition("MODELLED on NVIDIA H200")[2]
    return [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()]


def cells() -> list[dict[str, Any]]:
    """CLaSp in KnapSpec's Table 2: printed α and speedup."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    with (ROOT / "ssd_bench/papers/knapspec/results.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if (row["exhibit"], row["method"]) == ("Table 2", "CLaSp"):
                found.setdefault((row["model"], row["task"]), {})[row["metric"]] = float(row["value"])
    return [{"model": model, "task": task} | values for (model, task), values in found.items()]


def choice(model: str) -> str:
    """The file of conf/model with the same letters and digits."""
    plain = re.sub("[^a-z0-9]", "", model.lower())
    (name,) = (p.stem for p in (ROOT / "conf/model").glob("*.yaml") if p.stem.replace("_", "") == plain)
    return name


def measured_ms(costs: dict[str, Any], nodes: float, blocks: float) -> tuple[float, float]:
    """A pass by a model's measured table: its blocks, and the rest."""
    sizes, slope, intercept, mlp, rest = np.array(costs["passes"]).T
    block = np.interp(nodes, sizes, slope * CONTEXT + intercept + mlp)
    return blocks * float(block), float(np.interp(nodes, sizes, rest))


def sheet_ms(gpu: dict[str, Any], shape: dict[str, Any], nodes: float, blocks: float) -> tuple[float, float]:
    """A pass by the data sheet: weights, cache and logits are read once, every kernel launched once."""
    heads, kv, size, width = (shape[key] for key in ("n_heads", "n_kv_heads", "head_dim", "width"))
    attention, mlp = 2 * width * size * (heads + kv), 3 * width * shape["intermediate"]
    head, seen = width * shape["vocab_size"], CONTEXT + nodes

    def time(n_bytes: float, flops: float, kernels: int) -> float:
        memory = n_bytes / (gpu["bandwidth_gb_s"] * 1e9 * gpu["bandwidth_efficiency"])
        compute = flops / (gpu["dense_tflops"] * 1e12 * gpu["flops_efficiency"])
        return 1e3 * max(memory, compute) + kernels * gpu["launch_us"] / 1e3

    cache_bytes = 2 * kv * size * 2 * (seen + nodes)
    block = time(
        2 * attention + cache_bytes,
        2 * nodes * attention + 4 * nodes * heads * size * seen,
        KERNELS["attention"] + (KERNELS["mask"] if nodes > 1 else 0),
    )
    block += time(2 * mlp, 2 * nodes * mlp, KERNELS["mlp"])
    weights = 2 * (shape["n_layers"] * (attention + mlp) + (1 if shape.get("tied") else 2) * head)
    devices = math.ceil(weights / (0.9 * gpu["memory_gb"] * 1e9))
    rest = time(2 * head + nodes * shape["vocab_size"] * 12, 2 * nodes * head, KERNELS["rest"])
    return blocks * block, rest + (gpu["sync_us"] + (devices - 1) * gpu["hop_us"]) / 1e3


def modelled(cell: dict[str, Any], other_share: float | None = None) -> tuple[float, float, str]:
    """Share, speedup and kind of costs of a cell: M from α, drafts that end at the first wrong token or at ten.

    The share is that of the script's blocks, or `other_share`.
    """
    name, alpha = choice(cell["model"]), cell["alpha"]
    shape = read(f"conf/model/{name}.yaml")["shape"]
    blocks = shape["n_layers"]
    share = other_share or read("conf/method/clasp_knapspec.yaml")["skip_by_layers"][blocks] / blocks
    accepted = sum(alpha**i for i in range(1, DRAFT_LEN + 1))
    drafted = sum(alpha**i for i in range(DRAFT_LEN))  # token i + 1 is drafted if the i before it are right
    if (ROOT / f"conf/costs/{GPU}/{name}.yaml").is_file():
        costs = read(f"conf/costs/{GPU}/{name}.yaml")
        draft = measured_ms(costs, 1, (1 - share) * blocks)[0] + costs["draft"]["draft_rest_ms"]
        plain, verify = (sum(measured_ms(costs, nodes, blocks)) for nodes in (1, drafted + 1))
        loop, kind = costs["host"]["step_ms"], "measured"
    else:
        gpu = read(f"conf/hardware/sim_{GPU}.yaml")["latency"]
        draft = sum(sheet_ms(gpu, shape, 1, (1 - share) * blocks))
        plain, verify = (sum(sheet_ms(gpu, shape, nodes, blocks)) for nodes in (1, drafted + 1))
        loop, kind = gpu["loop_us"] / 1e3, "data sheet"
    return share, (accepted + 1) * (plain + loop) / (drafted * draft + verify + loop), kind


def test_clasp_at_the_scripts_blocks_is_what_the_command_prints(printed_rows: list[list[str]]) -> None:
    shown = {(row[2], row[4]): row for row in printed_rows if row[:2] == ["KnapSpec", "Table 2"] and len(row) == 13}
    errors = []
    for cell in cells():
        share, speedup, kind = modelled(cell)
        errors.append(speedup / cell["speedup"] - 1)
        row = shown.pop((cell["model"], cell["task"]))
        assert row[7] == f"{share:.1%}" and row[8:10] == ["released script", kind]
        assert float(row[10]) == cell["speedup"] and float(row[11]) == pytest.approx(speedup, abs=0.0051)
        assert float(row[12].rstrip("%")) == pytest.approx(100 * errors[-1], abs=0.051)
    met = sum(abs(error) <= 0.05 for error in errors)
    (summary,) = (row for row in printed_rows if row[:3] == ["KnapSpec", "Table 2", "CLaSp"])
    assert not shown and summary[3:5] == [str(len(errors)), str(met)] == ["24", "22"]
    assert summary[5:7] == [f"{median(map(abs, errors)):.1%}", f"{median(errors):+.1%}"]
    gpu, notes = map(words, ("docs/gpu.md", "ssd_bench/papers/knapspec/notes.md"))
    for document in (gpu, notes):
        assert f"{met} of {len(errors)} cells" in document and f"{100 * median(errors):+.1f} %" in document
    assert all(f"{100 * error:+.1f} %" in gpu for error in errors if abs(error) > 0.05)


def test_one_share_for_every_model_and_a_constant_meet_fewer(printed_rows: list[list[str]]) -> None:
    def met(speedups: list[float]) -> int:
        return sum(abs(speedup / cell["speedup"] - 1) <= 0.05 for speedup, cell in zip(speedups, cells()))

    by_share = {share: met([modelled(cell, share)[1] for cell in cells()]) for share in (0.2, 0.25, 0.3, 0.5)}
    constant = met([median(cell["speedup"] for cell in cells())] * 24)
    (summary,) = (row for row in printed_rows if row[:3] == ["KnapSpec", "Table 2", "CLaSp"])
    assert summary[7:] == [str(constant), *map(str, by_share.values())]
    page = words("docs/gpu.md")
    assert by_share[0.5] == 0 and "If every model skipped half of its blocks, the model would meet none." in page
    assert f"25 % for every model meets {by_share[0.25]} cells (20 % and 30 % meet {by_share[0.2]})" in page
    assert by_share[0.2] == by_share[0.3] and f"meets {constant} cells" in page


def test_the_document_has_the_24_cells_that_the_command_prints(printed_rows: list[list[str]]) -> None:
    lines = (ROOT / "docs/gpu.md").read_text(encoding="utf-8").splitlines()
    documented = {line.split(" | ")[0].strip("| "): line for line in lines if line.startswith("|") and "→" in line}
    clasp = [row for row in printed_rows if row[:2] == ["KnapSpec", "Table 2"] and row[3] == "CLaSp"]
    shown = [row for row in clasp if len(row) == 13]
    for row in shown:
        line = documented[row[2]]
        skipped, blocks = map(int, line.split(" | ")[1].split(" of "))
        assert f"{row[10]} → {row[11]}" in line and f"| {row[9]} |" in line and f"{skipped / blocks:.1%}" == row[7]
    assert len(shown) == 24 and len(documented) == 8


def test_only_methods_with_a_source_have_a_row(printed_rows: list[list[str]]) -> None:
    methods = {(row[0], row[1], row[3]) for row in printed_rows if len(row) == 13 and row[0] != "paper"}
    assert {method for paper, _, method in methods if paper == "KnapSpec"} == {"CLaSp"}
    assert not {"DEL", "Self-SD(Fix)", "Parallel", "Lookahead"} & {method for *_, method in methods}


def test_a_printed_skip_ratio_is_the_share_of_the_released_set(printed_rows: list[list[str]]) -> None:
    """SWIFT's and ConfLayers' r counts the inner blocks, a share all blocks."""
    sets = json.loads((ROOT / "methods/published_layer_sets.json").read_text(encoding="utf-8"))
    compared = 0
    for row in printed_rows:
        if len(row) == 13 and row[0] == row[3]:  # ConfLayers in its own table, SWIFT in its own
            task = row[4].lower().replace("/", "").replace(" ", "-")
            released = sets.get(f"{row[0].lower()}/{row[2].lower()}/{task}")
            if released is not None:
                skipped = len(released["skip_attn"]) + len(released["skip_mlp"])
                assert row[7] == f"{skipped / (2 * released['n_layers']):.1%}", row
                compared += 1
    assert compared == 19


@pytest.mark.parametrize(
    ("alpha", "tokens", "draft_len"), [(0.32, None, 10), (None, 4.34, 25), (0.62, 2.17, 12), (1.0, 4.0, 12)]
)
def test_drafts_are_as_a_paper_says_drawn_or_not(alpha: float | None, tokens: float | None, draft_len: int) -> None:
    rng, acceptance = random.Random(0), Acceptance.of(alpha, tokens, draft_len)
    drafts = [acceptance.sample(rng.random(), rng.random()) for _ in range(DRAWS)]
    assert all(0 <= accepted <= drafted <= draft_len for accepted, drafted in drafts)
    accepted, length = mean(a for a, _ in drafts), mean(d for _, d in drafts)
    assert (acceptance.accepted, acceptance.drafted) == pytest.approx((accepted, length), rel=0.02)
    if tokens is not None:
        assert accepted + 1 == pytest.approx(tokens, rel=0.02)
    if alpha is not None:
        assert accepted / length == pytest.approx(alpha, rel=0.02)


def test_a_share_is_never_assumed() -> None:
    """Sources: r of the inner or of all sublayers, a preset's table, the mean of released sets; else no share."""
    skipped = {
        "CLaSp": {"preset": "clasp_knapspec", "source": "script"},
        "KNN-SSD": {"sets": ["cnndm", "gsm8k"], "models": ["LLaMA-2-13B"], "source": "sets"},
        "Mix": {"sets": ["cnndm", "none"], "source": "sets"},
    }
    plain = PaperFolder(Path("knn_ssd"), 9, {"x": "X"}, imposed={"drafts": "Table 3", "skipped": skipped})
    inner = replace(plain, skip_ratio="inner")
    assert stated_share(inner, "m", "any", 40, printed=0.45) == Share(34 / 80, "Table 3")
    assert stated_share(plain, "m", "any", 40, printed=0.45) == Share(36 / 80, "Table 3")
    assert stated_share(plain, "m", "CLaSp", 64) == Share(20 / 64, "script")
    assert stated_share(plain, "m", "CLaSp", 48) is None  # not the preset's share for other models, which is ours
    assert stated_share(plain, "LLaMA-2-13B", "KNN-SSD", 40) == Share((36 + 29) / 160, "sets")
    for model, method in (("LLaMA-2-13B-Chat", "KNN-SSD"), ("LLaMA-2-13B", "Mix"), ("LLaMA-2-13B", "DEL")):
        assert stated_share(plain, model, method, 40) is None


def test_the_least_number_that_reaches_a_value() -> None:
    assert smallest_argument(lambda x: x * x, 0.25) == pytest.approx(0.5) and smallest_argument(lambda x: x, 2.0) == 1.0
