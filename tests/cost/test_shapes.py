"""Speeds of known sizes with random weights, and imposed acceptance: what is drawn is what a paper says."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean

import pytest
import torch

from ssd_bench.bench import cost_sweeps, limits, measures, shapes
from ssd_bench.bench.imposed import Imposed, ImposedEngine
from ssd_bench.cli import dispatch
from ssd_bench.conf import read_yaml
from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.contract.method import Context, LayerDraft
from ssd_bench.contract.shape import Shape
from ssd_bench.cost import profiling
from ssd_bench.cost.reference import ReferenceMachine
from ssd_bench.cost.shapes import shape_named
from ssd_bench.engine.engine import SCRATCH
from ssd_bench.engine.probe import ModelProbe
from ssd_bench.engine.sampling import Decoding
from ssd_bench.model import drawn
from ssd_bench.model.backend import select
from ssd_bench.predict.acceptance import Acceptance, ReportedSpeedup, reported_speedups
from ssd_bench.predict.gpu_results import stated_for
from studies.costs.__main__ import main as fit_costs
from tests.cost.test_latency import LEAST
from tests.runs import REFERENCE


@pytest.fixture(scope="module")
def engine() -> ImposedEngine:
    arch = drawn.architecture("qwen3_tiny", Shape(6, 32, 4, 2, 16, 48, 97), 256)
    backend = select("cpu", torch.float32, "torch")
    pack = backend.kind.operators(backend.arithmetic).pack
    decoder = backend.kind(backend.arithmetic, drawn.draw(arch, torch.float32, torch.device("cpu"), pack))
    cache = decoder.new_cache(256 + SCRATCH)
    return ImposedEngine(decoder, cache, Decoding(max_new_tokens=60), frozenset(), ModelProbe(decoder, cache))


def test_few_steps_have_the_acceptance_that_was_asked_for(engine: ImposedEngine) -> None:
    method = Imposed(LayerSet(6, frozenset({3})), Acceptance.of(0.8, 3.1, 12))
    drafts = []
    for step in range(1, 41):
        draft = method.propose(Context(step, step, [1], 20))
        drafts.append((method.accepted, draft.max_len if isinstance(draft, LayerDraft) else 0))
    accepted, length = mean(a for a, _ in drafts), mean(d for _, d in drafts)
    assert accepted + 1 == pytest.approx(3.1, rel=0.04) and accepted / length == pytest.approx(0.8, rel=0.04)


def test_the_engine_accepts_what_was_drawn(engine: ImposedEngine) -> None:
    """Right drafts are whole, wrong ones give one token a step."""
    layer_set = LayerSet(6, frozenset(range(3, 9)))
    for right, emitted in ((1.0, 5), (0.0, 1)):
        engine.method = Imposed(layer_set, Acceptance(right, 1.0, 4))
        made = engine.generate(engine.method, [1, 2, 3])
        engine.method = None
        assert {step.emitted for step in made.steps[:-1]} == {emitted}
        assert all(step.layer_set == layer_set for step in made.steps)


def test_rows_of_papers(engine: ImposedEngine) -> None:
    """Every speedup of the papers' tables but averages is there once, with what imposes it or why nothing does."""
    found = list(reported_speedups())
    ids = [row.number.id for row in found]
    assert len(ids) == len(set(ids))
    assert {row.number.paper for row in found} == {"knapspec", "swift", "conflayers", "knn-ssd"}
    for row in found:
        assert bool(row.missing) == (row.share is None or not (row.alpha or row.tokens))
        # nothing is assumed: a share has a source, and a row without one says so
        assert row.share is None or row.share.source
    shares = {(row.number.paper, row.number.method): row.share.source for row in found if row.share is not None}
    assert shares == {
        ("knapspec", "CLaSp"): "released script",
        ("swift", "SWIFT"): "Table 4",
        ("conflayers", "SWIFT"): "Table 3",
        ("conflayers", "ConfLayers"): "Table 3",
        ("knn-ssd", "KNN-SSD"): "released sets, mean",
        ("knn-ssd", "Self-SD(Mix)"): "released set",
    }
    measured = shapes._imposed(engine, next(row for row in found if not row.missing), [1, 2, 3])
    assert measured["acceptance"] == "imposed" and measured["speedup"] > 0
    with pytest.raises(AssertionError):
        shapes._imposed(engine, ReportedSpeedup(found[0].number, "x"), [1])


