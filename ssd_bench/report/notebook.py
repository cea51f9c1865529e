"""What the notebooks call: a paper's tables and figures from the records at hand, ready to be shown."""

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
from ssd_bench.papers import audit, reported
from ssd_bench.papers.cells import Replication, replications
from ssd_bench.papers.claims import claims
from ssd_bench.papers.figures_shared import NotDrawable
from ssd_bench.papers.judge import NOT_RUN, judge
from ssd_bench.papers.match import order_scales
from ssd_bench.papers.rooms import paper_versions
from ssd_bench.papers.ssd_bench import figures as figures_compare
from ssd_bench.report import answers, exhibits, figures, layout, verdicts

VARIABLE = "SSD_BENCH_RUNS"
DPI = 120


def runs_folder() -> Path:
    """Where records are looked for: the folder that SSD_BENCH_RUNS names, else `runs`, of a clone or here."""
    clone = Path(__file__).parents[2]
    return Path(os.environ.get(VARIABLE) or (clone if (clone / "notebooks").is_dir() else Path()) / "runs")


class Shown:
    """What the last line of a notebook's cell shows: sentences, then a table or a figure where there is one.

    Attributes:
        text: Markdown.
        frame: the table, for further work.
        figure: the figure, likewise.
    """

    def __init__(self, text: str, frame: pd.DataFrame | None = None, figure: Figure | None = None):
        self.text, self.frame, self.figure = text, frame, figure

    def __repr__(self) -> str:
        return f"Shown({self.text[:40]!r})"  # without an address, which differs in every execution

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        if self.figure is not None:
            buffer = io.BytesIO()
            self.figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
            return {"image/png": base64.b64encode(buffer.getvalue()).decode(), "text/plain": self.text}
        body = "" if self.frame is None else tables.markdown(self.frame)
        return {"text/markdown": f"{self.text}\n\n{body}".strip()}


class Paper:
    """A paper's exhibits, from the runs under a folder.

    Args:
        name: `knapspec`, `swift`, `conflayers` or `knn-ssd`.
        runs_dir: None: `runs_folder()`.

    Raises:
        ConfigError: no such paper.
    """

    def __init__(self, name: str, runs_dir: Path | str | None = None):
        if name not in paper_versions():
            raise ConfigError("paper", name, f"one of {', '.join(paper_versions())}")
        self.name, self._runs_dir = name, Path(runs_dir or runs_folder())

    @cached_property
    def _replications(self) -> list[Replication]:
        return replications(self._runs_dir)

    def table(self, exhibit: str) -> Shown:
        """The numbers of a table, figure or passage ("Table 2", "Figure 4", "text §5.2"), ours beside the paper's."""
        known = {number.exhibit for number in reported.numbers() if number.paper == self.name}
        if exhibit not in known:
            raise ConfigError("exhibit", exhibit, f"one of {', '.join(sorted(known))}")
        frame = exhibits.long_table(self._replications, exhibit, self.name)
        commands = [f"`{command}`" for command in exhibits.commands(self.name, exhibit, frame)]
        sentences = [
            f"**{exhibits.title(self.name, exhibit)}.** {exhibits.describe_results(frame)}",
            *exhibits.verdict_sentences(frame),
        ]
        sentences += exhibits.speedup_sentences(frame)
        sentences += exhibits.scale_notes(self.name, exhibit, self._replications) + exhibits.missing_reasons(frame)
        return Shown(
            "\n\n".join(filter(None, [*sentences, ", ".join(commands), exhibits.LEGEND])), layout.wide_table(frame)
        )

    def figure(self, exhibit: str) -> Shown:
        """A figure or case study ("Figure 6", "Figure 2a", "Table 13") from our runs, or why there is none."""
        name = exhibits.file_stem(self.name, exhibit)
        drawable = [one for one in figures.FIGURES if one.startswith(exhibits.file_stem(self.name, ""))]
        if name not in drawable:
            raise ConfigError("exhibit", exhibit, f"one that is drawn: {', '.join(drawable)}")
        return _drawn(name, self._replications)

    @cached_property
    def _verdicts(self) -> pd.DataFrame:
        own = verdicts.table(judge(self._replications, self.name))
        return verdicts.merge_verdicts(own, verdicts.read_verdicts(self._runs_dir))

    def claims(self) -> Shown:
        """Which of the paper's claims hold."""
        own = self._verdicts[self._verdicts["claim"].str.startswith(f"{self.name}/")]
        said = verdicts.readable_table(own[own["verdict"] != NOT_RUN]).drop(columns="paper")
        return Shown(f"{verdicts.RULE}\n\n{verdicts.verdict_counts(own)}.", said)

    def claim(self, name: str) -> Shown:
        """A claim: what the paper says, what our records say, and what would change the verdict."""
        known = {one.id: one for one in claims()}
        own = f"{self.name}/{name}"
        if own not in known:
            allowed = sorted(one.partition("/")[2] for one in known if one.startswith(f"{self.name}/"))
            raise ConfigError("claim", name, f"one of {', '.join(allowed)}")
        claim, rows = known[own], self._verdicts[self._verdicts["claim"] == own]
        said = [f"**{claim.says}** ({claim.section}). *The paper*: {verdicts.paper_values(claim)}."]
        for _, row in rows.iterrows():
            effect, model = verdicts.effect_text(claim, row), verdicts.model_text(row)
            said.append(
                f"*Our records*{f', {model}' if model else ''}: **{verdicts.verdict_text(row)}**. {effect} where "
                f"{verdicts.threshold_text(claim)} is asked: {verdicts.statistic_text(claim)}. {verdicts.evidence_text(claim, row)}."
            )
            said.append(f"*What would change it*: {verdicts.verdict_change(claim, row)}.")
        return Shown("\n\n".join(said))

    def counts(self) -> Shown:
        """How many of the paper's numbers have which verdict."""
        frames = exhibits.long_tables(self._replications, self.name).values()
        counted = exhibits.verdict_counts(frames).drop(columns="paper")
        return Shown("", counted.loc[:, (counted != 0).any()])

    def findings(self) -> Shown:
        """Where the paper's own numbers disagree."""
        told = audit.group_findings(audit.audit())
        own = told[told["paper"] == self.name].rename(columns={"count": "numbers", "verdict": "finding"})
        return Shown("", own[["finding", "numbers", "what", "source"]])


