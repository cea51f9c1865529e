"""`python -m ssd_bench advise model=llama3_1_8b hardware=sim_h100 [name=value ...]`: does self-drafting pay there?

The acceptance that drafts need on that machine by its roofline (skipped sublayers, a window of the cache, a lookup in
earlier text), the speedups that the papers' own acceptance and the records of exactly that model would give there, of
every method on record, and all that this leaves open. A number that is not called measured is PREDICTED.

  model=NAME        of conf/model; or the path of a Hugging Face config.json, or of its folder, of a model that runs
  hardware=NAME     sim_<gpu>, several with commas, or all; own: the machine of the model's records, by their profile
  task=NAME         the papers' numbers and the records of this task only
  runs_dir=runs     where records are
  context=1024      tokens before those that are drafted, fewer than the model's context
  devices=N         simulated GPUs; the fewest that hold the weights unless given
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from ssd_bench import metrics, tables
from ssd_bench.command import choices, count, options, tool
from ssd_bench.core.window import Window
from ssd_bench.cost.machine import Machine, own_profile
from ssd_bench.cost.roofline import gpu_named, simulated, simulated_names
from ssd_bench.cost.shapes import known_shape, shape_named
from ssd_bench.cost.tpt import tpt
from ssd_bench.errors import ConfigError
from ssd_bench.metrics.text import ABSENT, REHEARSAL
from ssd_bench.model.checkpoint import Checkpoint
from ssd_bench.model.shape import Shape
from ssd_bench.papers import grid, select
from ssd_bench.papers.reported import Number
from ssd_bench.papers.rooms import name_of
from ssd_bench.papers.traces import CONTEXT, Acceptance, Row, Steps, least, plain_name, rows
from ssd_bench.paths import local_path
from ssd_bench.records.files import read_header
from ssd_bench.records.pack import unpacked_folder
from ssd_bench.records.reader import Run, find_runs, load_run
from ssd_bench.records.schema import device_name
from ssd_bench.replay.predict import predict, recorded_shape, step_times
from ssd_bench.replay.workload import workload
from ssd_bench.report.predictions import predictions, skill_text

OPTIONS = ("model", "hardware", "task", "runs_dir", "context", "devices")
OWN = "own"
SHARES, HALF = (0.3, 0.4, 0.5, 0.6), 0.5  # of the sublayers, skipped
WINDOWS = (Window(4, 252), Window(4, 1020))  # the default of method=window_draft, and a wider one
LONGEST = 10  # drafted tokens of a step, as in KnapSpec (§3.5)
AIMS = (1.0, 1.2, 1.5)  # speedups
WIDTH = 100  # letters of a line
HEADS = ("drafts", "c", "verification", "breaks even", *(f"{aim}x" for aim in AIMS[1:]), "all accepted")
LEGEND = (
    "Drafts: with a share of the sublayers skipped; with all sublayers and a window of the cache, its first 4 and its "
    "last positions; by a lookup in earlier text, which takes no pass. c: a drafted token over a plain step. "
    "Verification: of γ + 1 nodes over a plain step. Then the acceptance that breaks even, or gives a speedup: how "
    "often a token is accepted if those before it were, at the draft length γ, {longest} at most, that needs least of "
    "it. α, accepted over all drafted tokens, is lower."
)
THEIRS = (
    "By the papers' own M and α (≈: follows from the other one), without the work of their searches; printed: measured "
    "on the paper's machine, or (*) expected from M and α:"
)
OURS = "By the records of this model, medians over runs; measured: on their own machine:"
UNKNOWN = (
    "the acceptance of {model} on your prompts: no data sheet has it, and that of another task is that task's alone",
    "kernels slower than assumed: the share of bandwidth that they reach and what a launch costs are assumptions "
    "(conf/hardware), and decide c",
    "how often a lookup has a draft at all: a step without one is a plain step, and earlier text that repeats decides",
    "more than one sequence at a time: in a batch, verification is more expensive and drafting pays less",
    "sampling: greedy decoding only; another temperature has another acceptance",
    "contexts other than {context:,} tokens: the longer, the larger the share of attentions, which a window caps",
    "the work of a method's own search, of which only records know",
)


@dataclass(frozen=True)
class Asked:
    """What is asked, checked.

    Attributes:
        model: as asked for; named: it is a choice of `conf/model`, which papers and records may have.
        machines: `own`, or names of simulated ones.
        task: "" for all.
    """

    model: str
    named: bool
    shape: Shape
    machines: tuple[str, ...]
    task: str
    runs_dir: Path
    context: int
    devices: int | None


@dataclass(frozen=True)
class Drafts:
    """Drafts of one kind; milliseconds of a plain step, a drafted token, verifications by draft length."""

    plain: float
    token: float
    verify: tuple[float, ...]

    @classmethod
    def of(cls, steps: Steps, skipped: float, window: Window | None = None) -> Drafts:
        """Return drafts of 1 to `LONGEST` tokens by the model, with a share of its sublayers skipped."""
        verify = tuple(steps.verify_ms(n) for n in range(1, LONGEST + 1))
        return cls(steps.plain_ms, steps.draft_ms(skipped, window), verify)

    @classmethod
    def lookup(cls, steps: Steps) -> Drafts:
        """Return drafts of 1 to `LONGEST` tokens from earlier text: c = 0, so only verification has a cost."""
        verify = tuple(steps.verify_ms(n, by_layers=False) for n in range(1, LONGEST + 1))
        return cls(steps.plain_ms, 0.0, verify)

    @property
    def cost(self) -> float:
        """c: a drafted token's time over a plain step's."""
        return self.token / self.plain

    def best(self, acceptance: float) -> tuple[float, int]:
        """The highest speedup at an acceptance of every token, and the draft length that gives it."""
        return max(
            (tpt(acceptance, n, self.token, verify) * self.plain / 1000, n) for n, verify in enumerate(self.verify, 1)
        )

    def needed(self, speedup: float) -> tuple[float, int] | None:
        """The least acceptance that gives a speedup, with its draft length; None where not even 1 does."""
        if self.best(1.0)[0] < speedup:
            return None
        acceptance = least(lambda acceptance: self.best(acceptance)[0], speedup)
        return acceptance, self.best(acceptance)[1]


@dataclass(frozen=True)
class Trace:
    """A paper's speedup of the model, what its M and α say of a step, and what that gives on the machine."""

    row: Row
    acceptance: Acceptance
    predicted: float


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code: 0, or 2 if an option cannot be used."""
    return tool(_advise, __doc__, arguments)


def _advise(arguments: Sequence[str]) -> None:
    asked = question(arguments)
    runs, left = records(asked) if asked.named else ([], Counter[str]())
    machines = [
        _own(asked, runs) if name == OWN else simulated(name, asked.shape, asked.devices) for name in asked.machines
    ]
    parts = [
        advice(asked, Steps(machine, asked.shape.n_layers, asked.context), runs, name)
        for name, machine in zip(asked.machines, machines)
    ]
    print("\n\n".join([*parts, *closing(asked, runs, left)]))


def question(arguments: Sequence[str]) -> Asked:
    """The options, checked before anything is read or computed.

    Raises:
        ConfigError: an option that cannot be used.
    """
    given = options(arguments, OPTIONS)
    for name, allowed in (("model", "model=NAME or the path of a config.json"), ("hardware", "hardware=sim_<gpu>")):
        if name not in given:
            raise ConfigError(name, None, f"give {allowed}")
    machines = simulated_names() if given["hardware"] == "all" else given["hardware"].split(",")
    devices = count("devices", given["devices"]) if "devices" in given else None
    for name in machines:
        if name != OWN:
            gpu_named(name)
    if OWN in machines and devices is not None:
        raise ConfigError("devices", devices, "only with hardware=sim_<gpu>")
    tasks = choices("task")
    if given.get("task", tasks[0]) not in tasks:
        raise ConfigError("task", given["task"], f"one of {', '.join(tasks)}")
    context = count("context", given.get("context", str(CONTEXT)))
    runs_dir = local_path("runs_dir", given.get("runs_dir", "runs"))
    model, named = given["model"], known_shape(given["model"]) is not None
    if not named and (path := local_path("model", model)).exists():
        model = str(path / "config.json" if path.is_dir() else path)
    if not named and OWN in machines:
        raise ConfigError("hardware", OWN, "sim_<gpu> for a model that is not of conf/model: it has no records")
    shape = _opened(Path(model)) if not named and model.endswith(".json") else shape_named(model)
    if shape.context is not None and context >= shape.context:
        raise ConfigError("context", context, f"below {shape.context}, the context of {model}")
    for name in machines:
        if name != OWN:
            simulated(name, shape, devices)  # enough of them
    if "runs_dir" in given and not unpacked_folder(runs_dir).is_dir():
        raise ConfigError("runs_dir", str(runs_dir), "a folder of records")
    return Asked(model, named, shape, tuple(machines), given.get("task", ""), runs_dir, context, devices)


def _opened(path: Path) -> Shape:
    """The sizes in a config.json, refused where a run would refuse it."""
    from ssd_bench.model.weights import Architecture  # torch, which models of conf/model do without

    if path.name != "config.json":
        raise ConfigError("model", str(path), "a file that is named config.json, or its folder")
    config = Checkpoint(path.parent).config
    try:
        return Architecture.of(config)
    except ConfigError as error:
        raise ConfigError(error.field, error.value, f"{error.allowed}, in {path}") from error


def records(asked: Asked) -> tuple[list[Run], Counter[str]]:
    """The greedy, lossless runs of a method on exactly the model and the task; how many others there are, by reason."""
    found, left = list[Run](), Counter[str]()
    for path in find_runs(asked.runs_dir):
        try:
            why = _unfit(asked, read_header(path))
            if not why:
                run = load_run(path)
                recorded_shape(run)
                workload(run)
                bad = metrics.lossless_counts(run.prompts)["bug"]
                why = "not lossless: outputs differ from AR's beyond rounding" if bad else ""
                found += [] if bad else [run]
        except ConfigError as error:
            why = f"that cannot be used: {error}"
        left.update([why] if why else [])
    return found, left


def _unfit(asked: Asked, header: Mapping[str, Any]) -> str:
    name, task = header["model"]["name"], header["task"]["name"]
    if name != asked.model:
        return f"of {name}: acceptance does not carry over from one model to another"
    if asked.task and task != asked.task:
        return "of other tasks"
    sampled = (header.get("decode") or {}).get("mode", "greedy") != "greedy"
    return "of plain decoding, or sampled" if sampled or header.get("method") == "ar" else ""


def _own(asked: Asked, runs: Sequence[Run]) -> Machine:
    """The machine of the latest record that has a profile, with what its loop takes a step."""
    for run in reversed(runs):
        if _profiled(run):
            profile = own_profile(run)
            loop = float(step_times(run, profile)["loop_ms"].iloc[0])
            return replace(profile, name=device_name(run.header), loop_ms=loop)
    allowed = f"sim_<gpu>, or a runs_dir with records of {asked.model} that have a measured latency profile"
    raise ConfigError("hardware", OWN, allowed)


def _profiled(run: Run) -> bool:
    return bool((run.header.get("latency") or {}).get("passes"))


def of_papers(asked: Asked, steps: Steps) -> list[Trace]:
    """The papers' speedups of the model, and task, that have an acceptance; the highest predicted first."""
    found = []
    for row in _rows(asked):
        if not row.missing and row.skipped is not None:
            acceptance = Acceptance.of(row.alpha, row.tokens, row.draft_len)
            found.append(Trace(row, acceptance, steps.speedup(acceptance, row.skipped)))
    return sorted(found, key=lambda trace: -trace.predicted)