def test_a_papers_speedup_stands_only_next_to_drafts_that_it_states(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Drafts at half of the sublayers tell nothing of CLaSp at a third of the blocks, nor of an unstated share."""
    assert dispatch(["shapes", f"read={REFERENCE / 'shapes'}"]) == 0
    printed = capsys.readouterr().out
    measured, _, modelled = printed.partition("Papers' speedups, MODELLED on NVIDIA H200")
    stated = 0
    for path in sorted((REFERENCE / "shapes").rglob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        n_layers = shape_named(result["model"]).n_layers
        for row in result["rows"]:
            own = stated_for(row, n_layers)
            stated += own is not None
            assert own is None or row["of_paper"] == "knn-ssd"
            for change in ({"skipped": 0.2}, {"alpha": 0.5}, {"M": 9.0}, {"number": "none"}):
                assert stated_for(row | change, n_layers) is None
    lines = [line.split() for line in measured.splitlines() if line.startswith("Table")]
    assert sum(line[-2] != "–" for line in lines) == stated == 4 and len(lines) == 59
    assert measured.count("say nothing of the paper's speedup") == 5 and "KnapSpec" in modelled


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes what it prints, prints what is on record, and says what is wrong before anything is drawn."""
    for module in (shapes, limits, measures, cost_sweeps):  # how well they measure does not matter here
        monkeypatch.setattr(module, "ROUNDS", 1)
    for name, small in (("CONTEXTS", (16, 32, 10**6)), ("NODES", (1, 2, 64, 80)), ("BRANCHES", ((1, 1), (2, 4)))):
        monkeypatch.setattr(cost_sweeps, name, small)
    monkeypatch.setattr(cost_sweeps, "STEPS", 2)
    monkeypatch.setattr(limits, "SUMMED_BYTES", {"cpu": 4000})
    monkeypatch.setattr(limits, "MATRIX", {"cpu": 8})
    monkeypatch.setattr(measures, "SEARCH_CONTEXT", 128)
    for name, least in LEAST.items():
        monkeypatch.setattr(profiling, name, least)
    monkeypatch.setattr(shapes, "HF_TOKENS", 4)
    options = ["models=miniature", "device=cpu", "kernels=torch", "context=64", "tokens=8", f"out={tmp_path}"]
    assert dispatch(["shapes", *options]) == 0
    printed = capsys.readouterr().out
    (path,) = tmp_path.rglob("*.json")
    found = json.loads(path.read_text(encoding="utf-8"))
    assert found["model"] == "miniature" and not found["rows"] and str(tmp_path) not in found["provenance"]["command"]
    assert dispatch(["shapes", f"read={tmp_path}"]) == 0
    assert capsys.readouterr().out == printed
    assert list(found["sweeps"]["contexts"]) == ["16", "32"]
    assert fit_costs([f"results={tmp_path}", f"out={tmp_path}/costs"]) == 0
    (file,) = (tmp_path / "costs").rglob("miniature.yaml")
    content = read_yaml(file)
    machine = ReferenceMachine.read("cpu/miniature", content)
    names = ("call_ms", "compare_ms", "step_ms", "eager")
    assert all(content["sources"][name].startswith("measured") for name in names)
    assert [times.nodes for times in machine.latency.passes] == [*shapes.NODES, 80]
    assert [times.nodes for times in machine.eager] == [1, 8]
    assert machine.call_ms == pytest.approx(found["sweeps"]["host"]["call_ms"], rel=1e-4)
    capsys.readouterr()
    for line in ([*options[1:], "models=none"], [*options[:4], "tokens=0"], [*options[1:], f"read={tmp_path}/x"]):
        assert dispatch(["shapes", *line]) == 2
        assert line[-1].partition("=")[0] in capsys.readouterr().err
