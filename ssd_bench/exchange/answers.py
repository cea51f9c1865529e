"""Acceptance answer by answer, as vLLM writes it: out of a record, and in from any file of it.

vLLM from 0.29 puts `metrics.speculative_decoding` into the responses of a server that was started with
`--per-request-spec-decode-metrics`, `summary` or `detailed`; `docs/exchange.md` has the fields. A step of it is a
verification of drafted tokens: one before which nothing was drafted is none, there as in what is written here. Where a
tree was verified, drafted means its depth, as in our records.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ssd_bench import metrics
from ssd_bench.errors import ConfigError
from ssd_bench.metrics.intervals import divide
from ssd_bench.records.reader import Run
from ssd_bench.settings import Whole, fits, words

OWN = "ssd_bench"
"""Key of an answer beside `metrics`, which holds what vLLM does not count: all steps, and the tokens they emitted."""
FIELDS: dict[str, Any] = {
    "acceptance_histogram": Sequence[Whole],
    "num_spec_steps": Whole,
    "num_accepted_draft_tokens": Whole,
    "num_draft_tokens": Whole,
    "num_spec_tokens": Whole,
}
"""What every answer must have; its two ratios follow from these and are not read."""
MOST = 10**6  # steps of an answer; one with more is none
PER_STEP = ("per_step_drafted", "per_step_accepted")
BY_LENGTH = "acceptance_histogram_by_draft_length"
ASKED = (
    "an object with metrics.speculative_decoding, as a vLLM server with --per-request-spec-decode-metrics writes it "
    "for n = 1 (of a stream: the last chunk)"
)


@dataclass(frozen=True)
class Acceptance:
    """What several answers say together.

    Attributes:
        answers: their number.
        steps: a row a step that verified drafted tokens: draft_len, accepted_len.
        drafted: tokens.
        exact: whether the drafted length of each step is known. If not, `steps` has the longest there may be, so that
            conditional acceptance by position comes out as its least.
        m: emitted tokens per verification, all steps counted; None where that is not known.
    """

    answers: int
    steps: pd.DataFrame
    drafted: int
    exact: bool
    m: float | None

    @property
    def per_step(self) -> float | None:
        """1 + accepted per step, as vLLM's mean acceptance length; None without a step."""
        extra = divide(self.steps["accepted_len"].sum(), len(self.steps))
        return None if extra is None else 1 + extra

    @property
    def alpha(self) -> float | None:
        """Accepted per drafted tokens."""
        return divide(self.steps["accepted_len"].sum(), self.drafted)

    @property
    def by_position(self) -> pd.DataFrame:
        """`metrics.alpha_by_position`, and `reached`: the share of all steps that accepted this many tokens or more."""
        found = metrics.alpha_by_position(self.steps)
        return found.assign(reached=found["accepted"] / max(len(self.steps), 1))


def recorded(run: Run) -> Acceptance:
    """What a run of ours says of its method."""
    every = metrics.arm_rows(run.steps, "method")
    steps, answers = _drafting(every), len(metrics.arm_rows(run.prompts, "method"))
    return Acceptance(answers, steps, int(steps["draft_len"].sum()), True, metrics.tokens_per_pass(every))


def _drafting(steps: pd.DataFrame) -> pd.DataFrame:
    return steps[steps["draft_len"] > 0]


def lines(run: Run, arm: str = "method") -> Iterator[str]:
    """The answers of an arm in stream order, each a line of JSON.

    Raises:
        ConfigError: the run has no such arm, or one of another engine, of whose steps nothing is known.
    """
    prompts, steps = metrics.arm_rows(run.prompts, arm), metrics.arm_rows(run.steps, arm)
    if prompts.empty or arm == "hf":
        known = [name for name in run.prompts["arm"].unique() if name != "hf"]
        raise ConfigError("arm", arm, f"one of {', '.join(sorted(known))}, whose steps the run has")
    most = int(steps["draft_len"].max()) if len(steps) else 0
    own = {key: rows.sort_values("step") for key, rows in steps.groupby(metrics.UNIT)}
    for row in prompts.sort_values(["repeat", "prompt_index", "turn"]).to_dict("records"):
        mine = own.get(tuple(row[key] for key in metrics.UNIT), steps.iloc[:0])
        answer = {
            "request_id": f"{row['prompt_id']}/{row['repeat']}" + (f"/{row['turn']}" if row["turn"] else ""),
            "metrics": {"speculative_decoding": _written(_drafting(mine), most)},
            OWN: {"steps": len(mine), "emitted": int(mine["emitted"].sum())},
        }
        yield json.dumps(answer, ensure_ascii=False)


def _written(steps: pd.DataFrame, most: int) -> dict[str, Any]:
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
    """One line: how often each (drafted, accepted) occurred, and what `Acceptance` says of the rest."""

    pairs: Counter[tuple[int, int]]
    drafted: int
    exact: bool
    all_steps: tuple[int, int] | None