class Comparison:
    """All methods on one model, from the runs of the experiment `ssd_bench_comparison` under a folder.

    Args:
        runs_dir: None: `runs_folder()`.
    """

    def __init__(self, runs_dir: Path | str | None = None):
        self._replications = replications(Path(runs_dir or runs_folder()))

    def figure(self) -> Shown:
        """Layer sets by draft cost and α, with lines of equal TPT and the best sets found."""
        return _drawn(figures_compare.COMPARISON, self._replications)

    def forest(self) -> Shown:
        """Speedups of all methods by task, decode and end to end."""
        return Shown(
            f"speedups of all methods, {self._compared.models_ran}: a figure",
            figure=figures.forest_plot(self._compared),
        )

    def advice(self) -> Shown:
        """Which method these records would have one use."""
        lines = [f"- {line}" for line in answers.advice(self._compared)]
        return Shown("\n".join([*lines, "", answers.conditions(self._compared)]))

    @property
    def _compared(self) -> Replication:
        return _of(figures_compare.COMPARISON, self._replications)

    def table(self) -> Shown:
        """Speed, M, α, losslessness; and what the sets would give."""
        return Shown(f"Ours: {self._compared.models_ran}.", figures_compare.table(self._compared))


def _of(name: str, made: list[Replication]) -> Replication:
    """The replication of an experiment, at the scale nearest to the paper's."""
    by_scale = {one.scale: one for one in made if one.experiment.name == name}
    if not by_scale:
        raise ConfigError("experiment", name, "one that has runs here")
    return by_scale[order_scales(by_scale)[0]]


def _drawn(name: str, made: list[Replication]) -> Shown:
    try:
        drawn = figures.figure(_of(name, made))
    except ConfigError as error:
        drawn = NotDrawable(str(error))
    if isinstance(drawn, Figure):
        return Shown(f"{name}: a figure", figure=drawn)
    return Shown(f"*Not drawn.* {drawn.reason if drawn else ''}")
