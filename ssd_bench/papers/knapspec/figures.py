"""KnapSpec's figures: predictors of speed, skipped sublayers over context length, and sweeps of τ and T."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from ssd_bench.papers.figures import shared as common
from ssd_bench.papers.figures import style, subjects
from ssd_bench.papers.figures.shared import NotDrawable
from ssd_bench.papers.ours import values
from ssd_bench.papers.ours.cells import Replication
from ssd_bench.papers.printed.reported import Number
from ssd_bench.records.reader import Run
from ssd_bench.results.definitions import skipped_shares
from ssd_bench.results.prompt_table import PromptTable
from ssd_bench.results.quantity import QUANTITIES, Measured, ratio
from ssd_bench.results.rows import arm_rows

BINS = 10  # of context lengths


def figure2(replication: Replication) -> Figure | NotDrawable:
    """Draw each prompt's TPT and α against its tokens/s, with Pearson's r over all prompts and methods."""
    drawn = replication.shown_cells()
    points = {cell["method"]: values.speed_points(cell.run) for cell in drawn}
    panels = {
        "tpt_predicted": "TPT of Eq. 4 (tokens/s)",
        "tpt_estimated": "TPT, method's estimate (tokens/s)",
        "alpha": "acceptance rate α",
    }
    panels = {key: text for key, text in panels.items() if any(frame[key].notna().any() for frame in points.values())}
    reported = {number.settings["pair"]: number for number in common.paper_numbers(replication, "pearson")}
    reported = {"tpt_predicted": reported["TPT vs throughput"], "alpha": reported["acceptance rate vs throughput"]}
    figure, body = common.new_figure(style.PAGE, 3.0)
    axes = body.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for panel, (key, text) in zip(axes, panels.items(), strict=True):
        for i, cell in enumerate(drawn):
            frame, mark = points[cell["method"]], style.mark(cell["method"], i)
            label, look = cell["method"] + common.excluded_sign(cell), common.point_style(mark, cell.exclusion, "none")
            panel.plot(frame[key], frame["method_tokens_per_s"], label=label, **look)
        panel.set_xlabel(text)
        correlation = _correlation_text(pd.concat(points.values())[[key, "method_tokens_per_s"]].dropna())
        panel.set_title(correlation, loc="left", pad=16)
        if key in reported:
            text = f"paper: r = {reported[key].printed}"
            panel.annotate(text, (0, 1), (0, 5), "axes fraction", **style.GREY_TEXT | {"fontsize": 7})
    axes[0].set_ylabel("throughput (tokens/s)")
    note = (
        "Each point is one prompt and method. r: Pearson's correlation over all points of a panel, with its 95 % "
        "interval. Eq. 4 uses the realised α and draft length and the measured latency of the sublayers."
    )
    return common.finish(figure, replication, drawn, note)


def _correlation_text(frame: pd.DataFrame) -> str:
    x, y = (frame.iloc[:, i].to_numpy() for i in (0, 1))
    if len(frame) < 4 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return f"r undefined, n = {len(frame)}"
    result = stats.pearsonr(x, y)
    low, high = result.confidence_interval()
    r = float(result.statistic)
    return f"r = {r:.3f} [{low:.2f}, {high:.2f}]\nR² = {r * r:.2f}, n = {len(frame)}".replace("-", "−")


def figure3(replication: Replication) -> Figure | NotDrawable:
    """Draw the shares of attentions and MLPs skipped in drafting, over context length."""
    drawn = replication.shown_cells()
    figure, body = common.new_figure(style.COLUMN, 2.9)
    axes = body.subplots()
    frames = {cell["method"]: skipped_shares(cell.run) for cell in drawn}
    frames = {method: frame for method, frame in frames.items() if len(frame)}
    if not frames:
        return NotDrawable("No run drafted with layers.")
    lengths = pd.concat(frames.values())["context_len"]
    edges = np.linspace(lengths.min(), lengths.max() + 1, BINS + 1)
    for i, cell in enumerate(cell for cell in drawn if cell["method"] in frames):
        frame = frames[cell["method"]]
        bins = np.searchsorted(edges, frame["context_len"].to_numpy(dtype=float), side="right")
        groups = [group for _, group in frame.groupby(bins)]
        x = [float(group["context_len"].mean()) for group in groups]
        lines = {kind: [_mean(group, kind) for group in groups] for kind in ("attention", "MLP")}
        attention, mlp = (np.array([n.value for n in numbers], dtype=float) for numbers in lines.values())
        same_shares = np.allclose(attention, mlp, atol=0.005)  # then one line for both
        for j, (kind, numbers) in enumerate(lines.items()):
            if not (same_shares and j):
                kinds = "attention = MLP" if same_shares else kind
                label = f"{cell['method']}: {kinds}{common.excluded_sign(cell)}"
                plot_values = [common.plot_value(cell, number) for number in numbers]
                common.draw_line(axes, x, plot_values, style.MARKS[2 * i + j], label)
    axes.set_xlabel("context length (tokens)")
    axes.set_ylabel("skipped share")
    axes.set_ylim(-0.04, 1)
    note = f"Means over draft steps in {BINS} bins of the context length. {common.INTERVALS}"
    return common.finish(figure, replication, drawn, note)


def _mean(frame: pd.DataFrame, column: str) -> Measured:
    sums = frame.assign(steps=1.0).groupby("prompt_index")[[column, "steps"]].sum()
    return ratio(sums[column].to_numpy(), sums["steps"].to_numpy(), at_most=1.0)


def figure4(replication: Replication) -> Figure | NotDrawable:
    """Draw throughput, search time and memory over the pruning threshold τ."""
    drawn = replication.shown_cells()
    points = subjects.setting_points(drawn, "tau")
    if (reason := subjects.no_difference(points, "τ")) is not None:
        return reason
    reference = next((i for i, point in enumerate(points) if point.settings[0].startswith("none")), None)
    if reference is None:
        return NotDrawable("The reference run, without pruning (τ = none), is missing.")
    # on a CPU the peak is that of the process, which does not return memory: methods cannot be compared
    memory = not any(cell.header.model.device.startswith("cpu") for cell in drawn)
    figure, body = common.new_figure(style.PAGE, 2.6)
    left, right, *memory_panels = body.subplots(1, 2 + memory)
    subjects.draw_speedups(left, points)
    for number in common.paper_numbers(replication, "speedup"):
        for at in (i for i, point in enumerate(points) if number.settings["tau"] in point.settings):
            common.draw_paper_numbers(left, [number], (at - 0.25, at + 0.25))
    left.set_ylabel("throughput relative\nto AR (×)")
    kind, runs = [*subjects.timed_runs(points).items()][-1]  # modelled if all runs count their work
    times = [_overhead_times(run) for run in runs]
    searches = [_relative_time(time, times[reference]) for time in times]
    shown = [common.plot_value(point.cell, number) for point, number in zip(points, searches, strict=True)]
    subjects.draw_times(right, kind, shown)
    right.set_ylabel("search time relative\nto no pruning")
    for axes in memory_panels:
        peaks = [common.plot_value(point.cell, Measured(_extra_memory_mib(point.cell.run))) for point in points]
        subjects.draw_times(axes, subjects.MEASURED, peaks)
        axes.set_ylabel("memory above AR's (MiB)")
    for axes in (left, right, *memory_panels):
        subjects.set_slots(axes, points, "pruning threshold τ")
        axes.set_ylim(0, 1.05 * axes.get_ylim()[1])
    cells = [point.cell for point in points]
    return common.finish(figure, replication, cells, *_pruning_notes(replication, points, memory))


def _pruning_notes(replication: Replication, points: Sequence[subjects.SettingPoint], memory: bool) -> list[str]:
    less = ", ".join(
        f"{n.printed} % less at τ = {n.settings['tau']}"
        for n in common.paper_numbers(replication, "memory_reduction_pct")
    )
    peak = (
        "peak above the peak of AR on the same prompt"
        if memory
        else "not drawn, since on a CPU the peak is that of the process, which does not return memory"
    )
    parts = [
        "Search time: method overhead per decoded token, modelled where the records count their work: measured times "
        "contain run-to-run variation.",
        common.INTERVALS,
        subjects.modelled_note(points),
    ]
    if len({point.cell.timing.trace for point in points}) == 1:
        parts.append("All settings made the same steps; only the work of the search differs.")
    return [*parts, subjects.same_work_note(points, "τ"), f"Memory: {peak}; paper: {less}."]


def _extra_memory_mib(run: Run) -> float:
    """Return the largest difference over prompts between the method's and AR's peak, in MiB."""
    peaks = run.prompts.pivot_table(index=["prompt_index", "repeat"], columns="arm", values="peak_bytes")
    return float((peaks["method"] - peaks["ar"]).max()) / 2**20 if "ar" in peaks else float("nan")


def _overhead_times(run: Run) -> pd.DataFrame:
    rows = arm_rows(run.prompts, "method")
    tokens = PromptTable(rows).frame(QUANTITIES["method_tokens_per_s"])[["tokens"]]
    return tokens.assign(policy_ms=rows.groupby("prompt_index")["policy_ms"].sum())


def _relative_time(times: pd.DataFrame, reference: pd.DataFrame) -> Measured:
    """Return the time per token relative to the reference's, on prompts that both decoded."""
    joined = times.join(reference.add_suffix("_reference"), how="inner")
    names = ("policy_ms", "tokens", "policy_ms_reference", "tokens_reference")
    return QUANTITIES["draft_cost"].measure(*(joined[name].to_numpy(dtype=float) for name in names))


