"""Whether self-drafting pays for a model on a machine: the acceptance that drafts need, and predicted speedups.

Every number that is not called measured is predicted.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from ssd_bench import metrics, tables
from ssd_bench.conf import choices
from ssd_bench.console import count, options
from ssd_bench.contract.shape import Shape
from ssd_bench.cost.machine import Machine, own_profile
from ssd_bench.cost.reference import ReferenceMachine, reference_names
from ssd_bench.cost.roofline import PREFIX, SimulatedMachine, gpu_named, simulated_machine, simulated_names
from ssd_bench.cost.shapes import known_shape, shape_named
from ssd_bench.errors import ConfigError
from ssd_bench.metrics.text import ABSENT, REHEARSAL
from ssd_bench.model.checkpoint import Checkpoint
from ssd_bench.papers.ours import select
from ssd_bench.papers.printed.catalogue import version_name
from ssd_bench.papers.printed.reported import Number
from ssd_bench.papers.runs import grid
from ssd_bench.paths import local_path
from ssd_bench.predict.acceptance import CONTEXT, Acceptance, ReportedSpeedup, Steps, plain_name, reported_speedups
from ssd_bench.predict.break_even import LEGEND, break_even_text, roofline_table
from ssd_bench.predict.predictions import predictions, skill_text
from ssd_bench.predict.replay import OWN, measured_machine, predict, recorded_shape, step_times
from ssd_bench.predict.workload import with_work
from ssd_bench.records.header import RunHeader
from ssd_bench.records.pack import records_folder
from ssd_bench.records.reader import Run, find_runs, load_run

OPTIONS = ("model", "hardware", "task", "runs_dir", "context", "devices")
WIDTH = 100  # characters per line
PAPERS_LEGEND = (
    "Speedups at the papers' M and α (≈: derived from the other of the two), without the time of their searches; "
    "printed: measured on the paper's machine, or (*) calculated there from M and α:"
)
RECORDS_LEGEND = "Speedups from the records of this model, medians over runs; measured: on the machine of the record:"
UNKNOWN = (
    "the acceptance of {model} on your prompts: no data sheet has it, and it differs from task to task",
    "slower kernels: c depends on the share of bandwidth that they reach and on the cost of a launch, which were "
    "measured with this engine on one GPU and are assumed to be the same on others (conf/hardware)",
    "how often a lookup finds a draft: that depends on repetitions in the text; a step without a draft is an AR step",
    "batches: with several sequences at a time, verification is more expensive and drafting pays less",
    "sampling: all numbers are for greedy decoding; acceptance changes with the temperature",
    "contexts other than {context:,} tokens: the share of attention grows with the context, unless a window limits it",
    "the time of a method's own search: only records have it",
)


@dataclass(frozen=True)
class Question:
    """Checked options of the command.

    Attributes:
        model: name or path on the command line.
        named: whether the model is a choice of `conf/model`, so that papers and records may have it.
        machines: `own`, names of reference machines of this model, or of simulated GPUs.
        task: "" for all tasks.
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
class Trace:
    """A paper's speedup of the model, the acceptance by its M and α, and the speedup predicted on the machine."""

    row: ReportedSpeedup
    acceptance: Acceptance
    predicted: float


