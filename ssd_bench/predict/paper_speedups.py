"""Papers' speedups, modelled at one GPU's costs: from the printed α and M, and a source's share of sublayers."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from ssd_bench import tables
from ssd_bench.cost.reference import ReferenceMachine
from ssd_bench.cost.roofline import gpu_named
from ssd_bench.cost.shapes import known_shape
from ssd_bench.papers.ours import select
from ssd_bench.papers.printed.catalogue import version_name
from ssd_bench.predict.acceptance import CONTEXT, Acceptance, Steps, model_choices, reported_speedups
from ssd_bench.predict.question import machine_named

WITHIN = 0.05
"""Largest error of a modelled speedup that meets the printed one."""
OTHER_SHARES = (0.2, 0.25, 0.3, 0.5)
"""Skipped shares, equal for all models, to compare with the stated shares."""
MEASURED, SHEET = "measured", "data sheet"
TITLE = (
    "Papers' speedups, MODELLED on {gpu}; nothing was run for them.\n"
    "α and M: as printed (≈: M from α, or α from M); skipped: share of all sublayers, with the source that states it;\n"
    "costs: of passes that were measured for a model of these sizes (conf/costs), or by the GPU's data sheet and the\n"
    f"model's sizes; {CONTEXT:,} tokens of context; no searches, no prefill; *: calculated by the paper from M and α."
)
SUMMARY = (
    f"met: modelled and printed differ by at most {WITHIN:.0%}; a constant: the median of the printed speedups; the\n"
    "last columns: results met if every model skipped the same share."
)


def modelled_speedups(gpu: str) -> pd.DataFrame:
    """Model every speedup of the papers whose acceptance and share of sublayers sources state.

    Args:
        gpu: simulated GPU, such as sim_h200, with measured costs where available.

    Returns:
        Columns paper, exhibit, model, method, task, metric, alpha, M, derived (the one of both that is not reported),
        skipped, source (of the share), costs, printed, modelled, and one column of speedups for each of `OTHER_SHARES`.
    """
    records = []
    for row in reported_speedups():
        if row.missing or row.share is None:
            continue
        shape = known_shape(model_choices()[row.model])
        assert shape is not None, "a row without sizes is missing"
        machine = machine_named(gpu, shape, None)
        steps, number = Steps(machine, shape.n_layers), row.number
        acceptance = Acceptance.of(row.alpha, row.tokens, row.draft_len)
        records.append(
            {name: getattr(number, name) for name in ("paper", "exhibit", "model", "method", "metric")}
            | {
                "task": ", ".join([number.task, *sorted(select.distinguishing_settings(number))]),
                "alpha": acceptance.accepted / acceptance.drafted,
                "M": acceptance.accepted + 1,
                "derived": "M" if row.tokens is None else "" if row.alpha is not None else "alpha",
                "skipped": row.share.value,
                "source": row.share.source,
                "costs": MEASURED if isinstance(machine, ReferenceMachine) else SHEET,
                "printed": number.value,
                "modelled": steps.speedup(acceptance, row.share.value),
            }
            | {share: steps.speedup(acceptance, share) for share in OTHER_SHARES}
        )
    return pd.DataFrame(records)


def errors(frame: pd.DataFrame, column: str | float = "modelled") -> pd.Series[float]:
    """Return modelled / printed - 1 of each result, for a column of `modelled_speedups`."""
    return frame[column] / frame["printed"] - 1


def count_met(frame: pd.DataFrame, column: str | float = "modelled") -> int:
    """Count the printed speedups that a column meets within `WITHIN`."""
    return int((errors(frame, column).abs() <= WITHIN).sum())


def modelled_text(gpu: str) -> str:
    """Return all results, and the number met per method, as text for a terminal."""
    frame = modelled_speedups(gpu)
    named = frame.assign(paper=frame["paper"].map(version_name))
    names = ["paper", "table", "model", "method", "task", "source", "costs"]
    shown = pd.DataFrame(_result_rows(named)).rename(columns={"exhibit": "table"})
    summary = pd.DataFrame(_summary_rows(named))
    return "\n".join(
        [
            TITLE.format(gpu=gpu_named(gpu).name),
            "",
            tables.terminal(shown, [*map(str, shown.columns.difference(names, sort=False))]),
            "",
            SUMMARY,
            "",
            tables.terminal(summary, [*map(str, summary.columns.difference(names, sort=False))]),
        ]
    )


def _result_rows(frame: pd.DataFrame) -> Iterator[dict[str, str]]:
    for row in frame.to_dict("records"):
        marks = {name: "≈" if row["derived"] == name else "" for name in ("alpha", "M")}
        yield {name: row[name] for name in ("paper", "exhibit", "model", "method", "task")} | {
            "α": f"{marks['alpha']}{row['alpha']:.3f}",
            "M": f"{marks['M']}{row['M']:.2f}",
            "skipped": f"{row['skipped']:.1%}",
            "source": row["source"],
            "costs": row["costs"],
            "printed": f"{row['printed']:.2f}" + ("*" if row["metric"] == "expected_speedup" else ""),
            "modelled": f"{row['modelled']:.2f}",
            "error": f"{row['modelled'] / row['printed'] - 1:+.1%}",
        }


def _summary_rows(frame: pd.DataFrame) -> Iterator[dict[str, str]]:
    for (paper, exhibit, method), rows in frame.groupby(["paper", "exhibit", "method"], sort=False):
        constant = rows.assign(constant=rows["printed"].median())
        yield {
            "paper": str(paper),
            "table": str(exhibit),
            "method": str(method),
            "results": str(len(rows)),
            "met": str(count_met(rows)),
            "median |error|": f"{errors(rows).abs().median():.1%}",
            "signed": f"{errors(rows).median():+.1%}",
            "met by a constant": str(count_met(constant, "constant")),
            **{f"{share:.0%} skipped": str(count_met(rows, share)) for share in OTHER_SHARES},
        }