def figure5(replication: Replication) -> Figure | NotDrawable:
    """Draw how often the search's chosen sets skip each sublayer."""
    frequencies = [(cell, *_skip_frequency(cell.run)) for cell in replication.shown_cells()]
    reason = "has no panel: no search was followed by drafting with layers."
    never = [f"{cell['task']} {reason}" for cell, _, n in frequencies if not n]
    frequencies = [entry for entry in frequencies if entry[2]]
    if not frequencies:
        return NotDrawable(" ".join(never))
    figure, body = common.new_figure(style.PAGE, 0.9 + 1.35 * len(frequencies))
    panels = body.subplots(len(frequencies), 1, squeeze=False)[:, 0]
    for i, (axes, (cell, frequency, events)) in enumerate(zip(panels, frequencies, strict=True)):
        _draw_frequency(axes, frequency)
        if cell.is_of_papers_model:  # layers of another model have other meanings
            model = common.paper_model(replication, cell["model"])
            _draw_paper_sublayers(axes, common.paper_numbers(replication, "layer_index", model=model))
        title = f"({chr(97 + i)}) {cell['model']}, {cell['task']}: {events} searches{common.excluded_sign(cell)}"
        axes.set_title(title, loc="left")
    panels[-1].set_xlabel("sublayer (odd: attention, even: MLP)")
    cells = [cell for cell, _, _ in frequencies]
    note = "Share of search events whose chosen set skips the sublayer."
    return common.finish(figure, replication, cells, note, *never)


