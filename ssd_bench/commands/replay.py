"""Predict the speed of a recorded run on another machine.

Every number is predicted, unless it is called measured.

`python -m ssd_bench replay run=RUN_DIR hardware=sim_h100 [model=llama2_13b] [devices=4]`
    hardware: own (the machine of the record), GPU/MODEL (a model whose passes were measured on a GPU), sim_<gpu> (a GPU
        by its data sheet), several with commas, or all for every simulated GPU
    model: another model's sizes on simulated GPUs, by name or as a path to its config.json; drafts and acceptance are
        the record's
    devices: number of simulated GPUs; default: the fewest that hold the weights

`python -m ssd_bench replay validate [runs_dir=runs]`
    predict recorded runs from their own latency profiles, and compare with the measured speeds

`python -m ssd_bench replay validate shapes=runs/reference/shapes`
    predict measured results of `shapes` from the data sheet of their GPU, and compare with the measured speeds
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from ssd_bench import tables
from ssd_bench.console import count, options, run_tool
from ssd_bench.cost.roofline import simulated_names
from ssd_bench.errors import NOT_GIVEN, ConfigError
from ssd_bench.metrics.text import REHEARSAL, format_number, format_percent
from ssd_bench.paths import local_path, reference_hint
from ssd_bench.predict import calibration, validation
from ssd_bench.predict.replay import OVERHEAD, Prediction, predict
from ssd_bench.records.pack import records_folder
from ssd_bench.records.reader import find_runs, load_run, read_each

OPTIONS, VALIDATE_OPTIONS = ("run", "hardware", "model", "devices"), ("runs_dir", "shapes")


def main(arguments: Sequence[str]) -> int:
    """Run the command `replay`; return the exit code: 0, or 2 if an option or a run is invalid."""
    return run_tool(_replay, __doc__, arguments)


def _replay(arguments: Sequence[str]) -> None:
    if arguments[:1] == ["validate"]:
        values = options(arguments[1:], VALIDATE_OPTIONS)
        if "shapes" in values:
            _validate_sheets(local_path("shapes", values["shapes"]))
        else:
            _validate(records_folder("runs_dir", values.get("runs_dir", "runs")))
        return
    values = options(arguments, OPTIONS)
    for name in ("run", "hardware"):
        if name not in values:
            raise ConfigError(name, NOT_GIVEN, "run=RUN_DIR and hardware=sim_<gpu>, or `validate`")
    devices = count("devices", values["devices"]) if "devices" in values else None
    run = load_run(records_folder("run", values["run"]))
    machines = simulated_names() if values["hardware"] == "all" else values["hardware"].split(",")
    model = values.get("model")
    print(predictions_text([predict(run, machine, model, devices) for machine in machines]))
    if run.header.model.toy:
        print(f"\n{REHEARSAL}")


def predictions_text(predictions: Sequence[Prediction]) -> str:
    """Return the predictions of one run on some machines, as text for a terminal."""
    rows = [
        (
            p.machine,
            format_number(p.tokens_per_s["ar"], 1),
            format_number(p.tokens_per_s["method"], 1),
            format_number(p.speedup),
            format_number(p.speedup_frozen),
            *(format_percent(p.shares[part]) for part in ("draft", "verify", "policy", "loop")),
        )
        for p in predictions
    ]
    heads = ["machine", "AR tok/s", "method tok/s", "speedup", "without overhead"]
    heads += ["draft", "verify", "overhead", "loop"]
    sources = {p.overhead: p.machine for p in reversed(predictions)}
    lines = [
        f"{name}: {OVERHEAD[source]}" if len(sources) > 1 else OVERHEAD[source] for source, name in sources.items()
    ]
    return "\n".join(
        [
            *dict.fromkeys(
                f"PREDICTED, not measured: {p.model}, upper bound {format_number(p.ceiling)} times AR (M)\n"
                f"{p.acceptance}"
                for p in predictions
            ),
            "",
            tables.terminal(pd.DataFrame(rows, columns=heads)),
            "",
            "draft, verify, overhead, loop: shares of the time.",
            *lines,
        ]
    )


def _validate(runs_dir: Path) -> None:
    runs, left_out = [], 0
    for run in read_each(find_runs(runs_dir), load_run):
        if validation.is_replayable(run):
            runs.append(run)
        else:
            left_out += 1
    if not runs:
        expected = "a folder with complete runs that have baseline=paired or hf and a measured latency profile"
        raise ConfigError("runs_dir", str(runs_dir), expected + reference_hint(runs_dir))
    print("Speed of each run: measured, and PREDICTED from the latency profile in its own record.")
    print("Drafts, acceptance and method overhead are those of the record.\n")
    print(validation.validation_text(validation.validate(runs)))
    if left_out:
        print(f"\nleft out: {left_out} runs without a baseline or without a profile of passes over several nodes")


def _validate_sheets(folder: Path) -> None:
    results = calibration.shapes_results(folder)
    print("Drafts at imposed acceptance and skipped share, over AR: measured, and PREDICTED for the same drafts from")
    print("the data sheet of the GPU (conf/hardware). This tests the costs; no speedup of a paper is compared.\n")
    print(tables.terminal(calibration.error_table(calibration.sheet_errors(results))))
