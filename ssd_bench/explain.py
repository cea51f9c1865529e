"""`python -m ssd_bench explain run=RUN_DIR`: why a run is as fast as it is, and what cost it most.

Sets the measured speedup beside what the cost model promises from the same acceptance, splits the time of an emitted
token, and works out the speedup that would be left without each loss, everything else as measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ssd_bench import metrics, tables
from ssd_bench.command import tool
from ssd_bench.errors import ConfigError
from ssd_bench.metrics.intervals import divide
from ssd_bench.metrics.text import ABSENT, format_number, format_percent
from ssd_bench.paths import local_path
from ssd_bench.records.reader import Run, load_run
from ssd_bench.records.schema import ANSWER

SHOWN = 5  # slow steps
SETS = 8  # layer sets that drafted most


@dataclass(frozen=True)
class Loss:
    """One way in which a run falls short of free, perfect drafting.

    Attributes:
        name: what costs. What the layers of a draft must cost is none: the cost model charges it.
        ms: milliseconds per emitted token that it costs; negative where it saves.
        speedup: the speedup without it, all else as measured; None where nothing would be left to pay.
    """

    name: str
    ms: float
    speedup: float | None


@dataclass(frozen=True)
class Explanation:
    """Where the time of a run's method goes, against AR on the same prompts.

    Attributes:
        speedup: measured: tokens/s over AR's, decode-only, ratio of totals over the paired prompts.
        ceiling: M, the speedup if drafting, policy and loop took no time and a verification took an AR step's.
        modelled: E(speedup) = M α / ((M - 1) c + α) with c = 1 - r (SWIFT §4.1); None if no layers drafted.
        measured_cost: the same with the measured c; None if nothing was drafted.
        c, c_measured: a drafted token's cost as a share of an AR step: 1 - r over all drafted tokens, and as measured;
            None likewise, c also where a window of the cache was read.
        verify_cost: a verification's time over an AR step's.
        ms: milliseconds per emitted token: ar, and the method's draft, verify, policy, other.
        losses: the largest first.
    """

    speedup: float
    ceiling: float
    modelled: float | None
    measured_cost: float | None
    c: float | None
    c_measured: float | None
    verify_cost: float
    ms: dict[str, float]
    losses: tuple[Loss, ...]


def explain(run: Run) -> Explanation:
    """Split the measured speedup of a run.

    Raises:
        ConfigError: no prompt was decoded by both arms, or no output is longer than the prefill's token.
    """
    prompts = metrics.paired_rows(run.prompts)
    steps = run.steps.merge(prompts[list(ANSWER)], on=list(ANSWER))
    ours, mine = metrics.arm_rows(prompts, "method"), metrics.arm_rows(steps, "method")
    plain, theirs = metrics.arm_rows(prompts, "ar"), metrics.arm_rows(steps, "ar")
    if not len(mine) or not len(theirs):
        raise ConfigError("run", str(run.path), "a run with baseline=paired or hf and outputs of two tokens or more")
    emitted, drafted, passes = float(mine["emitted"].sum()), float(mine["draft_len"].sum()), len(mine)
    ar_ms = float(plain["decode_ms"].sum() / theirs["emitted"].sum())
    shares = {name: float(ours[f"{name}_ms"].sum()) / emitted for name in ("draft", "verify", "policy")}
    total = float(ours["decode_ms"].sum()) / emitted
    ms = {"ar": ar_ms, **shares, "other": total - sum(shares.values())}
    m, alpha, skipped = emitted / passes, metrics.alpha_micro(mine), metrics.skip_ratio_of_all(run)
    per_draft = divide(ms["draft"] * emitted, drafted)
    c = None if skipped is None else 1 - skipped
    c_measured = None if per_draft is None else per_draft / ar_ms
    return Explanation(
        ar_ms / total, m, metrics.expected_speedup(m, alpha, skipped),
        None if c_measured is None else metrics.expected_speedup(m, alpha, 1 - c_measured),
        c, c_measured, ms["verify"] * m / ar_ms, ms, _losses(ms, m, drafted / passes, c, c_measured),
    )  # fmt: skip


def _losses(ms: dict[str, float], m: float, k: float, c: float | None, c_measured: float | None) -> tuple[Loss, ...]:
    """Each loss alone, largest first: the milliseconds per token that would go with it."""
    ar = ms["ar"]
    total = sum(ms.values()) - ar
    found = {
        "policy (search, statistics, lookups)": ms["policy"],
        "loop, sampling, trace": ms["other"],
        "verification beyond an AR step": ms["verify"] - ar / m,
        # all k drafted tokens accepted: k + 1 tokens for the time of M
        "rejected drafts": total * (1 - m / (k + 1)) if k else 0.0,
    }
    if c is not None and c_measured is not None:
        found["drafting beyond its share of the layers"] = (c_measured - c) * ar * k / m
    else:
        found["drafting"] = ms["draft"]
    losses = [Loss(name, cost, ar / (total - cost) if total > cost else None) for name, cost in found.items()]
    return tuple(sorted(losses, key=lambda loss: -loss.ms))


def draft_sources(run: Run) -> pd.DataFrame:
    """Return what drafted in the method's steps: nothing (plain steps), no layers (copied or searched text), each set.

    Returns:
        A row per source, the most steps first, at most `SETS` layer sets and the others in one row: source, steps,
        drafted, accepted and emitted tokens, ms of the steps.
    """
    steps = metrics.arm_rows(run.steps, "method")
    ids = steps["layer_set_id"]
    used = [int(i) for i in ids.value_counts().index]
    names = {i: _set_name(run, i) if at < SETS else f"{len(used) - SETS} other layer sets" for at, i in enumerate(used)}
    source = ids.map(names).astype("object").where(ids.notna(), "tokens that no layers drafted")
    source[steps["draft_len"] == 0] = "nothing, as AR"
    ms = steps["draft_ms"] + steps["verify_ms"] + steps["policy_ms"]
    counted = steps.assign(source=source, steps=1, drafted=steps["draft_len"], accepted=steps["accepted_len"], ms=ms)
    sums = counted.groupby("source")[["steps", "drafted", "accepted", "emitted", "ms"]]
    return sums.sum().sort_values("steps", ascending=False, kind="stable").reset_index()


def _set_name(run: Run, set_id: int) -> str:
    layers, window = run.layer_set(set_id), run.window(set_id)
    read = "" if window is None else f", reads {window.sinks} + {window.recent} positions"
    return f"set {set_id}: skips {len(layers.skip_attn)} attentions, {len(layers.skip_mlp)} MLPs{read}"


def _source_table(run: Run) -> str:
    sources = draft_sources(run)
    table = pd.DataFrame(
        {
            "drafted by": sources["source"],
            "steps": [format_percent(share) for share in sources["steps"] / sources["steps"].sum()],
            "drafted": sources["drafted"].astype(str),
            "accepted": [
                format_percent(m / k) if k else ABSENT for m, k in zip(sources["accepted"], sources["drafted"])
            ],
            "tokens per step": [format_number(mean) for mean in sources["emitted"] / sources["steps"]],
            "ms per token": [format_number(mean) for mean in sources["ms"] / sources["emitted"]],
        }
    )
    return tables.terminal(table)


def screen(run: Run, found: Explanation) -> str:
    """The explanation for a terminal; the first line under `largest loss` is the answer."""
    header: dict[str, Any] = run.header
    model, task = header.get("model") or {}, header.get("task") or {}
    ar_ms, largest = found.ms["ar"], found.losses[0]
    chain = [
        ("M: drafting free, a verification costs an AR step", format_number(found.ceiling)),
        (f"cost model, c = 1 - r = {format_number(found.c, 3)}", format_number(found.modelled)),
        (f"cost model, c as measured = {format_number(found.c_measured, 3)}", format_number(found.measured_cost)),
        (f"measured, with a verification of {found.verify_cost:.2f} AR steps", format_number(found.speedup)),
    ]
    times = [(name, f"{value:.3f}", format_percent(value / found.ms["ar"])) for name, value in found.ms.items()]
    losses = [
        (loss.name, f"{loss.ms:.3f}", ABSENT if loss.speedup is None else format_number(loss.speedup))
        for loss in found.losses
    ]
    return "\n".join(
        [
            f"{header.get('method')} on {task.get('name')}, {model.get('name')}: measured speedup {found.speedup:.2f}",
            "",
            tables.terminal(pd.DataFrame(chain, columns=["speedup from the same acceptance", ""])),
            "",
            tables.terminal(pd.DataFrame(times, columns=["per emitted token", "ms", "of AR"])),
            "",
            tables.terminal(pd.DataFrame(losses, columns=["loss, each alone", "ms", "speedup without it"])),
            "",
            _source_table(run),
            "",
            f"largest loss: {largest.name}, {largest.ms:.3f} ms per token, "
            f"{format_percent(largest.ms / ar_ms)} of AR's",
            *_slow(run),
        ]
    )


def _slow(run: Run) -> list[str]:
    """The steps that took many times what their like do, the slowest first."""
    slow = metrics.slow_steps(run)
    if slow.empty:
        return []
    worst = slow.sort_values("ms", ascending=False).head(SHOWN)
    rows = [
        (str(step.prompt_index), str(step.arm), str(step.step), f"{step.ms:.2f}", f"{step.expected_ms:.2f}")
        for step in worst.itertuples()
    ]
    heads = ["prompt", "arm", "step", "ms", "its like"]
    many = f"{metrics.SLOW_FACTOR:g} times what their like do"
    told = f"{len(slow)} of {len(run.steps)} steps took more than {many}; the slowest:"
    return ["", told, tables.terminal(pd.DataFrame(rows, columns=heads), heads)]


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code: 0, or 2 if an option or the run cannot be used."""
    return tool(_print, __doc__, arguments)


def _print(arguments: Sequence[str]) -> None:
    if len(arguments) != 1 or not arguments[0].startswith("run=") or arguments[0] == "run=":
        raise ConfigError("option", " ".join(arguments), "exactly run=RUN_DIR, the folder of a run's record")
    run = load_run(local_path("run", arguments[0].removeprefix("run=")))
    print(screen(run, explain(run)))
