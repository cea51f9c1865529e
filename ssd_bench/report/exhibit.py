"""Tables, figures and passages of the papers with our results, for the page, Markdown, LaTeX and notebooks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import pandas as pd

from ssd_bench.papers.ours import agreement, select
from ssd_bench.papers.ours.cells import Replication
from ssd_bench.papers.ours.match import order_scales
from ssd_bench.papers.ours.values import OVER_AR
from ssd_bench.papers.printed import reported
from ssd_bench.papers.printed.catalogue import folder_of, paper_versions, version_name
from ssd_bench.papers.runs.grid import Experiment
from ssd_bench.papers.runs.scale import command as scale_command
from ssd_bench.report.figures import FIGURES, DrawnFigure
from ssd_bench.report.numbers import NO_NUMBERS, count_phrase, distinct_results, file_stem, run_ids, verdict_sentences
from ssd_bench.results.text import TOY_RUN

LEGEND = (
    "Labels of rows: ours, our result with the model that ran, its size and 95 % intervals over prompts (for speeds "
    "also over run-to-run variation, where it was measured); paper, the paper's result with the paper's model. "
    "–: no result of ours. excluded: the run does not count, because no search ran or its trace duplicates another "
    "run's. same run: the cell repeats the result of another row."
)
AXES = ("model", "task", "method")
KINDS = {"sets": "layer sets", "cases": "case study", "vectors": "hidden vectors"}
COMPLETE, PARTIAL, MISSING, SHARED, NO_RESULTS = "complete", "partial", "missing", "shared runs", "no results"
STATES = {
    COMPLETE: "complete",
    PARTIAL: "partial",
    MISSING: "missing",
    SHARED: "with the runs of another table or figure",
    NO_RESULTS: "without results in the paper",
}
"""Availability of our results -> phrase after a count of exhibits."""


@dataclass(frozen=True)
class Exhibit:
    """Table, figure or passage of a paper: its numbers with ours, our figures, and sentences on them.

    Attributes:
        paper: version of the paper.
        label: name in the paper: "Table 2", "Figure 4", "text §5.2", "abstract".
        frame: long table of its numbers and ours; without rows if the paper prints no number.
        all_replications: our runs of all experiments.
        all_drawn: our figures by experiment, from `figures.draw_figures`.
    """

    paper: str
    label: str
    frame: pd.DataFrame = field(repr=False)
    all_replications: Sequence[Replication] = field(default=(), repr=False)
    all_drawn: Mapping[str, Sequence[DrawnFigure]] = field(default_factory=dict, repr=False)

    @cached_property
    def experiments(self) -> tuple[Experiment, ...]:
        """Experiments whose runs give the numbers."""
        return select.experiments().get((self.paper, self.label), ())

    @cached_property
    def version_experiments(self) -> list[Experiment]:
        """Experiments of this version of the paper only."""
        return [experiment for experiment in self.experiments if experiment.paper == self.paper]

    @cached_property
    def replications(self) -> list[Replication]:
        """Our runs of its experiments."""
        names = {experiment.name for experiment in self.experiments}
        return [replication for replication in self.all_replications if replication.experiment.name in names]

    @cached_property
    def listed(self) -> Mapping[str, str]:
        """Row in the list of tables and figures; empty for a passage."""
        rows = reported.exhibits(self.paper, self.label)
        return {} if rows.empty else {str(key): str(value) for key, value in rows.iloc[0].items()}

    @property
    def has_numbers(self) -> bool:
        """Whether the paper prints numbers in it."""
        return not self.frame.empty

    # --- names --------------------------------------------------------------------------------------------------------

    @property
    def stem(self) -> str:
        """Stem of its files, and its anchor on the page."""
        return file_stem(self.paper, self.label)

    @property
    def title(self) -> str:
        """Paper, label and title."""
        return f"{version_name(self.paper)}, {self.label}" + (f": {self.listed['title']}" if self.listed else "")

    @property
    def heading(self) -> str:
        """Label and title, without the paper."""
        title = self.listed.get("title", "Numbers of the text" if self.label != "abstract" else "Numbers")
        return f"{self.label[:1].upper()}{self.label[1:]}: {title}"

    @property
    def short(self) -> str:
        """Short label for the table of contents, e.g. T2 or F4."""
        return self.label.replace("Table ", "T").replace("Figure ", "F").replace("text ", "")

    @property
    def kind(self) -> str:
        """Kind of content, in a word or two."""
        if self.experiments:
            return KINDS.get(self.experiments[0].kind, self.experiments[0].kind)
        if not self.listed:
            return "text"
        return "diagram" if self.features.empty else "features"

    @property
    def filter_values(self) -> dict[str, list[str]]:
        """The paper's names on each axis, from numbers and jobs."""
        jobs = [job for experiment in self.experiments for job in experiment.jobs]
        return {axis: [*self.frame[axis], *(job.labels[axis] for job in jobs)] for axis in AXES}

    # --- tables and figures -------------------------------------------------------------------------------------------

    @cached_property
    def features(self) -> pd.DataFrame:
        """Features of methods; empty if the paper prints none."""
        rows = reported.features(self.paper, self.label)
        if rows.empty:  # as in nearly all: pivoting none of them takes as long as the rest of an exhibit
            return rows
        body = rows.pivot(index="method", columns="feature", values="value").fillna("")
        return body.loc[list(dict.fromkeys(rows["method"])), list(dict.fromkeys(rows["feature"]))]

    @cached_property
    def compared(self) -> pd.DataFrame:
        """Numbers of models with results of ours, also excluded ones."""
        return self.frame[self._is_compared]

    @cached_property
    def uncompared(self) -> pd.DataFrame:
        """Numbers of models without results of ours."""
        return self.frame[~self._is_compared]

    @property
    def _is_compared(self) -> pd.Series[bool]:
        has_result = self.frame["ours"].notna() | (self.frame["verdict"] == agreement.EXCLUDED)
        return self.frame["model"].isin(self.frame.loc[has_result, "model"])

    @cached_property
    def drawn(self) -> list[DrawnFigure]:
        """Figures of our runs, also those not drawn; without other versions of the paper."""
        return [drawn for experiment in self.version_experiments for drawn in self.all_drawn.get(experiment.name, ())]

    @property
    def figures(self) -> list[DrawnFigure]:
        """Figures with an image."""
        return [drawn for drawn in self.drawn if drawn.image is not None]

    # --- our runs -----------------------------------------------------------------------------------------------------

    @cached_property
    def state(self) -> str:
        """Availability of our results, a key of `STATES`."""
        drawn_names = {drawn.name for drawn in self.figures}
        experiments = [experiment for experiment in self.version_experiments if experiment.name in FIGURES]
        parts = [*(experiment.name in drawn_names for experiment in experiments), *self.frame["ours"].notna()]
        if not parts:
            return SHARED if self.experiments else NO_RESULTS
        return COMPLETE if all(parts) else PARTIAL if any(parts) else MISSING

    @property
    def number_scales(self) -> list[str]:
        """Scales of our numbers, in order; without numbers, the paper's."""
        return list(dict.fromkeys(filter(None, self.frame["scale"]))) or ["paper"]

    @cached_property
    def scales(self) -> list[str]:
        """Scales of the available runs, the nearest to the paper's first; without runs, the paper's."""
        scales = {r.scale for r in self.replications if any(cell.record for cell in r.cells)}
        return order_scales(dict.fromkeys(scales | set(filter(None, self.frame["scale"])))) or ["paper"]

    def commands(self, scales: Sequence[str]) -> list[str]:
        """Return the commands that start the runs at these scales."""
        names = [experiment.name for experiment in self.experiments]
        if not names:
            exhibits = [(self.paper, label) for label in select.source_exhibits(self.paper, self.label)]
            names = [experiment.name for key in exhibits for experiment in select.experiments().get(key, ())]
        return [scale_command(name, scale) for name in names for scale in scales]

    @property
    def runs(self) -> list[str]:
        """Names of the records behind numbers and figures."""
        names = run_ids(self.frame)
        shown = {(drawn.name, drawn.scale) for drawn in self.figures}
        for replication in self.replications:
            if (replication.experiment.name, replication.scale) in shown:
                names += [cell.path.name for cell in replication.recorded_cells()]
        return list(dict.fromkeys(names))

    # --- sentences ----------------------------------------------------------------------------------------------------

    @property
    def summary(self) -> Iterator[str]:
        """Sentences on the content in the paper and on our numbers."""
        if content := self.listed.get("content"):
            yield f"In the paper: {content}."
        if self.has_numbers:
            yield from (self.results, *self.verdicts, *self.baselines)
        elif not self.experiments:
            yield "It contains no results, " + (
                "only a diagram."
                if self.features.empty
                else "only marks; a mark that our copy of the paper lost is shown as unknown."
            )
        for experiment in self.experiments:
            if experiment.paper != self.paper:
                yield f"It uses the runs of {version_name(experiment.paper)}, {experiment.exhibit}" + (
                    ", which also shows the figure." if experiment.name in FIGURES else "."
                )

    @property
    def results(self) -> str:
        """Sentence on our numbers: models, scale, and whether they replicate the paper's."""
        compared = self.frame[self.frame["ours"].notna()]
        if compared.empty:
            return "No run of ours gives these numbers yet."
        scales, models = (", ".join(dict.fromkeys(compared[name])) for name in ("scale", "model_ran"))
        counted = [f"{count_phrase(len(run_ids(compared)), 'run')} at scale {scales}"]
        counted += [count_phrase(len(distinct_results(compared)), "distinct result")]
        repeated = int((compared["repeats"] != "").sum())
        defined = int((compared["verdict"] == agreement.BY_DEFINITION).sum())
        counted += [count_phrase(repeated, "repeated result")] if repeated else []
        counted += [f"{defined} equal to 1 by definition"] if defined else []
        text = (
            f"Our runs: {models}; results for {len(compared)} of the paper's "
            f"{count_phrase(len(self.frame), 'number')} ({', '.join(counted)}).{self._shared_runs}"
        )
        toys = int(compared["toy"].sum())
        if toys:
            subject = "This is a" if toys == len(compared) else f"{toys} of these results come from a"
            return f"{text} {subject} {TOY_RUN}."
        replicated = (agreement.AGREES, agreement.DIFFERS, agreement.OTHER_HARDWARE, agreement.BY_DEFINITION)
        if not compared["verdict"].isin(replicated).any():
            return f"{text} They use another model or fewer prompts than the paper: not a replication of its values."
        return text

    @property
    def _shared_runs(self) -> str:
        """Sentence on other tables and figures with numbers from these runs, or ""."""
        if self.experiments:
            exhibits = [(experiment.paper, experiment.exhibit) for experiment in self.experiments]
            foreign = [exhibit for exhibit in exhibits if exhibit != (self.paper, self.label)]
            names = "; ".join(f"{version_name(paper)}, {label}" for paper, label in foreign)
        else:
            names = ", ".join(select.source_exhibits(self.paper, self.label))
        return f" The runs belong to {names}." if names else ""

    @cached_property
    def verdicts(self) -> list[str]:
        """Sentences on the verdicts and the ranking."""
        return verdict_sentences(self.frame)

    @property
    def baselines(self) -> list[str]:
        """Sentences on the baseline, for a paper that divides by Hugging Face `generate`."""
        is_speedup = (self.frame["metric"] == "speedup") & self.frame["ours"].notna()
        rows = self.frame[is_speedup & (self.frame["verdict"] != agreement.BY_DEFINITION)]
        counting = None if rows.empty else folder_of(self.paper).counts.get("speedup")
        if counting is None or counting.baseline != "hf":
            return []
        over_ar = int((rows["reason"] != "").sum())
        parts = [f"{over_ar} of our numbers: {OVER_AR}"] if over_ar else []
        if over_ar < len(rows):
            parts += [f"{len(rows) - over_ar} of our numbers: relative to Hugging Face generate, as in the paper"]
        return [f"Speedup as the paper defines it: {counting.meaning}. {'; '.join(parts)}."]

    @property
    def remarks(self) -> list[str]:
        """Notes of the runs, e.g. on parts left out by the scale, and reasons of missing numbers with counts."""
        notes = [note for replication in self.replications for note in replication.notes]
        without = self.frame.loc[self.frame["ours"].isna() & (self.frame["reason"] != ""), "reason"]
        return notes + [
            f"No result of ours for {count_phrase(count, 'number')}: {reason}"
            for reason, count in without.value_counts(sort=False).items()
        ]

    @property
    def missing(self) -> list[str]:
        """Reasons why numbers, figures and parts are missing."""
        lines = self.remarks
        for experiment in self.version_experiments:
            lines += [f"{entry['what']}: {entry['why']}" for entry in experiment.not_run if not entry.get("numbers")]
            attempts = self.all_drawn.get(experiment.name, ())
            lines += [f"No figure at scale {drawn.scale}: {drawn.reason}" for drawn in attempts if drawn.image is None]
            if experiment.name in FIGURES and not attempts:
                lines.append(f"No figure yet: experiment={experiment.name} was not run at any scale.")
        return lines