def parse_question(arguments: Sequence[str]) -> Question:
    """Check the options, before any record is read or anything is computed.

    Raises:
        ConfigError: an option that cannot be used.
    """
    values = options(arguments, OPTIONS)
    for name, expected in (("model", "model=NAME or the path of a config.json"), ("hardware", "hardware=sim_<gpu>")):
        if name not in values:
            raise ConfigError(name, None, expected)
    machines = simulated_names() if values["hardware"] == "all" else values["hardware"].split(",")
    devices = count("devices", values["devices"]) if "devices" in values else None
    for name in machines:
        if name != OWN and "/" not in name:
            gpu_named(name)
    if OWN in machines and devices is not None:
        raise ConfigError("devices", devices, reason="only hardware=sim_<gpu> takes this option")
    tasks = choices("task")
    if values.get("task", tasks[0]) not in tasks:
        raise ConfigError("task", values["task"], f"one of {', '.join(tasks)}")
    context = count("context", values.get("context", str(CONTEXT)))
    runs_dir = records_folder("runs_dir", values.get("runs_dir", "runs"))
    model, named = values["model"], known_shape(values["model"]) is not None
    if not named and (path := local_path("model", model)).exists():
        model = str(path / "config.json" if path.is_dir() else path)
    if not named and OWN in machines:
        raise ConfigError("hardware", OWN, "sim_<gpu> for a model that is not of conf/model: it has no records")
    shape = _read_shape(Path(model)) if not named and model.endswith(".json") else shape_named(model)
    if shape.context is not None and context >= shape.context:
        raise ConfigError("context", context, f"below {shape.context}, the context of {model}")
    machines = [measured_name(name, model, devices) for name in machines]
    for name in machines:
        if name != OWN:
            machine_named(name, shape, devices)  # refuses too few devices
    if "runs_dir" in values and not runs_dir.is_dir():
        raise ConfigError("runs_dir", str(runs_dir), "a folder of records")
    return Question(model, named, shape, tuple(machines), values.get("task", ""), runs_dir, context, devices)


def measured_name(name: str, model: str, devices: int | None) -> str:
    """Return the reference machine of a simulated GPU for this model, if its passes were measured; else the name.

    Raises:
        ConfigError: a reference machine of another model, or of several devices.
    """
    if "/" in name and (measured_machine(name).model != model or devices not in (None, 1)):
        expected = f"sim_<gpu>: {name} has measured costs of another model, or of one device"
        raise ConfigError("hardware", name, expected)
    measured = f"{name.removeprefix(PREFIX)}/{model}"
    return measured if devices in (None, 1) and measured in reference_names() else name


def machine_named(name: str, shape: Shape, devices: int | None) -> Machine:
    """Return a reference machine or a simulated one with a model of some shape."""
    return measured_machine(name) if "/" in name else simulated_machine(name, shape, devices)


def _read_shape(path: Path) -> Shape:
    """Return the sizes in a config.json; refuse what a run would refuse."""
    from ssd_bench.model.weights import Architecture  # imports torch, which models of conf/model do not need

    if path.name != "config.json":
        raise ConfigError("model", str(path), "a file that is named config.json, or its folder")
    config = Checkpoint(path.parent).config
    try:
        return Architecture.of(config)
    except ConfigError as error:
        raise error.with_note(f", in {path}") from error


def usable_runs(question: Question) -> tuple[list[Run], Counter[str]]:
    """Return the greedy, lossless runs of methods on exactly this model and task; count the other runs by reason."""
    usable, unused = list[Run](), Counter[str]()
    for path in find_runs(question.runs_dir):
        try:
            reason = _reason_unfit(question, RunHeader.read(path))
            if not reason:
                run = load_run(path)
                recorded_shape(run)
                with_work(run)
                n_mismatches = metrics.lossless_counts(run.prompts)["bug"]
                reason = "not lossless: outputs differ from AR's beyond rounding" if n_mismatches else ""
                usable += [] if n_mismatches else [run]
        except ConfigError as error:
            reason = f"unusable: {error}"
        unused.update([reason] if reason else [])
    return usable, unused


def _reason_unfit(question: Question, header: RunHeader) -> str:
    """Return why a run is not used, "" if its header does not rule it out."""
    if header.model.name != question.model:
        return f"model {header.model.name}: acceptance does not carry over from one model to another"
    if question.task and header.task.name != question.task:
        return "other task"
    return "AR, or sampled" if not header.decode.greedy or header.method == "ar" else ""


def recorded_machine(question: Question, runs: Sequence[Run]) -> Machine:
    """Return the machine of the latest record with a profile, with its loop's time per step."""
    for run in reversed(runs):
        if run.header.profiled:
            profile = own_profile(run)
            loop = float(step_times(run, profile)["loop_ms"].iloc[0])
            return replace(profile, name=run.header.device_name, loop_ms=loop)
    expected = f"sim_<gpu>, or a runs_dir with records of {question.model} that have a measured latency profile"
    raise ConfigError("hardware", OWN, expected)


