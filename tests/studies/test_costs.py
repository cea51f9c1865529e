"""Cost tables: the committed files are the recorded results' fit, and predict the measurements."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import yaml

from ssd_bench.contract.layer_set import BITS
from ssd_bench.cost.reference import reference_machine
from ssd_bench.errors import ConfigError
from studies.costs import files, fit, searches
from studies.costs.__main__ import main
from tests.cost.test_reference import MODELS, result
from tests.runs import ROOT

# Largest errors of the predicted speedups: median, and of any row. AR of Llama-3.2-1B and Llama-2-13B varied by 8 and
# 5 % from row to row, which no table can predict.
THRESHOLDS = dict.fromkeys(("llama3_1_8b", "qwen3_8b", "qwen3_32b"), (0.015, 0.04))
THRESHOLDS |= {"llama3_2_1b": (0.03, 0.08), "llama2_13b": (0.015, 0.06)}
SEARCH_ERROR, LEFT_OUT_ERROR = 0.07, 0.17


@cache
def fitted() -> dict[str, Any]:
    """Return the files' content from the recorded results, by model."""
    machines = files.machines([result(model) for model in MODELS])
    return {model: yaml.safe_load(text) for model, (text, _) in machines.items()}


@pytest.mark.parametrize("model", MODELS)
def test_files_are_the_fit_of_the_recorded_results(model: str) -> None:
    committed = yaml.safe_load((ROOT / "conf" / "costs" / "h200" / f"{model}.yaml").read_text(encoding="utf-8"))
    content = fitted()[model]
    assert committed.keys() == content.keys()
    for key, value in content.items():
        if key in ("host", "draft"):
            assert committed[key] == pytest.approx(value, rel=2e-4)
        elif key in ("passes", "eager"):
            assert np.array(committed[key], float) == pytest.approx(np.array(value, float), rel=2e-4)
        else:
            assert committed[key] == value


def test_every_value_has_a_source() -> None:
    content = fitted()["llama3_1_8b"]
    kinds = {name: text.split(":")[0] for name, text in content["sources"].items()}
    assert {*kinds.values()} == {"measured", "fitted", "assumed"}
    assert {*content["host"], *content["draft"], "eager"} <= set(kinds)
    assert "measured" not in {kinds[name] for name in ("call_ms", "passes, slope by context", "tree_node_ms")}
    assert {kinds[name] for name in ("step_ms", "draft_rest_ms", "passes, total of captured")} == {"measured"}
    # results with sweeps have measured everything but the assumptions and 8-bit products
    fitted_with_sweeps = {name for name, text in files.sources(True).items() if text.startswith("fitted")}
    assert fitted_with_sweeps == {f"int{bits}_{name}" for bits in BITS for name in ("passes", "draft_rest_ms")}


@pytest.mark.parametrize("model", MODELS)
def test_predictions_of_measured_speedups(model: str) -> None:
    frame = fit.predicted_rows(reference_machine(f"h200/{model}"), result(model))
    median, largest = THRESHOLDS[model]
    assert len(frame) == len(result(model)["rows"])
    assert frame["error"].abs().median() <= median and frame["error"].abs().max() <= largest
    assert frame["error_ms"].abs().median() <= median


@pytest.mark.parametrize("model", MODELS)
def test_predictions_of_measured_searches(model: str) -> None:
    frame = fit.predicted_searches(reference_machine(f"h200/{model}"), result(model))
    assert list(frame["search"]) == ["knapspec", "clasp"] and (frame["error"].abs() < SEARCH_ERROR).all()


def test_searches_of_a_model_outside_the_fit() -> None:
    results = [fit.ShapesResult.of(result(model)) for model in MODELS]
    errors = searches.left_out_errors([(item.model, item.content) for item in results])
    assert max(abs(error) for row in errors for error in row.values()) < LEFT_OUT_ERROR


def test_work_of_searches() -> None:
    assert searches.knapsack_rows(2, 1).tolist() == [0, 40, 60, 60]
    work = searches.knapspec_work(2, 30.0)
    assert work.calls.tolist() == [0, 1, 1, 1] and (work.attn_rows + work.mlp_rows).mean() == pytest.approx(30)
    for model in MODELS:
        content = result(model)
        work = searches.clasp_work(reference_machine(f"h200/{model}").n_layers)
        assert round(work.attn_rows.mean()) == content["search"]["clasp"]["tokens"]


def test_results_that_cannot_be_fitted() -> None:
    first, second = result("llama3_1_8b"), result("qwen3_8b")
    with pytest.raises(ConfigError, match="results of one GPU"):
        fit.fit_costs([first, second | {"machine": "NVIDIA A100"}])
    with pytest.raises(ConfigError, match="conf/model"):
        fit.fit_costs([first | {"model": "gpt2"}])


def test_bad_options_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, name in (([], "results"), (["results=/nowhere"], "results"), (["results=a", "costs=b"], "option")):
        assert main(arguments) == 2
        assert name in capsys.readouterr().err
