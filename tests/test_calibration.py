"""Calibration of GPUs by data sheet: settings that the measurements give, and the error that the document states."""

from __future__ import annotations

from pathlib import Path

import pytest

from ssd_bench.commands.replay import main
from ssd_bench.conf import CONF
from ssd_bench.cost import roofline
from ssd_bench.errors import ConfigError
from ssd_bench.predict import calibration

ROOT = Path(__file__).parents[1]
SHAPES = ROOT / "runs" / "reference" / "shapes"


def test_data_sheets_are_calibrated_on_the_measured_gpu() -> None:
    """The settings of conf/hardware are those that the committed measurements give; other GPUs have the same."""
    results = calibration.shapes_results(SHAPES / "nvidia-h200")
    measured = roofline.gpu_named("sim_h200")
    assert calibration.fitted_gpu(measured, results) == measured
    for name in roofline.simulated_names():
        if name not in ("sim_h200", "sim_mi300x"):
            gpu = roofline.gpu_named(name)
            assert all(getattr(gpu, field) == getattr(measured, field) for field in calibration.FITTED)
        assert "fitted on H200 measurements" in (CONF / "hardware" / f"{name}.yaml").read_text(encoding="utf-8")


def test_the_error_of_the_data_sheet_is_that_of_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    errors = calibration.sheet_errors(calibration.shapes_results(SHAPES))
    assert len(errors) == 59 and errors["speedup"].abs().median() < 0.012 and errors["token"].abs().median() < 0.035
    assert errors["speedup"].abs().max() < 0.12 and errors["token"].abs().max() < 0.08
    assert main(["validate", f"shapes={SHAPES}"]) == 0
    table = capsys.readouterr().out.split("\n\n")[1].strip()
    assert table in (ROOT / "docs" / "advise.md").read_text(encoding="utf-8")


def test_measurements_without_a_data_sheet_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="results of `shapes`"):
        calibration.shapes_results(tmp_path)
    with pytest.raises(ConfigError, match="data sheet"):
        calibration.sheet_of("Imaginary 9000")
    for text in ("{", "[]", "{}"):
        (tmp_path / "bad.json").write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=r"bad\.json"):
            calibration.shapes_results(tmp_path)