def paper_traces(question: Question, steps: Steps) -> list[Trace]:
    """Return the papers' speedups of the model and task for which they give an acceptance, highest prediction first."""
    traces = []
    for row in _rows(question):
        if not row.missing and row.skipped is not None:
            acceptance = Acceptance.of(row.alpha, row.tokens, row.draft_len)
            traces.append(Trace(row, acceptance, steps.speedup(acceptance, row.skipped)))
    return sorted(traces, key=lambda trace: -trace.predicted)


def _rows(question: Question) -> list[ReportedSpeedup]:
    paper_rows = [row for row in reported_speedups() if question.named and row.model == plain_name(question.model)]
    return [row for row in paper_rows if not question.task or question.task in _tasks(row.number)]


def _tasks(number: Number) -> set[str]:
    """Return the choices of `task=` for a paper's name of a task, by table or figure, since names are not unique."""
    jobs = [
        job for experiment in select.experiments().get((number.paper, number.exhibit), ()) for job in experiment.jobs
    ]
    return {grid.choice(job.overrides, "task") for job in jobs if job.labels["task"] == number.task}


def record_medians(runs: Sequence[Run], machine: str, devices: int | None) -> pd.DataFrame:
    """Return medians over the runs of each method on each task, highest prediction first.

    Returns:
        Columns method, task, runs, M, alpha, right (acceptance of a token given that those before it were accepted),
        measured and predicted (speedups; NaN where unknown).
    """
    table_rows = []
    for run in runs:
        steps = metrics.arm_rows(run.steps, "method")
        own_speedup = predict(run).speedup if machine == OWN and run.header.profiled else None
        table_rows.append(
            {
                "method": run.header.method,
                "task": run.header.task.name,
                "runs": run.path.name,
                "M": metrics.mean_acceptance_length(steps).value,
                "alpha": metrics.alpha(steps).value,
                "right": metrics.alpha_conditional(steps),
                "measured": metrics.speedup(run.prompts).value,
                "predicted": own_speedup if machine == OWN else predict(run, machine, devices=devices).speedup,
            }
        )
    numeric = dict.fromkeys(("M", "alpha", "right", "measured", "predicted"), "median")
    columns = ["method", "task", "runs", *numeric]
    frame = pd.DataFrame(table_rows, columns=columns).astype(dict.fromkeys(numeric, "float64"))
    table = frame.groupby(["method", "task"], as_index=False).agg({"runs": "size"} | numeric)
    return table.sort_values("predicted", ascending=False, kind="stable", ignore_index=True)


# --- text -------------------------------------------------------------------------------------------------------------


def advice(question: Question, steps: Steps, runs: Sequence[Run], machine: str) -> str:
    """Return the text for one machine, the answer first."""
    traces, medians = paper_traces(question, steps), record_medians(runs, machine, question.devices)
    about = f"PREDICTED from {_source(steps.machine)}, {question.context:,} tokens of context:"
    sections = [
        _wrapped(answer(question, steps, traces, medians)),
        f"{_wrapped(about)}\n\n{_table(roofline_table(steps))}\n\n{_wrapped(LEGEND)}",
    ]
    if traces:
        sections += [f"{_wrapped(PAPERS_LEGEND)}\n\n{_table(_trace_table(traces))}"]
    if len(medians):
        sections += [f"{_wrapped(RECORDS_LEGEND)}\n\n{_table(_median_table(medians))}"]
    return "\n\n".join(sections)


def _source(machine: Machine) -> str:
    """Return the origin of a machine's times."""
    if isinstance(machine, ReferenceMachine):
        return f"measured costs of {machine.model} on {machine.gpu} (conf/costs)"
    if isinstance(machine, SimulatedMachine):
        return f"the calibrated data sheet of {machine.name}"
    return f"the latency profile of {machine.name}"


