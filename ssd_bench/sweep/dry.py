"""Dry run (`dry=true`): a command line's runs, their tokens and approximate time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from omegaconf import DictConfig, OmegaConf

from ssd_bench import tables
from ssd_bench.contract.shape import Shape
from ssd_bench.cost.roofline import PREFIX, USABLE, VALUE_BYTES, gpu_named, simulated_machine
from ssd_bench.data.local import LocalSource
from ssd_bench.errors import ConfigError
from ssd_bench.records.schema import arms_of

if TYPE_CHECKING:
    from ssd_bench.run.options import Parts

PROMPT_TOKENS = 1000  # a prompt with its demonstrations, for the time of attention, where the task sets no limit
SHARE_OF_BANDWIDTH = 0.6  # share that plain decoding reaches on a CPU (measured: 63 %)
COPIED_BYTES = 1 << 28
WIDTHS = (None, None, None, 60, None, None, None, None)  # widths of the columns
SHOWN = ("model", "method", "task", "data", "runs_dir", "dry")  # options that the column of options omits


@dataclass(frozen=True)
class WorkEstimate:
    """Upper estimate of a run's work.

    Attributes:
        prompts: prompts times repeats.
        answers: answers of one arm: prompts, or turns of conversations.
        unknown: whether prompts or answers are a lower bound, because the data are not on this machine.
        new_tokens: most new tokens of an answer.
        hours: time of all arms, each as fast as AR, and of the offline search; None if the model's size is unknown.
        gigabytes: weights in half precision and cache; twice the weights with the arm hf.
    """

    prompts: int
    answers: int
    unknown: bool
    new_tokens: int
    hours: float | None
    gigabytes: float | None


@dataclass(frozen=True)
class Planned:
    """A run to describe: options on its command line, choice of each config group, and composed config."""

    overrides: Sequence[str]
    choices: Mapping[str, str]
    cfg: DictConfig


def is_requested(value: object) -> bool:
    """Return the value of the option `dry`.

    Raises:
        ConfigError: neither true nor false.
    """
    if not isinstance(value, bool):
        raise ConfigError("dry", str(value), "true or false")
    return value


def describe(head: str, runs: Sequence[Planned], recorded: Callable[[Planned], float | None]) -> str:
    """Return heading, totals, and a table of runs with prompts, new tokens, hours and memory.

    Args:
        recorded: returns a run's hours by an earlier record, or None.

    Raises:
        ConfigError: as `estimate`.
    """
    rows, tokens, hours, n_recorded, n_unknown = [], 0, 0.0, 0, 0
    sizes: dict[tuple[str, str], float] = {}  # (hardware, model) -> GB of its largest run
    for run in runs:
        work = estimate(run.cfg, run.choices["hardware"])
        if work.unknown:
            work, n_unknown = replace(work, hours=None), n_unknown + 1
        else:
            tokens += len(arms_of(run.cfg.baseline)) * work.answers * work.new_tokens
        if (hours_on_record := recorded(run)) is not None:
            work, n_recorded = replace(work, hours=hours_on_record), n_recorded + 1
        hours += work.hours or 0.0
        options = [o for o in run.overrides if o.partition("=")[0] not in SHOWN]
        names = [run.choices[axis] for axis in ("model", "method", "task")]
        model = run.choices["hardware"], run.choices["model"]
        sizes[model] = max(sizes.get(model, 0.0), work.gigabytes or 0.0)
        numbers = ["?" if value is None else f"{float(f'{value:.2g}'):g}" for value in (work.hours, work.gigabytes)]
        rows.append([*names, " ".join(options), str(work.prompts or "?"), str(work.new_tokens), *numbers])
    header = ["model", "method", "task", "options", "prompts", "new tokens", "hours", "GB"]
    basis = "if every method were as fast as AR"
    if n_recorded == len(runs):
        basis = "as on record"
    elif n_recorded:
        basis += f", except {n_recorded} of {len(runs)} runs, which are on record"
    total = f"at most {tokens:,} new tokens in all arms, about {spell(hours)} {basis}"
    if n_unknown:
        total += f"; not counted: {n_unknown} of {len(runs)} runs, whose data are not on this machine"
    if n_unknown == len(runs):
        total = "number of new tokens unknown: the data are not on this machine"
    lines = [head, total, *_too_large(sizes), ""]
    return "\n".join([*lines, tables.terminal(pd.DataFrame(rows, columns=header), header[4:], WIDTHS)])


def _too_large(sizes: Mapping[tuple[str, str], float]) -> list[str]:
    """Return a line for each (hardware, model) with more GB than one GPU, by its data sheet."""
    lines = []
    for (hardware, model), gigabytes in sizes.items():
        gpu = gpu_named(hardware) if hardware.startswith(PREFIX) else None
        if gpu is not None and gigabytes > USABLE * gpu.memory_gb:
            needed = math.ceil(gigabytes / (USABLE * gpu.memory_gb))
            devices = ",".join(f"cuda:{i}" for i in range(needed))
            lines.append(
                f"{model} does not fit one {gpu.name}: {gigabytes:.0f} GB of weights and cache, {gpu.memory_gb:g} GB "
                f"of memory; at least {needed} GPUs: hardware.device=[{devices}], as many as the hours are for"
            )
    return lines


def spell(hours: float) -> str:
    """Return a time in words, in minutes below two hours."""
    return f"{hours:.1f} hours" if hours >= 2 else f"{60 * hours:.0f} minutes"


def estimate(cfg: DictConfig, hardware: str) -> WorkEstimate:
    """Estimate prompts, tokens, hours and memory of a composed run.

    Args:
        hardware: `sim_…` for a GPU by its data sheet; any other name for this machine, by its memory bandwidth.

    Raises:
        ConfigError: an option that a run would refuse before it opens anything.
    """
    from ssd_bench.run.memory import GB, needed_bytes, rounded_bits  # these import torch
    from ssd_bench.run.options import Parts, resolve

    resolve(cfg)
    parts = Parts.of(cfg)
    prompts, answers, unknown = _counted(cfg, parts)
    new = cfg.decode.max_new_tokens or parts.task.max_new_tokens
    sizes = cfg.model.get("shape")
    if sizes is None:
        return WorkEstimate(prompts, answers, unknown, new, None, None)
    shape = Shape(**sizes)
    limit = OmegaConf.select(cfg, "task.max_prompt_tokens")
    length = PROMPT_TOKENS if limit is None else int(limit)
    if shape.context is not None:  # longer prompts are truncated, and answers end with the context
        length = min(length, shape.context // 2)
        new = min(new, shape.context - length)
    per_token = _token_ms(shape, length + new / 2, hardware)
    search = OmegaConf.select(cfg, "method.search")
    searched = 0.0
    if search is not None and search.reuse is None:
        searched = search.iterations * (OmegaConf.select(cfg, "method.calibration") or 1) * search.new_tokens
    arms = arms_of(cfg.baseline)
    parts_bytes = needed_bytes(shape, VALUE_BYTES, rounded_bits(parts.method), length + new)
    gigabytes = sum(parts_bytes.values()) / GB
    if "hf" in arms:
        gigabytes += (parts_bytes["weights"] + parts_bytes["cache"]) / GB
    hours = (len(arms) * answers * new + searched) * per_token / 3.6e6
    return WorkEstimate(prompts, answers, unknown, new, hours, gigabytes)


def _counted(cfg: DictConfig, parts: Parts) -> tuple[int, int, bool]:
    """Return an arm's prompts and answers, including repeats, and whether they are a lower bound.

    Rows on this machine are counted; otherwise the task's config states their number.
    """
    source, task = parts.source_of(parts.task), parts.task
    if isinstance(source, LocalSource):
        try:
            planned_prompts = task.prompts(source, parts.model.prompting.form, cfg.limit, cfg.seed)
            return (
                cfg.repeats * len(planned_prompts),
                cfg.repeats * sum(len(prompt.user_texts) for prompt in planned_prompts),
                False,
            )
        except ConfigError:  # the rows may be on another machine
            pass
    parts_of_stream = OmegaConf.select(cfg, "task.parts")
    rows = OmegaConf.select(cfg, "task.hub.rows") or 0
    n_rows = len(parts_of_stream) * cfg.task["items"] if parts_of_stream is not None else rows
    prompts = cfg.repeats * (min(cfg.limit, n_rows) if cfg.limit and n_rows else cfg.limit or n_rows)
    return prompts, prompts, not prompts or getattr(task, "conversations", False)


@cache
def _token_ms(shape: Shape, context: float, hardware: str) -> float:
    """Return the milliseconds of a plain step at a context length, by roofline or memory bandwidth."""
    if hardware.startswith("sim_"):
        machine = simulated_machine(hardware, shape)
        attn, mlp, rest_ms = (float(part[0]) for part in machine.pass_ms(np.ones(1), np.full(1, context)))
        return shape.n_layers * (attn + mlp) + rest_ms + machine.loop_ms
    row_bytes = shape.n_layers * shape.cache_row * VALUE_BYTES
    read = shape.n_params * VALUE_BYTES + row_bytes * context
    return read / (SHARE_OF_BANDWIDTH * _bandwidth()) * 1e3


@cache
def _bandwidth() -> float:
    """Return this machine's memory bandwidth in bytes/s: the best of three copies, counting reads and writes."""
    source = np.zeros(COPIED_BYTES, dtype=np.uint8)
    target, best = np.ones_like(source), float("inf")
    for _ in range(3):
        begin = time.perf_counter()
        target[:] = source
        best = min(best, time.perf_counter() - begin)
    return 2 * COPIED_BYTES / best
