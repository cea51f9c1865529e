"""Acceptance by answer in vLLM's format: written from a record, read from any file.

vLLM from 0.29 puts `metrics.speculative_decoding` into the responses of a server started with
`--per-request-spec-decode-metrics`, `summary` or `detailed` (fields: `docs/exchange.md`). Its steps are verifications
of drafted tokens. A tree's drafted tokens are its depth, as in our records.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ssd_bench.errors import ConfigError
from ssd_bench.records.reader import Run
from ssd_bench.results.definitions import alpha_by_position
from ssd_bench.results.prompt_table import of_steps
from ssd_bench.results.quantity import divide
from ssd_bench.results.rows import UNIT, arm_rows
from ssd_bench.settings import Whole, describe_type, fits

EXTRA_KEY = "ssd_bench"
"""Key of an answer, next to `metrics`, for counts that vLLM lacks: all steps, and their emitted tokens."""
FIELDS: dict[str, Any] = {
    "acceptance_histogram": Sequence[Whole],
    "num_spec_steps": Whole,
    "num_accepted_draft_tokens": Whole,
    "num_draft_tokens": Whole,
    "num_spec_tokens": Whole,
}
"""Required fields of an answer, with their types; its two ratios follow from them and are not read."""
MAX_STEPS = 10**6  # most steps of an answer; more are refused
PER_STEP = ("per_step_drafted", "per_step_accepted")
BY_LENGTH = "acceptance_histogram_by_draft_length"
EXPECTED = (
    "an object with metrics.speculative_decoding, as a vLLM server with --per-request-spec-decode-metrics writes it "
    "for n = 1 (of a stream: the last chunk)"
)


@dataclass(frozen=True)
class AcceptanceCounts:
    """Acceptance counts of several answers together.

    Attributes:
        steps: a row per verification of drafted tokens: draft_len, accepted_len.
        exact: whether each step's drafted length is known; else `steps` has the longest possible, and conditional
            acceptance by position is a lower bound.
        m: emitted tokens per verification over all steps; None if unknown.
    """

    answers: int
    steps: pd.DataFrame
    drafted: int
    exact: bool
    m: float | None

    @property
    def per_step(self) -> float | None:
        """1 + accepted tokens per step, vLLM's mean acceptance length; None without a step."""
        extra = divide(self.steps["accepted_len"].sum(), len(self.steps))
        return None if extra is None else 1 + extra

    @property
    def alpha(self) -> float | None:
        """Accepted tokens per drafted token; None without a drafted token."""
        return divide(self.steps["accepted_len"].sum(), self.drafted)

    @property
    def by_position(self) -> pd.DataFrame:
        """`alpha_by_position`, plus `reached`: the share of all steps that accepted at least so many tokens."""
        by_position = alpha_by_position(self.steps)
        return by_position.assign(reached=by_position["accepted"] / max(len(self.steps), 1))


def record_acceptance(run: Run) -> AcceptanceCounts:
    """Return the acceptance counts of a run's method arm."""
    all_steps = arm_rows(run.steps, "method")
    steps, answers = _drafting_steps(all_steps), len(arm_rows(run.prompts, "method"))
    return AcceptanceCounts(answers, steps, int(steps["draft_len"].sum()), True, of_steps("M", all_steps))


def _drafting_steps(steps: pd.DataFrame) -> pd.DataFrame:
    return steps[steps["draft_len"] > 0]


def answer_lines(run: Run, arm: str = "method") -> Iterator[str]:
    """Yield an arm's answers in stream order, each as a line of JSON.

    Raises:
        ConfigError: no such arm, or it ran in another engine, whose steps are not recorded.
    """
    prompts, steps = arm_rows(run.prompts, arm), arm_rows(run.steps, arm)
    if prompts.empty or arm == "hf":
        arms = [name for name in run.prompts["arm"].unique() if name != "hf"]
        raise ConfigError("arm", arm, f"one of the arms with recorded steps, {', '.join(sorted(arms))}")
    most = int(steps["draft_len"].max()) if len(steps) else 0
    by_answer = {key: rows.sort_values("step") for key, rows in steps.groupby(UNIT)}
    for row in prompts.sort_values(["repeat", "prompt_index", "turn"]).to_dict("records"):
        answer_steps = by_answer.get(tuple(row[key] for key in UNIT), steps.iloc[:0])
        answer = {
            "request_id": f"{row['prompt_id']}/{row['repeat']}" + (f"/{row['turn']}" if row["turn"] else ""),
            "metrics": {"speculative_decoding": _vllm_metrics(_drafting_steps(answer_steps), most)},
            EXTRA_KEY: {"steps": len(answer_steps), "emitted": int(answer_steps["emitted"].sum())},
        }
        yield json.dumps(answer, ensure_ascii=False)


def _vllm_metrics(steps: pd.DataFrame, most: int) -> dict[str, Any]:
    drafted, accepted = ([int(n) for n in steps[name]] for name in ("draft_len", "accepted_len"))
    counts = Counter(accepted)
    return {
        "mean_acceptance_length": 1 + sum(accepted) / len(accepted) if accepted else 1.0,
        "draft_acceptance_rate": sum(accepted) / sum(drafted) if drafted else 0.0,
        "acceptance_histogram": [counts[length] for length in range(most + 1)],
        "num_spec_steps": len(accepted),
        "num_accepted_draft_tokens": sum(accepted),
        "num_draft_tokens": sum(drafted),
        "num_spec_tokens": most,
        "per_step_accepted": accepted,
        "per_step_drafted": drafted,
    }


