"""Times and work of an output's parts, between moments that the decode loop marks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict

from ssd_bench.contract.generation import Work, WorkKind
from ssd_bench.engine.timing import Clock, Mark
from ssd_bench.model.decoder import Decoder
from ssd_bench.model.work import Sum, WorkLog, sum_calls

Moment = tuple[Mark, int]
"""A mark on the device's time line, and the number of calls until then; a plain tuple, for speed."""


class Meter:
    """Moments of one decoder, with the time and work between them; a moment does not wait for the device."""

    def __init__(self, decoder: Decoder):
        self._decoder, self._clock = decoder, Clock(decoder.device)
        self._log = WorkLog()

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Log the decoder's work within this context; outputs of `probe.trial` nest in a preparation's log."""
        outer, self._log = self._decoder.log, WorkLog()
        self._decoder.log = self._log
        try:
            yield
        finally:
            self._decoder.log = outer
            if outer is not None:
                outer.nest(self._log)

    def moment(self) -> Moment:
        return self._clock.mark(), len(self._log)

    def settle(self) -> None:
        """Wait for the device; `ms` needs it."""
        self._clock.settle()

    def ms(self, start: Moment, end: Moment) -> float:
        return self._clock.ms(start[0], end[0])

    def work(self, part: str, *spans: tuple[Moment, Moment]) -> list[Work]:
        """Return the work of a part of a step from its spans of time."""
        calls = [call for (_, start), (_, end) in spans for call in self._log[start:end]]
        return self._of_part(part, sum_calls(calls))

    def total(self, part: str) -> list[Work]:
        """Return all work of the last `counting`, nested outputs included, as one part."""
        return self._of_part(part, self._log.total())

    def _of_part(self, part: str, sums: Mapping[WorkKind, Sum]) -> list[Work]:
        # on a GPU the host only queues the calls, so that its clock does not measure them
        timed = self._decoder.device.type == "cpu"
        return [
            Work(
                **asdict(kind),
                part=part,
                calls=spent.calls,
                context=spent.context / spent.calls,
                ms=1e3 * spent.seconds if timed else None,
            )
            for kind, spent in sums.items()
        ]
