"""KnapSpec's figures: what predicts speed, what is skipped as the context grows, and the sweeps of τ and T."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from ssd_bench import metrics, style
from ssd_bench.metrics import Measured, intervals
from ssd_bench.papers import figures_shared as common
from ssd_bench.papers import values
from ssd_bench.papers.cells import Cell, Replication
from ssd_bench.papers.figures_shared import Cannot
from ssd_bench.papers.reported import Number
from ssd_bench.records.reader import Run

BINS = 10  # of context lengths


def figure2(replication: Replication) -> Figure | Cannot:
    """TPT and α of each prompt against its tokens/s, with Pearson's r over all prompts and methods."""
    drawn = common.cells(replication)
    points = {cell["method"]: values.by_prompt(cell.run) for cell in drawn}
    panels = {
        "tpt_predicted": "TPT of Eq. 4 (tokens/s)", "tpt_estimated": "TPT, own estimate (tokens/s)",
        "alpha": "acceptance rate α",
    }  # fmt: skip
    panels = {key: text for key, text in panels.items() if any(frame[key].notna().any() for frame in points.values())}
    theirs = {number.settings["pair"]: number for number in common.reported(replication, "pearson")}
    theirs = {"tpt_predicted": theirs["TPT vs throughput"], "alpha": theirs["acceptance rate vs throughput"]}
    figure, body = common.page(style.PAGE, 3.0)
    axes = body.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for panel, (key, text) in zip(axes, panels.items(), strict=True):
        for i, cell in enumerate(drawn):
            frame, own = points[cell["method"]], style.mark(cell["method"], i)
            panel.plot(
                frame[key], frame["tokens_per_s"], linestyle="", label=cell["method"] + common.sign(cell),
                **common.points(own, cell.void, face="none"),
            )  # fmt: skip
        panel.set_xlabel(text)
        correlation = _correlation(pd.concat(points.values())[[key, "tokens_per_s"]].dropna())
        panel.set_title(correlation, loc="left", pad=16)
        if key in theirs:
            panel.annotate(f"paper: r = {theirs[key].printed}", (0, 1), (0, 5), "axes fraction", "offset points",
                           fontsize=7, color=style.FAINT)  # fmt: skip
    axes[0].set_ylabel("throughput (tokens/s)")
    common.legend(body)
    note = (
        "A point is a prompt and a method; r: Pearson's, over all points of a panel, with its 95 % interval. "
        "Eq. 4 takes the realised α and draft length and the measured latency of the sublayers."
    )
    return common.finish(figure, replication, drawn, note)


def _correlation(frame: pd.DataFrame) -> str:
    x, y = (frame.iloc[:, i].to_numpy() for i in (0, 1))
    if len(frame) < 4 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return f"r undefined, n = {len(frame)}"
    result = stats.pearsonr(x, y)
    low, high = result.confidence_interval()
    r = float(result.statistic)
    return f"r = {r:.3f} [{low:.2f}, {high:.2f}]\nR² = {r * r:.2f}, n = {len(frame)}".replace("-", "−")


def figure3(replication: Replication) -> Figure | Cannot:
    """Share of attentions and of MLPs that drafting skips, over the context length."""
    drawn = common.cells(replication)
    figure, body = common.page(style.COLUMN, 2.9)
    axes = body.subplots()
    frames = {cell["method"]: metrics.skipped_shares(cell.run) for cell in drawn}
    frames = {method: frame for method, frame in frames.items() if len(frame)}
    if not frames:
        return Cannot("No step of its runs was drafted by layers.")
    lengths = pd.concat(frames.values())["context_len"]
    edges = np.linspace(lengths.min(), lengths.max() + 1, BINS + 1)
    for i, cell in enumerate(cell for cell in drawn if cell["method"] in frames):
        frame = frames[cell["method"]]
        bins = np.searchsorted(edges, frame["context_len"].to_numpy(dtype=float), side="right")
        groups = [group for _, group in frame.groupby(bins)]
        x = [float(group["context_len"].mean()) for group in groups]
        lines = {kind: [_mean(group, kind) for group in groups] for kind in ("attention", "MLP")}
        attention, mlp = (np.array([n.value for n in numbers], dtype=float) for numbers in lines.values())
        alike = np.allclose(attention, mlp, atol=0.005)  # then one line is both
        for j, (kind, numbers) in enumerate(lines.items()):
            if not (alike and j):
                label = f"{cell['method']}: {'attention and MLP alike' if alike else kind}{common.sign(cell)}"
                shown = [common.shown(cell, number) for number in numbers]
                common.line(axes, x, shown, style.MARKS[2 * i + j], label)
    axes.set_xlabel("context length (tokens)")
    axes.set_ylabel("skipped share")
    axes.set_ylim(-0.04, 1)
    common.legend(body)
    note = f"Means over draft steps in {BINS} bins of the context. {common.INTERVALS}"
    return common.finish(figure, replication, drawn, note)