def answer(question: Question, steps: Steps, traces: Sequence[Trace], medians: pd.DataFrame) -> str:
    """Return one sentence: whether drafting pays, with which method and by how much."""
    break_even = break_even_text(steps, question.model)
    if len(medians) and pd.notna(medians["predicted"].iloc[0]):
        best = medians.iloc[0]
        best_text = f"the best on record, {best['method']} on {best['task']} with α {_number(best['alpha'])}"
        measured_text = (
            "" if pd.isna(best["measured"]) else f", where {best['measured']:.2f}x was measured on its own machine"
        )
        return f"{break_even}; {best_text}, would give {best['predicted']:.2f}x, PREDICTED{measured_text}."
    if traces:
        trace = traces[0]
        number, alpha = trace.row.number, trace.acceptance.accepted / trace.acceptance.drafted
        best_text = f"the best in a paper, {number.method}'s α of {alpha:.2f} on {number.task}"
        paper_text = f"the paper {'measured' if number.metric == 'speedup' else 'expects'} {number.printed}x"
        return f"{break_even}; {best_text}, would give {trace.predicted:.2f}x, PREDICTED, where {paper_text}."
    return f"{break_even}; no record and no paper has this model{' on this task' if question.task else ''}, PREDICTED."


def _trace_table(traces: Sequence[Trace]) -> pd.DataFrame:
    table_rows = []
    for trace in traces:
        row, drafts = trace.row, trace.acceptance
        task = ", ".join([row.number.task, *sorted(select.distinguishing_settings(row.number))])
        derived_mark = {name: "≈" if row.derived == name else "" for name in ("M", "alpha")}
        table_rows.append(
            (
                version_name(row.number.paper),
                row.number.method,
                task,
                f"{derived_mark['M']}{drafts.accepted + 1:.2f}",
                f"{derived_mark['alpha']}{drafts.accepted / drafts.drafted:.2f}",
                f"{row.skipped:.1%}",
                row.number.printed + ("*" if row.number.metric == "expected_speedup" else ""),
                f"{trace.predicted:.2f}x",
            )
        )
    return pd.DataFrame(table_rows, columns=["paper", "method", "task", "M", "α", "skipped", "printed", "PREDICTED"])


def _median_table(medians: pd.DataFrame) -> pd.DataFrame:
    texts = medians.assign(runs=medians["runs"].astype(str))
    for name in ("M", "alpha", "right", "measured", "predicted"):
        texts[name] = medians[name].map(_number)
    return texts.rename(columns={"alpha": "α", "right": "accepted", "predicted": "PREDICTED"})


def closing(question: Question, runs: Sequence[Run], unused: Counter[str]) -> list[str]:
    """Return the closing paragraphs: unused numbers and records, and what remains unknown."""
    missing = Counter(f"{row.number.method}: {row.missing}" for row in _rows(question) if row.missing)
    lines = [f"Papers' numbers without a prediction: {n} ({why})." for why, n in missing.items()]
    lines += [f"Records not used: {n} ({why})." for why, n in unused.items()]
    if not question.named:
        lines += ["No record and no paper has this model, so the acceptance of its drafts is unknown."]
    elif not runs:
        lines += [f"No record has this model{' on this task' if question.task else ''}."]
    if any(run.header.model.rehearsal for run in runs):
        lines += [f"Records: {REHEARSAL}."]
    unknown = [f"- {line.format(model=question.model, context=question.context)}" for line in UNKNOWN]
    paragraphs = ["\n".join(map(_wrapped, lines)), "\n".join(["Not known to this estimate:", *map(_wrapped, unknown)])]
    paragraphs += [_wrapped(skill_text(predictions([])))]
    return [part for part in paragraphs if part]


def _number(value: float) -> str:
    return ABSENT if pd.isna(value) else f"{value:.2f}"


def _table(frame: pd.DataFrame) -> str:
    return tables.terminal(frame, [name for name in frame.columns if name not in ("paper", "method", "task", "drafts")])


def _wrapped(text: str) -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent="  " if text.startswith("- ") else "")