def build_exhibits(
    frames: Mapping[tuple[str, str], pd.DataFrame],
    replications: Sequence[Replication] = (),
    drawn: Mapping[str, Sequence[DrawnFigure]] | None = None,
) -> list[Exhibit]:
    """Return all tables, figures and passages, those with numbers first, in the order of the numbers.

    The frames are from `numbers.long_tables`, figures, if any, from `figures.draw_figures`.
    """
    listed = reported.exhibits()[["paper", "exhibit"]].itertuples(index=False, name=None)
    return [
        Exhibit(paper, label, frames.get((paper, label), NO_NUMBERS), replications, drawn or {})
        for paper, label in dict.fromkeys([*frames, *select.experiments(), *listed])
        if paper in paper_versions()
    ]


def all_numbers(exhibits: Iterable[Exhibit]) -> pd.DataFrame:
    return pd.concat([exhibit.frame for exhibit in exhibits if exhibit.has_numbers], ignore_index=True)


def completeness(exhibits: Sequence[Exhibit], replications: Iterable[Replication]) -> str:
    """Return sentences on the coverage of the papers' tables and figures (without passages), and on our runs."""
    listed = [exhibit for exhibit in exhibits if exhibit.listed]
    states = Counter(exhibit.state for exhibit in listed)
    parts = ", ".join(f"{states[state]} {phrase}" for state, phrase in STATES.items() if states[state])
    frame = all_numbers(exhibits)
    compared = frame[frame["ours"].notna()]
    runs = {cell.path for replication in replications for cell in replication.recorded_cells()}
    return (
        f"Tables and figures of the papers: {len(listed)} in total, {parts}. "
        f"Our results: {count_phrase(len(runs), 'run')}, "
        f"{count_phrase(len(distinct_results(compared)), 'distinct result')}, "
        f"compared with {len(compared)} numbers of the papers."
    )
