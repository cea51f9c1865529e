"""Progress of a run: a bar with tokens/s and time left on a terminal, a line a minute in a log."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Self

from tqdm import tqdm

if TYPE_CHECKING:
    from ssd_bench.records.schema import PromptRecord

VERDICTS = {"bug": "mismatch", "tie": "near-tie", "identical": "identical"}
"""Stored verdict on losslessness -> its text; of several turns the first in this order is shown."""


LOG_SECONDS = 60.0
"""Shortest time between two lines in a log; the first prompt and mismatches always get one."""


class Progress:
    """Progress of finished prompts, of `prompts` with repeats; a context manager."""

    def __init__(self, prompts: int):
        self._total, self._finished, self._begin, self._new_tokens = prompts, 0, time.perf_counter(), 0
        self._bar = tqdm(total=prompts, unit="prompt", dynamic_ncols=True) if sys.stderr.isatty() else None
        self._shown = 0.0

    def token(self, tokens: int) -> None:
        """Show the length of the current output, at most five times a second."""
        now = time.perf_counter()
        if self._bar is not None and now - self._shown > 0.2:
            self._shown = now
            self._bar.set_postfix_str(f"{tokens} tokens in this output", refresh=True)

    def done(self, prompt_id: str, records: list[PromptRecord]) -> None:
        """Count a prompt that is decoded and on disk."""
        self._finished += 1
        self._new_tokens += sum(record.prompt.new_tokens for record in records)
        elapsed = time.perf_counter() - self._begin
        left_s = elapsed / self._finished * (self._total - self._finished)
        sums: dict[str, tuple[int, float]] = {}
        for row in (record.prompt for record in records):
            tokens, ms = sums.get(row.arm, (0, 0.0))
            sums[row.arm] = tokens + row.new_tokens - 1, ms + row.decode_ms
        rates = ", ".join(f"{arm} {1e3 * n / ms:.1f} tok/s" for arm, (n, ms) in sorted(sums.items()) if n and ms > 0)
        verdicts = {record.prompt.lossless for record in records}
        verdict = next((f", {text}" for stored, text in VERDICTS.items() if stored in verdicts), "")
        line = f"{prompt_id}: {rates or 'no token decoded'}{verdict}"
        if self._bar is not None:
            self._bar.set_description_str(line)
            self._bar.set_postfix_str(f"{self._new_tokens / elapsed:.1f} tok/s overall")
            self._bar.update(1)
        elif self._finished == 1 or "bug" in verdicts or time.perf_counter() - self._shown > LOG_SECONDS:
            self._shown = time.perf_counter()
            print(f"[{self._finished}/{self._total}] {line}, {left_s:.0f} s left", file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