def _rows(asked: Asked) -> list[Row]:
    own = [row for row in rows() if asked.named and row.model == plain_name(asked.model)]
    return [row for row in own if not asked.task or asked.task in _tasks(row.number)]


def _tasks(number: Number) -> set[str]:
    """What `task=` a paper's name of a task stands for in its exhibit: two papers have a `5-task stream` each."""
    jobs = [job for one in select.experiments().get((number.paper, number.exhibit), ()) for job in one.jobs]
    return {grid.choice(job.overrides, "task") for job in jobs if job.labels["task"] == number.task}


def of_records(runs: Sequence[Run], machine: str, devices: int | None) -> pd.DataFrame:
    """Medians over the runs of a method on a task; the highest predicted first.

    Returns:
        method, task, runs, M, alpha, right (acceptance of a token if those before it were), measured and predicted
        speedups, NaN where there is none.
    """
    found = []
    for run in runs:
        steps = metrics.arm_rows(run.steps, "method")
        own = predict(run)["speedup"] if machine == OWN and _profiled(run) else None
        found.append({
            "method": run.header["method"], "task": run.header["task"]["name"], "runs": run.path.name,
            "M": metrics.mean_acceptance_length(steps).value, "alpha": metrics.alpha(steps).value,
            "right": metrics.alpha_conditional(steps), "measured": metrics.speedup(run.prompts).value,
            "predicted": own if machine == OWN else predict(run, machine, devices=devices)["speedup"],
        })  # fmt: skip
    numeric = dict.fromkeys(("M", "alpha", "right", "measured", "predicted"), "median")
    columns = ["method", "task", "runs", *numeric]
    frame = pd.DataFrame(found, columns=columns).astype(dict.fromkeys(numeric, "float64"))
    table = frame.groupby(["method", "task"], as_index=False).agg({"runs": "size"} | numeric)
    return table.sort_values("predicted", ascending=False, kind="stable", ignore_index=True)


