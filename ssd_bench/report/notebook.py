"""Functions for notebooks: a paper's tables and figures from the available records, ready for display."""

from __future__ import annotations

import base64
import io
import os
from functools import cached_property
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from ssd_bench import tables
from ssd_bench.errors import ConfigError
from ssd_bench.papers.audit import audit
from ssd_bench.papers.claims.claims import claims
from ssd_bench.papers.claims.judge import NOT_RUN, judge
from ssd_bench.papers.figures.shared import NotDrawable
from ssd_bench.papers.ours import agreement
from ssd_bench.papers.ours.cells import Replication, replications
from ssd_bench.papers.printed import reported
from ssd_bench.papers.printed.catalogue import paper_versions
from ssd_bench.papers.ssd_bench import figures as figures_compare
from ssd_bench.records.pack import unpacked_folder
from ssd_bench.report import choice, figures, layout, verdict_texts, verdicts
from ssd_bench.report.exhibit import LEGEND, Exhibit
from ssd_bench.report.numbers import distinct_results, file_stem, long_table, long_tables, run_ids
from ssd_bench.report.results import comparison, result_table

VARIABLE = "SSD_BENCH_RUNS"
DPI = 120


def runs_folder() -> Path:
    """Return the folder of records: SSD_BENCH_RUNS, else `runs` in the clone or in the working directory."""
    clone = Path(__file__).parents[2]
    return Path(os.environ.get(VARIABLE) or (clone if (clone / "notebooks").is_dir() else Path()) / "runs")


class Shown:
    """Output of a notebook cell: sentences in Markdown, then a table or figure, if any."""

    def __init__(self, text: str, frame: pd.DataFrame | None = None, figure: Figure | None = None):
        self.text, self.frame, self.figure = text, frame, figure

    def __repr__(self) -> str:
        return f"Shown({self.text[:40]!r})"  # without an address, which would differ in every execution

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        if self.figure is not None:
            buffer = io.BytesIO()
            self.figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
            return {"image/png": base64.b64encode(buffer.getvalue()).decode(), "text/plain": self.text}
        body = "" if self.frame is None else tables.markdown(self.frame)
        return {"text/markdown": f"{self.text}\n\n{body}".strip()}


