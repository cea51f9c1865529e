"""Compile the CPU kernels, or say why that fails.

`python -m ssd_bench kernels [all]`

Builds them for the default instruction level of this CPU, or with `all` for every level that it has.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from ssd_bench.console import run_tool
from ssd_bench.errors import ConfigError
from ssd_bench.model.arithmetic import available_levels, resolve
from ssd_bench.model.backends.cpu import native_problem


def main(arguments: Sequence[str]) -> int:
    """Return the exit code: 0, also if PyTorch has to do the work, or 2 if an argument cannot be used."""
    return run_tool(_build, __doc__, arguments)


def _build(arguments: Sequence[str]) -> None:
    if list(arguments) not in ([], ["all"]):
        raise ConfigError("arguments", " ".join(arguments), "nothing, or all")
    for level in available_levels() if arguments else [resolve("auto")]:
        start = time.perf_counter()
        problem = native_problem(level.name)
        if problem:
            print(f"native kernels: not available, PyTorch is used instead: {problem}")
        else:
            print(f"native kernels, {level.name}: ok ({time.perf_counter() - start:.1f} s)")