# --- in words ---------------------------------------------------------------------------------------------------------


def advice(asked: Asked, steps: Steps, runs: Sequence[Run], machine: str) -> str:
    """All that there is to say of one machine, the answer first."""
    theirs, ours = of_papers(asked, steps), of_records(runs, machine, asked.devices)
    source = "latency profile" if machine == OWN else "data sheet"
    about = f"By the {source} of {steps.machine.name}, {asked.context:,} tokens of context, PREDICTED:"
    legend = LEGEND.format(longest=LONGEST)
    parts = [
        _wrapped(answer(asked, steps, theirs, ours)),
        f"{about}\n\n{_table(roofline(steps))}\n\n{_wrapped(legend)}",
    ]
    if theirs:
        parts += [f"{_wrapped(THEIRS)}\n\n{_table(_of_theirs(theirs))}"]
    if len(ours):
        parts += [f"{_wrapped(OURS)}\n\n{_table(_of_ours(ours))}"]
    return "\n\n".join(parts)


def answer(asked: Asked, steps: Steps, theirs: Sequence[Trace], ours: pd.DataFrame) -> str:
    """Return in one sentence whether drafting pays, with which method and by how much."""
    first = _breaks_even(asked, steps)
    if len(ours) and pd.notna(ours["predicted"].iloc[0]):
        best = ours.iloc[0]
        named = f"the best on record, {best['method']} on {best['task']} with α {_number(best['alpha'])}"
        there = "" if pd.isna(best["measured"]) else f", where {best['measured']:.2f}x was measured on its own machine"
        return f"{first}; {named}, would give {best['predicted']:.2f}x, PREDICTED{there}."
    if theirs:
        trace = theirs[0]
        number, alpha = trace.row.number, trace.acceptance.accepted / trace.acceptance.drafted
        named = f"the best that a paper has, {number.method}'s α of {alpha:.2f} on {number.task}"
        theirs_is = f"the paper {'measured' if number.metric == 'speedup' else 'expects'} {number.printed}x"
        return f"{first}; {named}, would give {trace.predicted:.2f}x, PREDICTED, where {theirs_is}."
    return f"{first}; no record and no paper has this model{' on this task' if asked.task else ''}, PREDICTED."