@dataclass(frozen=True)
class _Answer:
    """Counts of one line: frequency of each (drafted, accepted); other fields as in `AcceptanceCounts`."""

    pairs: Counter[tuple[int, int]]
    drafted: int
    exact: bool
    all_steps: tuple[int, int] | None


def read_answers(file: Path) -> AcceptanceCounts:
    """Read a file of answers, ours or a vLLM server's: one JSON object a line; empty lines are skipped.

    Raises:
        ConfigError: no such file, no line, a line that is no answer, or contradictory counts.
    """
    try:
        texts = file.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("file", str(file), f"a text file, one JSON object a line ({error})") from None
    parsed = []
    for number, text in enumerate(texts, 1):
        if text.strip():
            try:
                parsed.append(_parse(text))
            except ValueError as error:
                raise ConfigError("file", f"{file}:{number}", reason=str(error)) from None
    if not parsed:
        raise ConfigError("file", str(file), f"a file with at least one line: {EXPECTED}")
    pairs = [pair for answer in parsed for pair in answer.pairs.elements()]
    all_steps = [answer.all_steps for answer in parsed if answer.all_steps is not None]
    m = divide(sum(n for _, n in all_steps), sum(n for n, _ in all_steps)) if len(all_steps) == len(parsed) else None
    steps = pd.DataFrame(pairs, columns=["draft_len", "accepted_len"], dtype="int64")
    drafted, exact = sum(answer.drafted for answer in parsed), all(answer.exact for answer in parsed)
    return AcceptanceCounts(len(parsed), steps, drafted, exact, m)


def _parse(text: str) -> _Answer:
    """Parse and check one answer; raise ValueError with the reason if it is invalid."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not valid JSON ({error}); expected {EXPECTED}") from None
    response = _response_counts(content)
    for name, kind in FIELDS.items():
        if not fits(kind, response.get(name)):
            raise ValueError(f"{name} is {response.get(name)!r}, not {describe_type(kind)}")
    histogram, steps, accepted, drafted, most = (response[name] for name in FIELDS)
    _check(steps <= MAX_STEPS, f"num_spec_steps is {steps}, more than {MAX_STEPS:,}")
    _check(len(histogram) == most + 1, f"acceptance_histogram has {len(histogram)} numbers, num_spec_tokens is {most}")
    _check(sum(histogram) == steps, f"acceptance_histogram counts {sum(histogram)} steps, num_spec_steps is {steps}")
    counted = sum(length * count for length, count in enumerate(histogram))
    text = f"acceptance_histogram counts {counted} tokens, num_accepted_draft_tokens is {accepted}"
    _check(counted == accepted, text)
    text = f"num_draft_tokens is {drafted}, with {accepted} accepted and {steps} steps of at most {most}"
    _check(accepted <= drafted <= most * steps, text)
    pairs = _pairs(response)
    exact = pairs is not None or drafted == most * steps
    if pairs is None:
        pairs = Counter({(most, length): count for length, count in enumerate(histogram)})
    else:
        for length, accepted in pairs:
            _check(accepted <= length, f"a step accepted {accepted} of {length} drafted tokens")
        longest = max((length for length, _ in pairs), default=0)
        _check(longest <= most, f"a step drafted {longest} tokens, num_spec_tokens is {most}")
        _check(pairs.total() <= MAX_STEPS, f"its steps are {pairs.total()}, more than {MAX_STEPS:,}")
        lengths = Counter({length: count for length, count in enumerate(histogram) if count})
        counts = Counter(length for _, length in pairs.elements())
        _check(lengths == counts, "its steps do not have the acceptance_histogram")
        total = sum(length for length, _ in pairs.elements())
        _check(total == drafted, f"its steps drafted {total} tokens, num_draft_tokens is {drafted}")
    return _Answer(pairs, drafted, exact, _all_steps(content))


def _response_counts(content: object) -> Mapping[str, Any]:
    """Return the acceptance counts of a response, of its `metrics`, or of an object of counts alone."""
    outer = content.get("metrics", content) if isinstance(content, dict) else None
    counts = outer.get("speculative_decoding", outer) if isinstance(outer, dict) else None
    if isinstance(counts, dict) and "num_spec_steps" in counts:
        return counts
    raise ValueError(f"it has no acceptance counts; expected {EXPECTED}")


def _pairs(response: Mapping[str, Any]) -> Counter[tuple[int, int]] | None:
    if any(response.get(name) is not None for name in PER_STEP):
        drafted, accepted = (response.get(name) for name in PER_STEP)
        are_lists = fits(Sequence[Whole], drafted) and fits(Sequence[Whole], accepted)
        if not are_lists or len(drafted) != len(accepted):  # type: ignore[arg-type]
            raise ValueError(f"{' and '.join(PER_STEP)} are not two lists of integers of the same length")
        return Counter(zip(drafted, accepted))  # type: ignore[arg-type]
    by_length = response.get(BY_LENGTH)
    if by_length is None:
        return None
    if not fits(Mapping[str, Sequence[Whole]], by_length) or not all(length.isdecimal() for length in by_length):
        raise ValueError(f"{BY_LENGTH} is not a table of lists by drafted length")
    return Counter({(int(k), m): count for k, row in by_length.items() for m, count in enumerate(row) if count})


def _all_steps(content: Mapping[str, Any]) -> tuple[int, int] | None:
    extra = content.get(EXTRA_KEY)
    if extra is None:
        return None
    if not fits(Mapping[str, Whole], extra) or set(extra) != {"steps", "emitted"}:
        raise ValueError(f"{EXTRA_KEY} is {extra!r}, not steps and emitted, integers")
    return extra["steps"], extra["emitted"]


def _check(holds: bool, message: str) -> None:
    if not holds:
        raise ValueError(message)
