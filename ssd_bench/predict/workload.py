"""The steps of a record with their work; without a baseline, AR's steps are made up from its output."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from ssd_bench.errors import ConfigError
from ssd_bench.records.reader import Run
from ssd_bench.records.schema import ANSWER, ROUNDED
from ssd_bench.results.modelled import SPANS, STEP
from ssd_bench.results.rows import arm_rows, paired_rows


def has_baseline(run: Run) -> bool:
    """Return whether a record has AR's steps of an answer that the method decoded, too."""
    return len(paired_rows(run.prompts)) > 0


def with_baseline(run: Run) -> Run:
    """Return the run with the steps of all answers that both arms decoded.

    Without AR's answers a method's step that emitted m tokens gives m AR steps, without times.

    Raises:
        ConfigError: the record has no steps, because no output has a token after the prefill's.
    """
    work = run.work
    if has_baseline(run):
        steps = run.steps.merge(paired_rows(run.prompts)[list(ANSWER)], on=list(ANSWER))
    else:
        method = arm_rows(run.steps, "method")
        ar = _plain_steps(method)
        steps = pd.concat([ar, method], ignore_index=True)
        work = pd.concat([work, _plain_work(run, ar)], ignore_index=True)
    if not len(steps):
        raise ConfigError("run", str(run.path), "outputs of two tokens or more")
    return replace(run, steps=steps, work=work)


def _plain_steps(method: pd.DataFrame) -> pd.DataFrame:
    ar = method.loc[method.index.repeat(method["emitted"])].copy()
    ar["context_len"] += ar.groupby(level=0).cumcount().astype("int32")  # AR commits one position per step
    ar["step"] = (ar.groupby(list(ANSWER)).cumcount() + 1).astype(method["step"].dtype)
    ar["arm"], ar["layer_set_id"] = "ar", pd.array([pd.NA] * len(ar), dtype="Int32")
    ar[["draft_len", "accepted_len"]], ar[["tree_nodes", "emitted"]] = 0, 1
    ar[list(SPANS)] = 0.0
    return ar


def _plain_work(run: Run, ar: pd.DataFrame) -> pd.DataFrame:
    n_layers = run.header.model.n_layers
    counts = {"calls": 1, "rows": 1, "attentions": n_layers, "mlps": n_layers, "heads": 1.0, "launches": 2}
    counts |= dict.fromkeys(ROUNDED, 0)
    return ar[STEP].assign(part="verify", **counts, context=ar["context_len"].astype(float))