def _skip_frequency(run: Run) -> tuple[Any, int]:
    """Return the share of search events whose set skips each of the 2L sublayers, and the number of events."""
    steps = values.method_steps(run)
    following = steps["layer_set_id"].bfill().shift(-1)
    chosen = following[steps["est_alpha"].notna()].dropna().astype(int)
    masks = np.zeros(2 * run.header.model.n_layers)
    for set_id, times in chosen.value_counts().items():
        masks[sorted(run.layer_set(int(str(set_id))).skipped)] += times
    return masks / max(len(chosen), 1), len(chosen)


def _draw_frequency(axes: Axes, frequency: Any) -> None:
    index = np.arange(1, len(frequency) + 1)
    for start, name, (colour, hatch) in ((0, "attention", style.ATTENTION), (1, "MLP", style.MLP)):
        look: dict[str, Any] = {"color": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0}
        axes.bar(index[start::2], frequency[start::2], 0.8, label=name, **look)
    axes.set_ylim(0, 1)
    axes.set_xlim(0.3, len(frequency) + 0.7)
    axes.set_xticks([1, *range(8, len(frequency) + 1, 8)])
    axes.set_ylabel("skip frequency")


def _draw_paper_sublayers(axes: Axes, reported: Sequence[Number]) -> None:
    """Draw triangles at sublayers named in the paper: up for hardly skipped, down for often skipped."""
    for number in reported:
        hardly = number.settings["observation"].startswith("near-zero")
        look: dict[str, Any] = {"color": style.FAINT, "markeredgecolor": "white", "markeredgewidth": 0.5}
        look |= {"linestyle": "", "marker": "^" if hardly else "v", "label": f"paper: {number.settings['observation']}"}
        axes.plot(number.value, 0.06 if hardly else 0.94, **look)


def figure6(replication: Replication) -> Figure | NotDrawable:
    """Draw throughput and the search's share of the time over the interval T."""
    drawn = sorted(replication.shown_cells(), key=lambda cell: int(cell.setting("opt_interval")))
    points = subjects.setting_points(drawn, "opt_interval")
    if (reason := subjects.no_difference(points, "T")) is not None:
        return reason
    figure, body = common.new_figure(style.COLUMN, 3.9)
    upper, lower = body.subplots(2, 1, sharex=True)
    subjects.draw_speedups(upper, points)
    for kind, runs in subjects.timed_runs(points).items():
        shares = [common.plot_value(point.cell, _search_share(run)) for point, run in zip(points, runs, strict=True)]
        subjects.draw_times(lower, kind, shares)
    for number in common.paper_numbers(replication, "overhead_pct"):
        for at in (i for i, point in enumerate(points) if number.settings["opt_interval"] in point.settings):
            common.draw_paper_numbers(lower, [number], (at - 0.3, at + 0.3))
    subjects.set_slots(lower, points, "interval between searches T (steps)")
    upper.set_ylabel("throughput relative\nto AR (×)")
    lower.set_ylabel("search, share of\nthe time (%)")
    upper.set_ylim(bottom=0)
    lower.set_ylim(bottom=0)
    peaks = [
        f"{n.printed} tokens/s at T = {n.settings['opt_interval']}"
        for n in common.paper_numbers(replication, "tokens_per_s")
    ]
    notes = [common.INTERVALS, subjects.modelled_note(points), subjects.same_work_note(points, "T")]
    notes += [f"Paper's peak: {', '.join(peaks)}."]
    return common.finish(figure, replication, [point.cell for point in points], *notes)


def _search_share(run: Run) -> Measured:
    times = PromptTable(run.prompts).frame(QUANTITIES["overhead"])
    share = ratio(times["policy_ms"].to_numpy(), times["ms"].to_numpy(), at_most=1.0)
    value, low, high = (None if part is None else 100 * part for part in (share.value, share.low, share.high))
    return Measured(value, low, high, share.n)
