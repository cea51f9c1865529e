"""Log of a decoder's work: its passes and LM heads, call by call, and their sums by kind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeAlias

from ssd_bench.contract.generation import WorkKind
from ssd_bench.contract.layer_set import BITS

HEAD: tuple[int, ...] = (-1,)
"""`Call.sublayers` of an LM head, which no pass has."""
COMPARISON: tuple[int, ...] = (-2,)
"""`Call.sublayers` of a comparison of streams, for whose result the host waits."""


class Call(NamedTuple):
    """One call of a decoder; the log holds plain tuples of these values, which are faster to make.

    Attributes:
        sublayers: those that ran, `HEAD` or `COMPARISON`.
        rows: nodes of the pass, or streams of the head or comparison.
        context: prefix rows that every node reads.
        heads: share of the vocabulary that the head computed; 0 for a pass.
        start, end: host clock in seconds.
        bits: bits of rounded weights, by sublayer; of a head, by `HEAD`'s index. None: all as loaded.
    """

    sublayers: Sequence[int]
    rows: int
    context: int
    heads: float
    start: float
    end: float
    bits: Mapping[int, int] | None = None


LoggedCall: TypeAlias = tuple[Sequence[int], int, int, float, float, float, Mapping[int, int] | None]
"""Values of a `Call`."""
_NONE_ROUNDED = (0, 0, 0.0) * len(BITS)


class Sum(NamedTuple):
    """Number, summed contexts and seconds of calls of a kind."""

    calls: int = 0
    context: float = 0.0
    seconds: float = 0.0

    def plus(self, other: Sum) -> Sum:
        return Sum(self.calls + other.calls, self.context + other.context, self.seconds + other.seconds)


class WorkLog(list[LoggedCall]):
    """Calls of a decoder (values of `Call`), in order; calls of outputs decoded meanwhile are only summed."""

    def __init__(self) -> None:
        super().__init__()
        self._nested: dict[WorkKind, Sum] = {}

    def nest(self, log: WorkLog) -> None:
        """Add the sums of another log: a search before the run may decode thousands of outputs."""
        _add(self._nested, log.total())

    def total(self) -> dict[WorkKind, Sum]:
        sums = sum_calls(self)
        _add(sums, self._nested)
        return sums


def sum_calls(calls: Iterable[LoggedCall]) -> dict[WorkKind, Sum]:
    """Sum calls by kind, in order of first occurrence.

    Two kinds of calls join the call before them, if it has the same rows: an LM head its pass, and a single sublayer
    other single ones, which the host launches without waiting.
    """
    joined: list[tuple[tuple[Any, ...], Sum]] = []  # values of a `WorkKind`, which is slower to make and to hash
    last_is_pass = last_is_single = False
    for call in map(Call._make, calls):
        is_head, is_pass = call.sublayers == HEAD, call.sublayers not in (HEAD, COMPARISON)
        is_single = is_pass and len(call.sublayers) == 1
        attentions, mlps = _count_sublayers(tuple(call.sublayers)) if is_pass else (0, 0)
        work = (call.rows, attentions, mlps, call.heads, 1, *(_count_rounded(call) if call.bits else _NONE_ROUNDED))
        seconds = call.end - call.start
        joins = (is_head and last_is_pass) or (is_single and last_is_single)
        if joins and joined[-1][0][0] == call.rows:
            (rows, *counts), spent = joined.pop()
            together = (rows, *(a + b for a, b in zip(counts, work[1:], strict=True)))
            joined.append((together, spent._replace(seconds=spent.seconds + seconds)))
        else:
            joined.append((work, Sum(1, call.context, seconds)))
        last_is_pass, last_is_single = is_pass, is_single
    sums: dict[tuple[Any, ...], Sum] = {}
    for work, spent in joined:
        sums[work] = sums.get(work, Sum()).plus(spent)
    return {WorkKind(*work): spent for work, spent in sums.items()}


def _add(sums: dict[WorkKind, Sum], more: Mapping[WorkKind, Sum]) -> None:
    for kind, spent in more.items():
        sums[kind] = sums.get(kind, Sum()).plus(spent)


def _count_rounded(call: Call) -> Iterator[float]:
    """Yield the numbers of attentions, MLPs and heads per weight width in `BITS`, as in `WorkKind`."""
    own = [(call.bits or {}).get(i, 0) for i in call.sublayers]
    for bits in BITS:
        if call.sublayers == HEAD:
            yield from (0, 0, call.heads if own == [bits] else 0.0)
        else:
            yield from (*_count_sublayers(tuple(i for i, of in zip(call.sublayers, own) if of == bits)), 0.0)


@cache
def _count_sublayers(sublayers: tuple[int, ...]) -> tuple[int, int]:
    mlps = sum(i % 2 for i in sublayers)
    return len(sublayers) - mlps, mlps
