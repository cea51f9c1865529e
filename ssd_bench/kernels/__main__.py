"""`python -m ssd_bench.kernels`: builds the native kernels and prints ok, or why they cannot be built."""

import time

from ssd_bench.kernels import native, native_problem

start = time.perf_counter()
if native() is not None:
    print(f"native kernels: ok ({time.perf_counter() - start:.1f} s)")
else:
    print(f"native kernels: not available, PyTorch is used instead: {native_problem()}")
