"""Say whether self-drafting pays for a model on a machine, and with which method.

`python -m ssd_bench advise model=llama3_1_8b hardware=sim_h100 [name=value ...]`

Prints first what was measured: your runs of exactly this model, those on this machine first, and the best speedup that
a paper measured. Then the acceptance that drafts need on the machine by its costs (skipped sublayers, a window of the
cache, a lookup in earlier text), the speedups of your runs' steps there, and what remains unknown. Every number that is
not called MEASURED is PREDICTED.

  model=NAME        choice of conf/model; or model=local model.path=DIR, a checkpoint in Hugging Face format (only its
                    config.json is read)
  hardware=NAME     sim_<gpu>, several separated by commas, or all; own: the machine of the model's records;
                    if passes of a model of these sizes were measured on the GPU (conf/costs), these count, not its
                    data sheet
  task=NAME         use only the papers' numbers and the records of this task
  runs_dir=runs     folder of the records
  context=1024      tokens before the draft, fewer than the model's context
  devices=N         number of simulated GPUs; default: the fewest that hold the weights
"""

from __future__ import annotations

from collections.abc import Sequence

from ssd_bench.console import tool
from ssd_bench.predict.acceptance import Steps
from ssd_bench.predict.advise import advice, closing, recorded_machine, usable_runs
from ssd_bench.predict.question import parse_question


@tool(__doc__)
def main(arguments: Sequence[str]) -> None:
    """Print the advice."""
    question = parse_question(arguments)
    runs, unused_runs = usable_runs(question)
    parts = []
    for name, machine in question.machines:
        steps = Steps(machine or recorded_machine(question, runs), question.shape.n_layers, question.context)
        parts.append(advice(question, steps, runs, name))
    print("\n\n".join([*parts, *closing(question, runs, unused_runs)]))
