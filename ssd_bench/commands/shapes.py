"""Measure the speed of known model sizes on this GPU; model the papers' speedups at its costs.

`python -m ssd_bench shapes [models=llama3_1_8b,qwen3_8b] [name=value ...]`

Draws random weights in the sizes of models of conf/model, and measures times, which do not depend on the weights: AR
compared with this machine's bandwidth and with Hugging Face generate, passes over several nodes, drafts with half of
the sublayers, a change of layer set at every token, one search. Then, for each speedup that a paper reports for such a
model, it measures the speedup at the α, M and skipped share that sources state, imposed on random drafts. The text is
meaningless, so there is no check of losslessness and no score.

  models=NAME,...   choices of conf/model; default: models of the papers that fit in half of the memory
  dtype=bfloat16    dtype of weights and cache
  device=cuda       device of the model
  kernels=auto      backend that runs passes
  context=1024      tokens before the first decoded one
  tokens=128        tokens decoded per measurement
  limit=N           most speedups of papers per model; default: all
  out=runs/shapes   folder of the results, MACHINE/MODEL.json

`python -m ssd_bench shapes read=runs/reference/shapes` prints recorded results without measuring, and the papers'
speedups modelled at the costs of that GPU.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ssd_bench.bench.shapes import READ, default_models, measure_model, render, slug
from ssd_bench.console import count, options, tool
from ssd_bench.cost.shapes import known_shape
from ssd_bench.errors import ConfigError
from ssd_bench.paths import local_path, write_atomic
from ssd_bench.predict.gpu_results import read_gpu_results, sheet_of
from ssd_bench.predict.paper_speedups import modelled_text
from ssd_bench.records import provenance
from ssd_bench.run.hardware import Hardware

OPTIONS = {
    "models": "",
    "dtype": "bfloat16",
    "device": "auto",
    "kernels": "auto",
    "context": "1024",
    "tokens": "128",
    "limit": "100000",
    "out": "runs/shapes",
}


@tool(__doc__)
def main(arguments: Sequence[str]) -> None:
    """Measure, or print recorded results."""
    given_options = options(arguments, (*OPTIONS, READ))
    if READ in given_options:
        _show(local_path(READ, given_options[READ]))
        return
    settings = OPTIONS | given_options
    counts = {name: count(name, settings[name]) for name in ("context", "tokens", "limit")}
    hardware = Hardware.of(
        device=settings["device"],
        dtype=settings["dtype"],
        threads=None,
        warmup=0,
        kernels=settings["kernels"],
        isa="auto",
        latency=None,
    )
    names = settings["models"].split(",") if settings["models"] else sorted(default_models())
    for name in names:
        if known_shape(name) is None:
            raise ConfigError("models", name, "names of conf/model files that state the sizes of the model")
    machine = ", ".join(hardware.gpu_names()) or provenance.cpu_model()
    folder = local_path("out", settings["out"]) / slug(machine)
    for name in names:
        result = {"machine": machine, **counts} | measure_model(name, hardware, counts)
        folder.mkdir(parents=True, exist_ok=True)
        command_line = [argument for argument in arguments if not argument.startswith("out=")]
        result["provenance"] = provenance.collect(
            ["python", "-m", "ssd_bench", "shapes", *command_line], hardware.gpu_names()
        )
        write_atomic(folder / f"{name}.json", (json.dumps(result, indent=1) + "\n").encode())
        print(render(result), f"\n{folder / name}.json\n", sep="\n", flush=True)


def _show(folder: Path) -> None:
    results = read_gpu_results(folder)
    if not results:
        raise ConfigError(READ, str(folder), "a folder with results of this command")
    for path, result in results.items():
        print(render(result), f"\n{path}\n", sep="\n")
    for machine in dict.fromkeys(result["machine"] for result in results.values()):
        try:
            gpu = sheet_of(machine)
        except ConfigError:
            continue  # a machine without a data sheet, such as a CPU
        print(modelled_text(gpu))
