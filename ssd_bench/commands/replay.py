"""Predict the speed of a recorded run on another machine.

Every number is predicted, unless it is called measured.

`python -m ssd_bench replay run=RUN_DIR hardware=sim_h100 [model=llama2_13b] [devices=4]`
    hardware: own (the machine of the record), GPU/MODEL (a model whose passes were measured on a GPU), sim_<gpu> (a GPU
        by its data sheet), several with commas, or all for every simulated GPU
    model: another model's sizes on simulated GPUs, by name or as a path to its config.json; drafts and acceptance are
        the record's
    devices: number of simulated GPUs; default: the fewest that hold the weights
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from ssd_bench import tables
from ssd_bench.console import count, options, tool
from ssd_bench.cost.roofline import simulated_names
from ssd_bench.predict.replay import OVERHEAD, Prediction, predict
from ssd_bench.records.pack import records_folder
from ssd_bench.records.reader import load_run
from ssd_bench.results.text import TOY_RUN, format_number, format_percent


@tool(__doc__)
def main(arguments: Sequence[str]) -> None:
    """Print the predictions."""
    expected = "run=RUN_DIR and hardware=sim_<gpu>"
    values = options(arguments, ("run", "hardware", "model", "devices"), run=expected, hardware=expected)
    devices = count("devices", values["devices"]) if "devices" in values else None
    run = load_run(records_folder("run", values["run"]))
    machines = simulated_names() if values["hardware"] == "all" else values["hardware"].split(",")
    model = values.get("model")
    print(predictions_text([predict(run, machine, model, devices) for machine in machines]))
    if run.header.model.toy:
        print(f"\n{TOY_RUN}")


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
