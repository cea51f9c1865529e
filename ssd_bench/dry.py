"""What a command line would run, how many tokens, and about how long: without running it (`dry=true`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from omegaconf import DictConfig, OmegaConf

from ssd_bench import tables
from ssd_bench.cost.roofline import VALUE_BYTES, simulated_machine
from ssd_bench.data.local import LocalSource
from ssd_bench.errors import ConfigError
from ssd_bench.model.shape import Shape
from ssd_bench.records.schema import arms_of

if TYPE_CHECKING:
    from ssd_bench.options import Parts

PROMPT_TOKENS = 1000  # where the task sets no limit: one prompt with its demonstrations, for the time of attention
SHARE_OF_BANDWIDTH = 0.6  # that plain decoding reaches on a CPU (README: 63 %)
COPIED_BYTES = 1 << 28
WIDTHS = (None, None, None, 60, None, None, None, None)  # of the columns
SHOWN = ("model", "method", "task", "data", "runs_dir", "dry")  # overrides that have a column, or need none


@dataclass(frozen=True)
class Estimate:
    """One run: prompts times repeats, new tokens of each answer at most, offline search included in the hours.

    Attributes:
        answers: of an arm, one a turn.
        unknown: whether there may be more prompts or answers, of which nothing is known without the rows.
        hours: of all arms, each being as fast as AR; None for a model of unknown size.
        gigabytes: weights in half precision and cache, twice where Hugging Face has its own.
    """

    prompts: int
    answers: int
    unknown: bool
    new_tokens: int
    hours: float | None
    gigabytes: float | None


@dataclass(frozen=True)
class Planned:
    """A run that is described.

    Attributes:
        overrides: that ask for it.
        choices: group -> what was chosen of it.
        cfg: what they compose.
    """

    overrides: Sequence[str]
    choices: Mapping[str, str]
    cfg: DictConfig


def asked(value: object) -> bool:
    """Whether `dry` asks for a description instead of a run.

    Raises:
        ConfigError: it is neither true nor false.
    """
    if not isinstance(value, bool):
        raise ConfigError("dry", str(value), "true or false")
    return value


def describe(head: str, runs: Sequence[Planned], recorded: Callable[[Planned], float | None]) -> str:
    """A table of runs with prompts, tokens, hours and memory, and the totals, under a line that says what they are.

    Args:
        recorded: hours of a run by a record of it, None where there is none.

    Raises:
        ConfigError: as `estimate`.
    """
    rows, tokens, hours, known, left = [], 0, 0.0, 0, 0
    for run in runs:
        found = estimate(run.cfg, run.choices["hardware"])
        if found.unknown:
            found, left = replace(found, hours=None), left + 1
        else:
            tokens += len(arms_of(run.cfg.baseline)) * found.answers * found.new_tokens
        if (told := recorded(run)) is not None:
            found, known = replace(found, hours=told), known + 1
        hours += found.hours or 0.0
        rest = [o for o in run.overrides if o.partition("=")[0] not in SHOWN]
        names = [run.choices[axis] for axis in ("model", "method", "task")]
        shown = ["?" if value is None else f"{float(f'{value:.2g}'):g}" for value in (found.hours, found.gigabytes)]
        rows.append([*names, " ".join(rest), str(found.prompts or "?"), str(found.new_tokens), *shown])
    header = ["model", "method", "task", "options", "prompts", "new tokens", "hours", "GB"]
    how = "if every method were as fast as AR"
    if known:
        how = (
            "as on record" if known == len(runs) else f"{how}, but for {known} of {len(runs)} runs, which are on record"
        )
    total = f"at most {tokens:,} new tokens in all arms, about {spell(hours)} {how}"
    if left:
        total += f"; but for {left} of {len(runs)} runs, whose rows are not at hand"
    if left == len(runs):
        total = "how many new tokens is not known: the rows are not at hand"
    return "\n".join([head, total, "", tables.terminal(pd.DataFrame(rows, columns=header), header[4:], WIDTHS)])


def spell(hours: float) -> str:
    """A time in words."""
    return f"{hours:.1f} hours" if hours >= 2 else f"{60 * hours:.0f} minutes"


def estimate(cfg: DictConfig, hardware: str) -> Estimate:
    """Prompts, tokens, hours and memory of a composed run.

    Args:
        hardware: `sim_…` for a GPU that is not at hand, by its data sheet; else this machine, by its memory's speed.

    Raises:
        ConfigError: an option that a run would refuse before it opens anything.
    """
    from ssd_bench.options import Parts, resolved  # torch, which no description of the commands needs

    resolved(cfg)
    parts = Parts.of(cfg)
    prompts, answers, unknown = _counted(cfg, parts)
    new = cfg.decode.max_new_tokens or parts.task.max_new_tokens
    sizes = cfg.model.get("shape")
    if sizes is None:
        return Estimate(prompts, answers, unknown, new, None, None)
    shape = Shape(**sizes)
    limit = OmegaConf.select(cfg, "task.max_prompt_tokens")
    length = PROMPT_TOKENS if limit is None else int(limit)
    if shape.context is not None:  # what is longer is clipped, and ends with the context
        length = min(length, shape.context // 2)
        new = min(new, shape.context - length)
    per_token = _token_ms(shape, length + new / 2, hardware)
    search = OmegaConf.select(cfg, "method.search")
    searched = 0.0
    if search is not None and search.reuse is None:
        searched = search.iterations * (OmegaConf.select(cfg, "method.calibration") or 1) * search.new_tokens
    row_bytes = shape.n_layers * shape.cache_row * VALUE_BYTES
    arms = arms_of(cfg.baseline)
    gigabytes = (2 if "hf" in arms else 1) * (shape.n_params * VALUE_BYTES + row_bytes * (length + new)) / 1e9
    hours = (len(arms) * answers * new + searched) * per_token / 3.6e6
    return Estimate(prompts, answers, unknown, new, hours, gigabytes)


def _counted(cfg: DictConfig, parts: Parts) -> tuple[int, int, bool]:
    """Prompts and answers of an arm, repeats included, and whether there may be more: of rows on disk, else as said."""
    source, task = parts.source_of(parts.task), parts.task
    if isinstance(source, LocalSource):
        try:
            made = task.prompts(source, parts.model.prompting.form, cfg.limit, cfg.seed)
            return cfg.repeats * len(made), cfg.repeats * sum(len(one.said) for one in made), False
        except ConfigError:  # of another machine's, perhaps
            pass
    mixed = OmegaConf.select(cfg, "task.parts")
    rows = OmegaConf.select(cfg, "task.hub.rows") or 0
    there = len(mixed) * cfg.task["items"] if mixed is not None else rows
    prompts = cfg.repeats * (min(cfg.limit, there) if cfg.limit and there else cfg.limit or there)
    return prompts, prompts, not prompts or getattr(task, "conversations", False)


@cache
def _token_ms(shape: Shape, context: float, hardware: str) -> float:
    """Milliseconds of a plain step at a context."""
    if hardware.startswith("sim_"):
        machine = simulated_machine(hardware, shape)
        attn, mlp, rest = (float(part[0]) for part in machine.pass_ms(np.ones(1), np.full(1, context)))
        return shape.n_layers * (attn + mlp) + rest + machine.loop_ms
    row_bytes = shape.n_layers * shape.cache_row * VALUE_BYTES
    read = shape.n_params * VALUE_BYTES + row_bytes * context
    return read / (SHARE_OF_BANDWIDTH * _bandwidth()) * 1e3


@cache
def _bandwidth() -> float:
    """Bytes per second that this machine's memory moves: the best of a few copies, each read and written."""
    source = np.zeros(COPIED_BYTES, dtype=np.uint8)
    target, best = np.ones_like(source), float("inf")
    for _ in range(3):
        begin = time.perf_counter()
        target[:] = source
        best = min(best, time.perf_counter() - begin)
    return 2 * COPIED_BYTES / best
