"""Whether self-drafting pays for a model on a machine: measurements first, then predictions."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from ssd_bench import tables
from ssd_bench.cost.reference import ReferenceMachine
from ssd_bench.cost.roofline import PREFIX, SimulatedMachine
from ssd_bench.cost.work import Machine
from ssd_bench.errors import ConfigError
from ssd_bench.papers.ours import select
from ssd_bench.papers.printed.reported import Number
from ssd_bench.papers.runs import grid
from ssd_bench.paths import display_path, reference_hint
from ssd_bench.predict.acceptance import ReportedSpeedup, Steps, plain_name, reported_speedups
from ssd_bench.predict.break_even import LEGEND, break_even_text, roofline_table
from ssd_bench.predict.question import LOCAL, Question
from ssd_bench.predict.replay import OWN, own_profile, predict, step_times, with_baseline
from ssd_bench.records.header import RunHeader
from ssd_bench.records.reader import Run, find_runs, load_run
from ssd_bench.results.prompt_table import PromptTable
from ssd_bench.results.quality import lossless_counts
from ssd_bench.results.text import TOY_RUN, format_number

WIDTH = 100  # characters per line
RECORDS_LEGEND = (
    "MEASURED: your runs of exactly this model, medians over runs, those on this machine first. PREDICTED: the same "
    "steps at the costs of {machine}, with the time of the method's search:"
)
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


def usable_runs(question: Question) -> tuple[list[Run], Counter[str]]:
    """Return the greedy, lossless runs of methods on exactly this model and task; count the other runs by reason."""
    usable, unused = list[Run](), Counter[str]()
    for path in find_runs(question.runs_dir):
        try:
            reason = _reason_unfit(question, RunHeader.read(path))
            if not reason:
                run = load_run(path)
                with_baseline(run)
                n_mismatches = lossless_counts(run.prompts)["bug"]
                reason = "not lossless: outputs differ from AR's beyond rounding" if n_mismatches else ""
                usable += [] if n_mismatches else [run]
        except ConfigError as error:
            reason = f"unusable: {error}"
        unused.update([reason] if reason else [])
    return usable, unused


def _reason_unfit(question: Question, header: RunHeader) -> str:
    if header.model.name != question.model:
        return f"model {header.model.name}: acceptance does not carry over from one model to another"
    if not question.has_model(header):
        return f"another {'folder' if question.model == LOCAL else 'version'} of the model"
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
    expected = f"sim_<gpu>, or a runs_dir with records of {question.model_name} that have a measured latency profile"
    raise ConfigError("hardware", OWN, expected + reference_hint(question.runs_dir))


def ran_on(device: str, machine: str, name: str) -> bool:
    """Return whether a device is the machine of an option: a reference machine, a simulated GPU or (own) `name`."""
    if machine == OWN:
        return device == name
    return machine.partition("/")[0].removeprefix(PREFIX) in re.split(r"\W+", device.lower())


def _rows(question: Question) -> list[ReportedSpeedup]:
    paper_rows = [row for row in reported_speedups() if row.model == plain_name(question.model)]
    return [row for row in paper_rows if not question.task or question.task in _tasks(row.number)]


def _tasks(number: Number) -> set[str]:
    """Return the choices of `task=` for a paper's task name, by table or figure, since names are not unique."""
    jobs = [
        job for experiment in select.experiments().get((number.paper, number.exhibit), ()) for job in experiment.jobs
    ]
    return {grid.choice(job.overrides, "task") for job in jobs if job.labels["task"] == number.task}


def record_medians(runs: Sequence[Run], machine: Machine, name: str) -> pd.DataFrame:
    """Return medians over the runs of each method on each task and device; `name` is the machine's in the options.

    Returns:
        Columns method, task, device, runs, M, alpha, right (acceptance of a token if all earlier ones were accepted),
        measured and predicted (speedups; NaN where unknown), here (measured on this machine). Rows measured here come
        first, then the highest measured speedup.
    """
    table_rows = []
    for run in runs:
        numbers = PromptTable.of(run)
        is_own = name == OWN
        table_rows.append(
            {
                "method": run.header.method,
                "task": run.header.task.name,
                "device": run.header.device_name,
                "here": ran_on(run.header.device_name, name, machine.name),
                "runs": run.path.name,
                "M": numbers.value("M"),
                "alpha": numbers.value("alpha"),
                "right": numbers.value("hazard"),
                "measured": numbers.value("speedup"),
                "predicted": None
                if is_own and not run.header.profiled
                else predict(run, OWN if is_own else machine).speedup,
            }
        )
    numeric = dict.fromkeys(("M", "alpha", "right", "measured", "predicted"), "median")
    keys = ["method", "task", "device", "here"]
    frame = pd.DataFrame(table_rows, columns=[*keys, "runs", *numeric]).astype(dict.fromkeys(numeric, "float64"))
    table = frame.groupby(keys, as_index=False).agg({"runs": "size"} | numeric)
    return table.sort_values(["here", "measured", "predicted"], ascending=False, kind="stable", ignore_index=True)