def _breaks_even(asked: Asked, steps: Steps) -> str:
    """Return the acceptance that half of the sublayers, a window and a lookup need to break even."""
    where, half = f"on {steps.machine.name} for {asked.model}", Drafts.of(steps, HALF)
    if (even := half.needed(1.0)) is None:
        most = f"{half.best(1.0)[0]:.2f}x at most, all of them accepted"
        first = f"Skipping half of the sublayers does not pay {where}: drafts of up to {LONGEST} tokens give {most}"
    else:
        first = f"Skipping pays {where} if a token that half of its sublayers draft is accepted with a probability of "
        first += f"{even[0]:.2f} or more (draft length {even[1]})"
    window, lookup = Drafts.of(steps, 0.0, WINDOWS[0]).needed(1.0), Drafts.lookup(steps).needed(1.0)
    needs = "cannot break even" if window is None else f"needs {window[0]:.2f}"
    first += f"; a window of {_width(WINDOWS[0])} positions {needs}"
    return first + (", nor can a lookup" if lookup is None else f", a lookup {lookup[0]:.2f}")


def _width(window: Window) -> int:
    return window.sinks + window.recent


def kinds(steps: Steps) -> dict[str, Drafts]:
    """Return every kind of draft by its name in the table."""
    found = {f"{share:.0%} skipped": Drafts.of(steps, share) for share in SHARES}
    found |= {f"window {_width(window)}": Drafts.of(steps, 0.0, window) for window in WINDOWS}
    return found | {"lookup": Drafts.lookup(steps)}


