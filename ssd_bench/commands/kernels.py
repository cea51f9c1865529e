"""Compile the CPU kernels, or say why that fails.

`python -m ssd_bench kernels [all]`

Builds them for the default instruction level of this CPU, or with `all` for every level that it has.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from multiprocessing import get_context

from ssd_bench.console import tool
from ssd_bench.errors import ConfigError
from ssd_bench.model.arithmetic import available_levels, resolve
from ssd_bench.model.backends.cpu import native_problem


@tool(__doc__)
def main(arguments: Sequence[str]) -> None:
    """Build the kernels; no error if PyTorch has to do the work."""
    if list(arguments) not in ([], ["all"]):
        raise ConfigError("arguments", " ".join(arguments), "nothing, or all")
    if not arguments:
        print(_build_level(resolve("auto").name))
        return
    names = [level.name for level in available_levels()]
    with get_context("fork").Pool(min(len(names), os.cpu_count() or 1)) as pool:  # one core compiles one level
        for line in pool.imap(_build_level, names):
            print(line, flush=True)


def _build_level(name: str) -> str:
    """Build a level; return the line to print."""
    start = time.perf_counter()
    problem = native_problem(name)
    if problem:
        return f"native kernels: not available, PyTorch is used instead: {problem}"
    return f"native kernels, {name}: ok ({time.perf_counter() - start:.1f} s)"