# --- text -------------------------------------------------------------------------------------------------------------


def advice(question: Question, steps: Steps, runs: Sequence[Run], name: str) -> str:
    """Return the text for one machine (`name` in the options): the answer, then measurements, then predictions."""
    medians = record_medians(runs, steps.machine, name)
    sections = [_wrapped(sentence) for sentence in answer(question, steps, medians)]
    if len(medians):
        legend = RECORDS_LEGEND.format(machine=steps.machine_name)
        sections += [f"{_wrapped(legend)}\n\n{_table(_median_table(medians))}"]
    about = f"{_source(steps.machine)}; {question.context:,} tokens of context:"
    sections += [f"{_wrapped(about)}\n\n{_table(roofline_table(steps))}\n\n{_wrapped(LEGEND)}"]
    return "\n\n".join(sections)


def _source(machine: Machine) -> str:
    if isinstance(machine, ReferenceMachine):
        return f"PREDICTED from costs MEASURED for {machine.model} on {machine.gpu} (conf/costs)"
    if isinstance(machine, SimulatedMachine):
        return f"PREDICTED from the calibrated data sheet of {machine.name}: nothing was measured there for this model"
    return f"PREDICTED from the MEASURED latency profile of {machine.name}"


def answer(question: Question, steps: Steps, medians: pd.DataFrame) -> list[str]:
    """Return sentences: your runs' measurements, papers' measurements, and whether drafting pays by the costs."""
    sentences = [_records_answer(question, steps, medians)]
    if rows := _rows(question):
        best = max(rows, key=lambda row: row.number.value)
        number, alpha = best.number, "" if best.alpha is None else f" (α {best.alpha:.2f})"
        kind = "MEASURED by a paper, on its machine" if number.metric == "speedup" else "CALCULATED by a paper"
        sentences.append(
            f"{kind}: {number.printed}x by {number.method} on {number.task}{alpha}, the best of this model."
        )
    elif question.path is None:
        sentences.append(f"No paper has a speedup of this model{' on this task' if question.task else ''}.")
    return [*sentences, f"PREDICTED from costs: {break_even_text(steps, question.model_name)}."]


def _records_answer(question: Question, steps: Steps, medians: pd.DataFrame) -> str:
    rows = medians[medians["measured"].notna()]
    where = f"{question.model_name}{f' on {question.task}' if question.task else ''}"
    if rows.empty:
        folder = display_path(question.runs_dir)
        return f"Nothing MEASURED: no usable run of {where} in {folder}{reference_hint(question.runs_dir)}."
    best = rows.iloc[0]
    place = "on this machine" if best["here"] else f"on another machine, {best['device']}"
    text = f"MEASURED {place}: the best of your runs of {where} is {best['method']} on {best['task']} with "
    text += f"{best['measured']:.2f}x (α {format_number(best['alpha'])})."
    if pd.notna(best["predicted"]) and not best["here"]:
        text += f" PREDICTED for the same steps on {steps.machine_name}: {best['predicted']:.2f}x."
    return text


def _median_table(medians: pd.DataFrame) -> pd.DataFrame:
    texts = medians.assign(runs=medians["runs"].astype(str))
    for name in ("M", "alpha", "right", "measured", "predicted"):
        texts[name] = medians[name].map(format_number)
    texts["device"] = ["this one" if here else device for here, device in zip(medians["here"], medians["device"])]
    heads = {"device": "machine", "alpha": "α", "right": "accepted", "measured": "MEASURED", "predicted": "PREDICTED"}
    return texts.drop(columns="here").rename(columns=heads)


def closing(question: Question, runs: Sequence[Run], unused: Counter[str]) -> list[str]:
    """Return the closing paragraphs: unused records, and remaining unknowns."""
    lines = [f"Records not used: {n} ({why})." for why, n in unused.items()]
    if any(run.header.model.toy for run in runs):
        lines += [f"Records: {TOY_RUN}."]
    unknown = [f"- {line.format(model=question.model_name, context=question.context)}" for line in UNKNOWN]
    paragraphs = ["\n".join(map(_wrapped, lines)), "\n".join(["Not known to this estimate:", *map(_wrapped, unknown)])]
    return [part for part in paragraphs if part]


def _table(frame: pd.DataFrame) -> str:
    return tables.terminal(
        frame, [name for name in frame.columns if name not in ("paper", "method", "task", "machine", "drafts")]
    )


def _wrapped(text: str) -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent="  " if text.startswith("- ") else "", break_on_hyphens=False)
