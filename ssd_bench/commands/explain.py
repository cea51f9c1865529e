"""Explain why a run is as fast as it is, and what cost it most.

`python -m ssd_bench explain run=RUN_DIR`

Compares the measured speedup with that of the cost model at the same acceptance, splits the time of an emitted token,
and computes the speedup without each loss, everything else as measured. Next to measured times are those modelled at
the costs of a reference machine (docs/modelled.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from ssd_bench import tables
from ssd_bench.console import tool
from ssd_bench.errors import ConfigError
from ssd_bench.records.pack import records_folder
from ssd_bench.records.reader import Run, load_run
from ssd_bench.records.schema import ANSWER
from ssd_bench.results.definitions import expected_speedup, skip_ratio_of_all
from ssd_bench.results.evidence import SLOW_FACTOR, slow_steps
from ssd_bench.results.modelled import SPANS, reference_of, reference_run
from ssd_bench.results.models import model_title
from ssd_bench.results.prompt_table import of_steps
from ssd_bench.results.quantity import divide
from ssd_bench.results.rows import arm_rows, paired_rows
from ssd_bench.results.text import ABSENT, costs_text, format_number, format_percent

SHOWN = 5  # outlier steps in the table
SETS = 8  # layer sets with a row each: those that drafted most often
TIMES = {"ar": "AR", "draft": "drafting", "verify": "verification", "policy": "method overhead", "other": "other"}
"""Part of `Explanation.ms` -> its name in the table."""
MODELLED_MS = "modelled ms"
OVERHEAD = "method overhead (search, statistics, lookups)"
NO_DRAFT, NO_LAYERS = "nothing (AR step)", "no layers (such as copied text)"
"""Sources of drafts that are not layer sets."""
OUTLIERS = f"more than {SLOW_FACTOR:g}x the time expected from the medians of comparable steps"


@dataclass(frozen=True)
class Loss:
    """One way in which a run falls short of free, perfect drafting; `ms` per emitted token, negative for a gain.

    `speedup` is without the loss, all else as measured; None if no time would remain. The time that the layers of a
    draft need at least is not a loss: the cost model includes it.
    """

    name: str
    ms: float
    speedup: float | None


@dataclass(frozen=True)
class Explanation:
    """Time of a run's method, split and compared with AR on the same prompts.

    Attributes:
        speedup: measured tokens/s over AR's, decode only, as a ratio of totals over the paired prompts.
        ceiling: M, the speedup if drafting, method overhead and loop took no time, and a verification took an AR step.
        cost_model: E(speedup) = M α / ((M - 1) c + α) with c = 1 - r (SWIFT §4.1); None if no layers drafted.
        measured_cost: the same with the measured c; None if nothing was drafted.
        c: cost of a drafted token in AR steps, 1 - r over all drafted tokens; None if no layers drafted, or if a
            window of the cache was read.
        c_measured: the same as measured; None if nothing was drafted.
        verify_cost: time of a verification over that of an AR step.
        ms: milliseconds per emitted token: ar, and the method's draft, verify, policy (method overhead), other.
        losses: the largest first.
    """

    speedup: float
    ceiling: float
    cost_model: float | None
    measured_cost: float | None
    c: float | None
    c_measured: float | None
    verify_cost: float
    ms: dict[str, float]
    losses: tuple[Loss, ...]


def explain(run: Run) -> Explanation:
    """Split the measured speedup of a run.

    Raises:
        ConfigError: no prompt was decoded by both arms, or no output has a token after the prefill's.
    """
    prompts = paired_rows(run.prompts)
    steps = run.steps.merge(prompts[list(ANSWER)], on=list(ANSWER))
    method_prompts, method_steps = arm_rows(prompts, "method"), arm_rows(steps, "method")
    ar_prompts, ar_steps = arm_rows(prompts, "ar"), arm_rows(steps, "ar")
    if not len(method_steps) or not len(ar_steps):
        raise ConfigError("run", str(run.path), "a run with baseline=paired or hf and outputs of two tokens or more")
    emitted, drafted = (float(method_steps[name].sum()) for name in ("emitted", "draft_len"))
    passes = len(method_steps)
    ar_ms = float(ar_prompts["decode_ms"].sum() / ar_steps["emitted"].sum())
    shares = {name: float(method_prompts[f"{name}_ms"].sum()) / emitted for name in ("draft", "verify", "policy")}
    total = float(method_prompts["decode_ms"].sum()) / emitted
    ms = {"ar": ar_ms, **shares, "other": total - sum(shares.values())}
    m, alpha, skipped = emitted / passes, of_steps("alpha", method_steps), skip_ratio_of_all(run)
    per_draft = divide(ms["draft"] * emitted, drafted)
    c = None if skipped is None else 1 - skipped
    c_measured = None if per_draft is None else per_draft / ar_ms
    return Explanation(
        ar_ms / total,
        m,
        expected_speedup(m, alpha, skipped),
        None if c_measured is None else expected_speedup(m, alpha, 1 - c_measured),
        c,
        c_measured,
        ms["verify"] * m / ar_ms,
        ms,
        _losses(ms, m, drafted / passes, c, c_measured),
    )


def _losses(ms: dict[str, float], m: float, k: float, c: float | None, c_measured: float | None) -> tuple[Loss, ...]:
    """Return the losses, each taken alone, largest first.

    Args:
        ms, c, c_measured: as in `Explanation`.
        m, k: mean acceptance length M and mean draft length.
    """
    ar = ms["ar"]
    total = sum(ms.values()) - ar
    costs = {
        OVERHEAD: ms["policy"],
        "loop, sampling, trace": ms["other"],
        "verification beyond an AR step": ms["verify"] - ar / m,
        # all k drafted tokens accepted: k + 1 tokens for the time of M
        "rejected drafts": total * (1 - m / (k + 1)) if k else 0.0,
    }
    if c is not None and c_measured is not None:
        costs["drafting beyond its share of the layers"] = (c_measured - c) * ar * k / m
    else:
        costs["drafting"] = ms["draft"]
    losses = [Loss(name, cost, ar / (total - cost) if total > cost else None) for name, cost in costs.items()]
    return tuple(sorted(losses, key=lambda loss: -loss.ms))


def draft_sources(run: Run) -> pd.DataFrame:
    """Count the method's steps by source of the draft: nothing (AR steps), no layers (copied text), or a layer set.

    Returns:
        One row per source, most steps first; further layer sets after the first `SETS` share a row. Columns: source,
        steps, drafted, accepted and emitted (tokens), ms and modelled_ms.
    """
    step_ms = reference_run(run).steps[[*SPANS]].sum(axis=1)
    steps = arm_rows(run.steps.assign(modelled_ms=step_ms), "method")
    ids = steps["layer_set_id"]
    used = [int(i) for i in ids.value_counts().index]
    names = {i: f"set {i}: {run.layer_set(i).text}" for i in used[:SETS]}
    names |= dict.fromkeys(used[SETS:], f"{len(used) - SETS} other layer sets")
    source = ids.map(names).astype("object").where(ids.notna(), NO_LAYERS)
    source[steps["draft_len"] == 0] = NO_DRAFT
    ms = steps["draft_ms"] + steps["verify_ms"] + steps["policy_ms"]
    counted = steps.assign(source=source, steps=1, drafted=steps["draft_len"], accepted=steps["accepted_len"], ms=ms)
    sums = counted.groupby("source")[["steps", "drafted", "accepted", "emitted", "ms", "modelled_ms"]]
    return sums.sum(min_count=1).sort_values("steps", ascending=False, kind="stable").reset_index()


def _source_table(run: Run) -> str:
    sources = draft_sources(run)
    table = pd.DataFrame(
        {
            "drafted by": sources["source"],
            "steps": [format_percent(share) for share in sources["steps"] / sources["steps"].sum()],
            "drafted": sources["drafted"].astype(str),
            "accepted": [
                format_percent(accepted / drafted) if drafted else ABSENT
                for accepted, drafted in zip(sources["accepted"], sources["drafted"])
            ],
            "tokens per step": [format_number(mean) for mean in sources["emitted"] / sources["steps"]],
            "ms per token": [format_number(mean) for mean in sources["ms"] / sources["emitted"]],
            MODELLED_MS: [format_number(mean) for mean in sources["modelled_ms"] / sources["emitted"]],
        }
    )
    return tables.terminal(table)


def render(run: Run, explanation: Explanation) -> str:
    """Return the explanation as text for a terminal; the line `largest loss` is the conclusion."""
    header = run.header
    ar_ms, largest = explanation.ms["ar"], explanation.losses[0]
    chain = [
        ("M: free drafting, and a verification costs an AR step", format_number(explanation.ceiling)),
        (f"cost model, c = 1 - r = {format_number(explanation.c, 3)}", format_number(explanation.cost_model)),
        (
            f"cost model, measured c = {format_number(explanation.c_measured, 3)}",
            format_number(explanation.measured_cost),
        ),
        (
            f"measured, with a verification of {explanation.verify_cost:.2f} AR steps",
            format_number(explanation.speedup),
        ),
    ]
    modelled = explain(reference_run(run)).ms
    modelled_speedup = modelled["ar"] / (sum(modelled.values()) - modelled["ar"])
    times = [
        (
            TIMES[name],
            f"{value:.3f}",
            format_percent(value / ar_ms),
            format_number(modelled[name], 3),
            format_percent(modelled[name] / modelled["ar"]),
        )
        for name, value in explanation.ms.items()
    ]
    losses = [(loss.name, f"{loss.ms:.3f}", format_number(loss.speedup)) for loss in explanation.losses]
    run_text = f"{header.method} on {header.task.name}, {model_title(header.model.name)}"
    return "\n".join(
        [
            f"{run_text}: measured speedup {explanation.speedup:.2f}, "
            f"modelled {modelled_speedup:.2f} at {costs_text(reference_of(header))}",
            "",
            tables.terminal(pd.DataFrame(chain, columns=["speedup at this acceptance", ""])),
            "",
            tables.terminal(
                pd.DataFrame(times, columns=["time per emitted token", "ms", "of AR", MODELLED_MS, "of AR"])
            ),
            "",
            tables.terminal(pd.DataFrame(losses, columns=["loss per emitted token", "ms", "speedup without it"])),
            "",
            _source_table(run),
            "",
            f"largest loss: {largest.name}, {largest.ms:.3f} ms per token, "
            f"{format_percent(largest.ms / ar_ms)} of AR's",
            *_slow(run),
        ]
    )


def _slow(run: Run) -> list[str]:
    """Return lines on outliers, steps much slower than the median of comparable steps, in order of their time."""
    slow = slow_steps(run)
    if slow.empty:
        return []
    worst = slow.sort_values("ms", ascending=False).head(SHOWN)
    rows = [
        (str(step.prompt_index), str(step.arm), str(step.step), f"{step.ms:.2f}", f"{step.expected_ms:.2f}")
        for step in worst.itertuples()
    ]
    header = ["prompt", "arm", "step", "ms", "expected ms"]
    caption = f"{len(slow)} of {len(run.steps)} steps are outliers: {OUTLIERS}; the slowest:"
    return ["", caption, tables.terminal(pd.DataFrame(rows, columns=header), header)]


@tool(__doc__)
def main(arguments: Sequence[str]) -> None:
    """Print the explanation."""
    if len(arguments) != 1 or not arguments[0].startswith("run=") or arguments[0] == "run=":
        raise ConfigError("option", " ".join(arguments), "exactly run=RUN_DIR, the folder of a run's record")
    run = load_run(records_folder("run", arguments[0].removeprefix("run=")))
    print(render(run, explain(run)))