def _mean(frame: pd.DataFrame, column: str) -> Measured:
    sums = frame.assign(steps=1.0).groupby("prompt_index")[[column, "steps"]].sum()
    return intervals.ratio(sums[column].to_numpy(), sums["steps"].to_numpy())


def figure4(replication: Replication) -> Figure | Cannot:
    """Throughput, memory and time of the search over the pruning threshold τ."""
    drawn = common.cells(replication)
    taus = [cell.setting("tau") for cell in drawn]
    reference = next((cell for cell, tau in zip(drawn, taus) if tau.startswith("none")), None)
    if reference is None:
        return Cannot("The run without pruning (τ = none), to which the others are compared, is missing.")
    # on a CPU the peak is that of the process, which keeps what it once had
    memory = not any(str(cell.header["model"]["device"]).startswith("cpu") for cell in drawn)
    figure, body = common.page(style.PAGE, 2.6)
    left, right, *rest = body.subplots(1, 2 + memory)
    own, x = style.mark("KnapSpec", 0), list(range(len(drawn)))
    common.line(left, x, [common.shown(cell, "speedup") for cell in drawn], own, "KnapSpec")
    for number in common.reported(replication, "speedup"):
        if number.settings["tau"] in taus:
            at = taus.index(number.settings["tau"])
            common.theirs(left, [number], (at - 0.25, at + 0.25))
    common.level(left)
    left.set_ylabel("throughput over\nAR's (×)")
    times = [_policy(cell.run) for cell in drawn]
    searches = [_relative(time, _policy(reference.run)) for time in times]
    common.line(right, x, [common.shown(cell, n) for cell, n in zip(drawn, searches)], own, "KnapSpec")
    right.set_ylabel("search time over that\nwithout pruning")
    for axes in rest:
        peaks = [common.shown(cell, Measured(_memory(cell.run))) for cell in drawn]
        common.line(axes, x, peaks, own, "KnapSpec")
        axes.set_ylabel("memory over AR's (MiB)")
    for axes in (left, right, *rest):
        axes.set_xticks(x, [tau.split(" ")[0] for tau in taus])
        axes.set_xlabel("pruning threshold τ")
        axes.set_ylim(0, 1.05 * axes.get_ylim()[1])
    common.legend(body)
    less = ", ".join(f"{n.printed} % less at τ = {n.settings['tau']}"
                     for n in common.reported(replication, "memory_reduction_pct"))  # fmt: skip
    note = f"Search time: policy time per decoded token. {common.INTERVALS} "
    note += "Memory: peak, what it is above that of AR on the same prompt" if memory else (
        "No panel of memory: on a CPU the peak is the process's, which keeps what it once had"
    )  # fmt: skip
    return common.finish(figure, replication, drawn, f"{note}; paper: {less}.")


def _memory(run: Run) -> float:
    """MiB by which decoding at its peak takes more than AR on the same prompt, the largest of all prompts."""
    peaks = run.prompts.pivot_table(index=["prompt_index", "repeat"], columns="arm", values="peak_bytes")
    return float((peaks["method"] - peaks["ar"]).max()) / 2**20 if "ar" in peaks else float("nan")


def _policy(run: Run) -> pd.DataFrame:
    """Policy milliseconds and decoded tokens of each prompt."""
    rows = metrics.arm_rows(run.prompts, "method")
    rows = rows.assign(tokens=(rows["new_tokens"] - 1).clip(lower=0).astype(float))
    return rows.groupby("prompt_index")[["policy_ms", "tokens"]].sum()


def _relative(own: pd.DataFrame, reference: pd.DataFrame) -> Measured:
    """Time per token over the reference's, on the prompts of both."""
    both = own.join(reference.add_suffix("_reference"), how="inner")
    names = ("policy_ms", "tokens", "policy_ms_reference", "tokens_reference")
    return intervals.measure(intervals.ratio_of_ratios, *(both[name].to_numpy(dtype=float) for name in names))