class Paper:
    """Tables, figures and claims of a paper, from the runs under a folder.

    Args:
        name: `knapspec`, `swift`, `conflayers` or `knn-ssd`.
        runs_dir: None: `runs_folder()`.

    Raises:
        ConfigError: unknown paper.
    """

    def __init__(self, name: str, runs_dir: Path | str | None = None):
        if name not in paper_versions():
            raise ConfigError("paper", name, f"one of {', '.join(paper_versions())}")
        self.name, self._runs_dir = name, unpacked_folder(Path(runs_dir or runs_folder()))

    @cached_property
    def _replications(self) -> list[Replication]:
        return replications(self._runs_dir)

    def table(self, exhibit: str) -> Shown:
        """Return a table, figure or passage ("Table 2", "Figure 4", "text §5.2") with our numbers and the paper's."""
        available = {number.exhibit for number in reported.numbers() if number.paper == self.name}
        if exhibit not in available:
            raise ConfigError("exhibit", exhibit, f"one of {', '.join(sorted(available))}")
        frame = long_table(self._replications, self.name, exhibit)
        table = Exhibit(self.name, exhibit, frame, self._replications)
        sentences = [f"**{table.title}.** {table.results}", *table.verdicts, *table.baselines, *table.remarks]
        commands = ", ".join(f"`{command}`" for command in table.commands(table.number_scales))
        wide = layout.wide_table(frame)
        return Shown("\n\n".join(filter(None, [*sentences, commands, LEGEND])), wide[wide["model"] != layout.NONE])

    def figure(self, exhibit: str) -> Shown:
        """Return a figure or case study ("Figure 6", "Figure 2a", "Table 13") from our runs, or why it is missing."""
        name = file_stem(self.name, exhibit)
        drawable = [drawn for drawn in figures.FIGURES if drawn.startswith(file_stem(self.name, ""))]
        if name not in drawable:
            raise ConfigError("exhibit", exhibit, f"a figure that is drawn: {', '.join(drawable)}")
        return _draw(name, self._replications)

    @cached_property
    def _verdicts(self) -> pd.DataFrame:
        local = verdicts.table(judge(self._replications, self.name))
        return verdicts.merge_verdicts(local, verdicts.read_verdicts(self._runs_dir))

    def claims(self) -> Shown:
        """Return the verdicts on the paper's claims."""
        rows = self._verdicts[self._verdicts["claim"].str.startswith(f"{self.name}/")]
        table = verdict_texts.readable_table(rows[rows["verdict"] != NOT_RUN])
        table = table.drop(columns="paper")
        counts = "; ".join(f"{evidence}: {text}" for evidence, text in verdict_texts.class_counts(rows).items())
        return Shown(f"{verdict_texts.RULE}\n\n{counts}.", table)

    def claim(self, name: str) -> Shown:
        """Return a claim: the paper's numbers, our records' verdict, and what would change it."""
        claims_by_id = {claim.id: claim for claim in claims()}
        claim_id = f"{self.name}/{name}"
        if claim_id not in claims_by_id:
            allowed = sorted(key.partition("/")[2] for key in claims_by_id if key.startswith(f"{self.name}/"))
            raise ConfigError("claim", name, f"one of {', '.join(allowed)}")
        claim, rows = claims_by_id[claim_id], self._verdicts[self._verdicts["claim"] == claim_id]
        paragraphs = [f"**{claim.says}** ({claim.section}). *The paper*: {verdict_texts.paper_values(claim)}."]
        for _, row in rows.iterrows():
            effect, model = verdict_texts.effect_text(claim, row), verdict_texts.model_text(row)
            times = verdict_texts.times_text(claim, row)
            paragraphs.append(
                f"*Our records*{f', {model}' if model else ''}: **{verdict_texts.verdict_text(row)}**. Effect: {effect}"
                f"{f' ({times})' if times else ''}; "
                f"threshold: {verdict_texts.threshold_text(claim)}. Statistic: {verdict_texts.statistic_text(claim)}. "
                f"Evidence: {verdict_texts.evidence_text(claim, row)}."
            )
            paragraphs.append(f"*What would change it*: {verdict_texts.verdict_change(claim, row)}.")
        return Shown("\n\n".join(paragraphs))

    def counts(self) -> Shown:
        """Count the paper's numbers by verdict."""
        frame = pd.concat(long_tables(self._replications, self.name).values(), ignore_index=True)
        totals = frame["verdict"].value_counts()
        counts = {word: totals[word] for word in agreement.VERDICTS if word in totals} | {"numbers": len(frame)}
        behind = {"distinct results": len(distinct_results(frame)), "runs": len(run_ids(frame))}
        return Shown("", pd.DataFrame([counts | {name: count for name, count in behind.items() if count}]))

    def findings(self) -> Shown:
        """Return contradictions between the paper's numbers."""
        findings = audit.group_findings(audit.audit())
        rows = findings[findings["paper"] == self.name].rename(columns={"count": "numbers", "verdict": "finding"})
        return Shown("", rows[["finding", "numbers", "what", "source"]])


class Comparison:
    """All methods on one model: `ssd_bench_comparison` in `runs_dir` (default: `runs_folder()`)."""

    def __init__(self, runs_dir: Path | str | None = None):
        self._replications = replications(unpacked_folder(Path(runs_dir or runs_folder())))

    def figure(self) -> Shown:
        """Draw layer sets by draft cost and α, with lines of equal TPT and the best sets found."""
        return _draw(figures_compare.COMPARISON, self._replications)

    def forest(self) -> Shown:
        """Draw the speedups of all methods by task, decode and end to end."""
        return Shown(
            f"speedups of all methods, {self._compared.models_ran}: a figure",
            figure=figures.forest_plot(self._compared),
        )

    def advice(self) -> Shown:
        """Return the method to use for each task, by these records."""
        compared = result_table(self._replications)
        lines = [f"- {line}" for line in choice.recommendations(compared)]
        return Shown("\n".join([*lines, "", choice.note(compared)]), choice.choice_table(compared))

    @property
    def _compared(self) -> Replication:
        return _replication_of(figures_compare.COMPARISON, self._replications)

    def table(self) -> Shown:
        """Tabulate speed, M, α and losslessness, and the speed that the layer sets would give."""
        return Shown(f"Our runs: {self._compared.models_ran}.", figures_compare.table(self._compared))


def _replication_of(name: str, experiments: list[Replication]) -> Replication:
    if (replication := comparison(experiments, name)) is None:
        raise ConfigError("experiment", name, "an experiment with runs here")
    return replication


def _draw(name: str, experiments: list[Replication]) -> Shown:
    try:
        figure = figures.figure(_replication_of(name, experiments))
    except ConfigError as error:
        figure = NotDrawable(str(error))
    if isinstance(figure, Figure):
        return Shown(f"{name}: a figure", figure=figure)
    return Shown(f"*Not drawn.* {figure.reason if figure else ''}")