def read(file: Path) -> Acceptance:
    """What a file of answers says, ours or of a vLLM server, one JSON object a line; empty lines are passed over.

    Raises:
        ConfigError: no such file, nothing in it, or a line that is no answer or whose counts contradict each other.
    """
    try:
        texts = file.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("file", str(file), f"a text file, one JSON object a line ({error})") from None
    found = []
    for number, text in enumerate(texts, 1):
        if text.strip():
            try:
                found.append(_parsed(text))
            except ValueError as error:
                raise ConfigError("file", f"{file}:{number}", str(error)) from None
    if not found:
        raise ConfigError("file", str(file), f"a file with at least one line: {ASKED}")
    pairs = [pair for answer in found for pair in answer.pairs.elements()]
    known = [answer.all_steps for answer in found if answer.all_steps is not None]
    m = divide(sum(n for _, n in known), sum(n for n, _ in known)) if len(known) == len(found) else None
    steps = pd.DataFrame(pairs, columns=["draft_len", "accepted_len"], dtype="int64")
    return Acceptance(
        len(found), steps, sum(one.drafted for one in found), all(one.exact for one in found), m
    )  # fmt: skip


def _parsed(text: str) -> _Answer:
    """An answer.

    Raises:
        ValueError: it is none; says what is wrong with it.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is no JSON that can be read ({error}); {ASKED}") from None
    told = _told(content)
    for name, kind in FIELDS.items():
        if not fits(kind, told.get(name)):
            raise ValueError(f"{name} is {told.get(name)!r}, not {words(kind)}")
    histogram, steps, accepted, drafted, most = (told[name] for name in FIELDS)
    _check(steps <= MOST, f"num_spec_steps is {steps}, more than {MOST:,}")
    _check(len(histogram) == most + 1, f"acceptance_histogram has {len(histogram)} numbers, num_spec_tokens is {most}")
    _check(sum(histogram) == steps, f"acceptance_histogram counts {sum(histogram)} steps, num_spec_steps is {steps}")
    counted = sum(length * count for length, count in enumerate(histogram))
    _check(
        counted == accepted, f"acceptance_histogram counts {counted} tokens, num_accepted_draft_tokens is {accepted}"
    )
    _check(
        accepted <= drafted <= most * steps,
        f"num_draft_tokens is {drafted}, with {accepted} accepted and {steps} steps of at most {most}",
    )
    pairs = _pairs(told)
    exact = pairs is not None or drafted == most * steps
    if pairs is None:
        pairs = Counter({(most, length): count for length, count in enumerate(histogram)})
    else:
        longest = max((length for length, _ in pairs), default=0)
        _check(longest <= most, f"a step drafted {longest} tokens, num_spec_tokens is {most}")
        _check(pairs.total() <= MOST, f"its steps are {pairs.total()}, more than {MOST:,}")
        lengths = Counter({length: count for length, count in enumerate(histogram) if count})
        found = Counter(length for _, length in pairs.elements())
        _check(lengths == found, "its steps do not have the acceptance_histogram")
        total = sum(length for length, _ in pairs.elements())
        _check(total == drafted, f"its steps drafted {total} tokens, num_draft_tokens is {drafted}")
    return _Answer(pairs, drafted, exact, _own(content))


def _told(content: object) -> Mapping[str, Any]:
    """The counts of a response, of its `metrics`, or alone."""
    outer = content.get("metrics", content) if isinstance(content, dict) else None
    found = outer.get("speculative_decoding", outer) if isinstance(outer, dict) else None
    if isinstance(found, dict) and "num_spec_steps" in found:
        return found
    raise ValueError(f"it has no acceptance; {ASKED}")


def _pairs(told: Mapping[str, Any]) -> Counter[tuple[int, int]] | None:
    """How often each drafted and accepted length occurred together; None where that is not said."""
    if any(told.get(name) is not None for name in PER_STEP):
        drafted, accepted = (told.get(name) for name in PER_STEP)
        both = fits(Sequence[Whole], drafted) and fits(Sequence[Whole], accepted)
        if not both or len(drafted) != len(accepted):  # type: ignore[arg-type]
            raise ValueError(f"{' and '.join(PER_STEP)} are not two lists of integers of the same length")
        return _possible(Counter(zip(drafted, accepted)))  # type: ignore[arg-type]
    by_length = told.get(BY_LENGTH)
    if by_length is None:
        return None
    if not fits(Mapping[str, Sequence[Whole]], by_length) or not all(length.isdecimal() for length in by_length):
        raise ValueError(f"{BY_LENGTH} is no table of lists by drafted length")
    return _possible(
        Counter({(int(k), m): count for k, row in by_length.items() for m, count in enumerate(row) if count})
    )


def _possible(pairs: Counter[tuple[int, int]]) -> Counter[tuple[int, int]]:
    for drafted, accepted in pairs:
        _check(accepted <= drafted, f"a step accepted {accepted} of {drafted} drafted tokens")
    return pairs


def _own(content: Mapping[str, Any]) -> tuple[int, int] | None:
    """All steps and what they emitted, which our own files say."""
    own = content.get(OWN)
    if own is None:
        return None
    if not fits(Mapping[str, Whole], own) or set(own) != {"steps", "emitted"}:
        raise ValueError(f"{OWN} is {own!r}, not steps and emitted, integers")
    return own["steps"], own["emitted"]


def _check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)