def figure5(replication: Replication) -> Figure | Cannot:
    """How often each sublayer is skipped in the sets that the search chose."""
    found = [(cell, *_frequency(cell.run)) for cell in common.cells(replication)]
    never = [f"No panel of {cell['task']}: no search after which layers drafted." for cell, _, n in found if not n]
    found = [one for one in found if one[2]]
    if not found:
        return Cannot(" ".join(never))
    figure, body = common.page(style.PAGE, 0.9 + 1.35 * len(found))
    panels = body.subplots(len(found), 1, squeeze=False)[:, 0]
    for i, (axes, (cell, frequency, events)) in enumerate(zip(panels, found, strict=True)):
        _draw_frequency(axes, frequency)
        if cell.is_of_papers_model:  # layers of another model have other meanings
            _draw_named(
                axes,
                common.reported(replication, "layer_index", model=common.papers_model(replication, cell["model"])),
            )
        title = f"({chr(97 + i)}) {cell['model']}, {cell['task']}: {events} searches{common.sign(cell)}"
        axes.set_title(title, loc="left")
    panels[-1].set_xlabel("sublayer (odd: attention, even: MLP)")
    common.legend(body)
    note = " ".join(["Share of search events whose chosen set skips the sublayer.", *never])
    return common.finish(figure, replication, [cell for cell, _, _ in found], note)


def _frequency(run: Run) -> tuple[Any, int]:
    """Share of search events whose set skips each of the 2L sublayers, and the number of events."""
    steps = metrics.arm_rows(run.steps, "method").sort_values(["repeat", "prompt_index", "step"])
    following = steps["layer_set_id"].bfill().shift(-1)
    chosen = following[steps["est_alpha"].notna()].dropna().astype(int)
    masks = np.zeros(2 * int(run.header["model"]["n_layers"]))
    for set_id, times in chosen.value_counts().items():
        masks[sorted(run.layer_set(int(str(set_id))).skipped)] += times
    return masks / max(len(chosen), 1), len(chosen)


def _draw_frequency(axes: Axes, frequency: Any) -> None:
    index = np.arange(1, len(frequency) + 1)
    for start, name, (colour, hatch) in ((0, "attention", style.ATTENTION), (1, "MLP", style.MLP)):
        axes.bar(
            index[start::2], frequency[start::2], 0.8, color=colour, hatch=hatch, edgecolor="white", linewidth=0,
            label=name,
        )  # fmt: skip
    axes.set_ylim(0, 1)
    axes.set_xlim(0.3, len(frequency) + 0.7)
    axes.set_xticks([1, *range(8, len(frequency) + 1, 8)])
    axes.set_ylabel("skip frequency")


def _draw_named(axes: Axes, found: Sequence[Number]) -> None:
    """Triangles at the sublayers that the paper names: up from those hardly skipped, down on those often skipped."""
    for number in found:
        hardly = number.settings["observation"].startswith("near-zero")
        axes.plot(
            number.value, 0.06 if hardly else 0.94, linestyle="", marker="^" if hardly else "v", color=style.FAINT,
            markeredgecolor="white", markeredgewidth=0.5, label=f"paper: {number.settings['observation']}",
        )  # fmt: skip


def figure6(replication: Replication) -> Figure | Cannot:
    """Throughput and share of the time that the search takes, over the interval T."""
    drawn = sorted(common.cells(replication), key=lambda cell: int(cell.setting("opt_interval")))
    figure, body = common.page(style.COLUMN, 3.9)
    upper, lower = body.subplots(2, 1, sharex=True)
    x = [float(cell.setting("opt_interval")) for cell in drawn]
    rates = [common.shown(cell, "method_tokens_per_s") for cell in drawn]
    common.line(upper, x, rates, style.MARKS[0], "throughput")
    shares = [common.shown(cell, share) for cell, share in zip(drawn, _shares(drawn))]
    common.line(lower, x, shares, style.MARKS[1], "search")
    for number in common.reported(replication, "overhead_pct"):
        at = float(number.settings["opt_interval"])
        common.theirs(lower, [number], (at / 1.25, at * 1.25))
    lower.set_xscale("log", base=2)
    lower.set_xticks(x, [f"{value:.0f}" for value in x])
    lower.minorticks_off()
    lower.set_xlabel("interval between searches T (steps)")
    upper.set_ylabel("throughput\n(tokens/s)")
    lower.set_ylabel("search, share of\nthe time (%)")
    upper.set_ylim(bottom=0)
    lower.set_ylim(bottom=0)
    common.legend(body)
    peaks = [f"{n.printed} tokens/s at T = {n.settings['opt_interval']}"
             for n in common.reported(replication, "tokens_per_s")]  # fmt: skip
    return common.finish(figure, replication, drawn, f"{common.INTERVALS} Paper's peak: {', '.join(peaks)}.")


def _shares(drawn: Sequence[Cell]) -> list[Measured]:
    """Percentage of the decode time that the method's own work takes."""
    found = []
    for cell in drawn:
        rows = metrics.arm_rows(cell.run.prompts, "method").groupby("prompt_index")[["policy_ms", "decode_ms"]].sum()
        share = intervals.ratio(rows["policy_ms"].to_numpy(), rows["decode_ms"].to_numpy())
        low, high = (None if v is None else 100 * v for v in (share.low, share.high))
        found.append(Measured(None if share.value is None else 100 * share.value, low, high, share.n))
    return found
