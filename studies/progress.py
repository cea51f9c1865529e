"""Progress of a study."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

from tqdm import tqdm

T = TypeVar("T")


def counted(items: Sequence[T], what: str) -> Iterator[T]:
    """Yield items, and show how many are done: a bar on a terminal, one line each in a log."""
    begin, bar = time.perf_counter(), sys.stderr.isatty()
    for done, item in enumerate(tqdm(items, desc=what, dynamic_ncols=True, disable=not bar), start=1):
        yield item
        if not bar:
            left_s = (time.perf_counter() - begin) / done * (len(items) - done)
            print(f"[{done}/{len(items)}] {what}, {left_s:.0f} s left", file=sys.stderr, flush=True)
