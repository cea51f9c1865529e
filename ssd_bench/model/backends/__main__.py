"""`python -m ssd_bench.model.backends [all]`: builds the native kernels and prints ok, or why they cannot be built.

For the level of this CPU that is used by default, or for all that it has.
"""

import sys
import time

from ssd_bench.model.backends.arithmetic import available, resolve, with_code
from ssd_bench.model.backends.select import native_problem

for level in dict.fromkeys(map(with_code, available() if sys.argv[1:] == ["all"] else [resolve("auto")])):
    start = time.perf_counter()
    problem = native_problem(level.name)
    if problem:
        print(f"native kernels: not available, PyTorch is used instead: {problem}")
    else:
        print(f"native kernels, {level.name}: ok ({time.perf_counter() - start:.1f} s)")