def roofline(steps: Steps) -> pd.DataFrame:
    """Return the acceptance that each kind of draft needs, as texts."""
    rows = []
    for name, drafts in kinds(steps).items():
        needed = [drafts.needed(aim) for aim in AIMS]
        length = needed[0][1] if needed[0] else 1
        rows.append((
            name, f"{drafts.cost:.3f}", f"{drafts.verify[length - 1] / drafts.plain:.3f}",
            *(ABSENT if one is None else f"{one[0]:.2f} (γ {one[1]})" for one in needed), f"{drafts.best(1.0)[0]:.2f}x",
        ))  # fmt: skip
    return pd.DataFrame(rows, columns=list(HEADS))


def _of_theirs(theirs: Sequence[Trace]) -> pd.DataFrame:
    found = []
    for trace in theirs:
        row, drafts = trace.row, trace.acceptance
        task = ", ".join([row.number.task, *sorted(select.telling(row.number))])
        near = {name: "≈" if row.derived == name else "" for name in ("M", "alpha")}
        found.append((
            name_of(row.number.paper), row.number.method, task, f"{near['M']}{drafts.accepted + 1:.2f}",
            f"{near['alpha']}{drafts.accepted / drafts.drafted:.2f}", f"{row.skipped:.1%}",
            row.number.printed + ("*" if row.number.metric == "expected_speedup" else ""), f"{trace.predicted:.2f}x",
        ))  # fmt: skip
    return pd.DataFrame(found, columns=["paper", "method", "task", "M", "α", "skipped", "printed", "PREDICTED"])


def _of_ours(ours: pd.DataFrame) -> pd.DataFrame:
    shown = ours.assign(runs=ours["runs"].astype(str))
    for name in ("M", "alpha", "right", "measured", "predicted"):
        shown[name] = ours[name].map(_number)
    return shown.rename(columns={"alpha": "α", "right": "accepted", "predicted": "PREDICTED"})


def closing(asked: Asked, runs: Sequence[Run], left: Counter[str]) -> list[str]:
    """What was not used, and what is not known."""
    missing = Counter(f"{row.number.method}: {row.missing}" for row in _rows(asked) if row.missing)
    said = [f"The papers' numbers not predicted: {n} of {why}." for why, n in missing.items()]
    said += [f"Records not used: {n} {why}." for why, n in left.items()]
    if not asked.named:
        said += ["No record and no paper has this model: nothing says what acceptance its drafts have."]
    elif not runs:
        said += [f"No record has this model{' on this task' if asked.task else ''}."]
    if any(run.header["model"].get("rehearsal") for run in runs):
        said += [f"Records: {REHEARSAL}."]
    unknown = [f"- {line.format(model=asked.model, context=asked.context)}" for line in UNKNOWN]
    parts = ["\n".join(map(_wrapped, said)), "\n".join(["What it does not know:", *map(_wrapped, unknown)])]
    parts += [_wrapped(skill_text(predictions([])))]
    return [part for part in parts if part]


def _number(value: float) -> str:
    return ABSENT if pd.isna(value) else f"{value:.2f}"


def _table(frame: pd.DataFrame) -> str:
    return tables.terminal(frame, [name for name in frame.columns if name not in ("paper", "method", "task", "drafts")])


def _wrapped(text: str) -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent="  " if text.startswith("- ") else "")
